//! Merged batches against plain ones on a GPU's stream: from the flip of a word that the stream
//! waits for until the CPU sees what it writes last.

use super::gpu::{END, Gpu, START};
use super::pair::{self, Pair};
use super::table::{Outcome, Row};
use super::{in_turns, median};
use gdsync::memop::Condition;
use gdsync::{Batch, QueuePair, QueuePairConfig, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::time::Duration;

/// Rounds of each measurement.
const ROUNDS: u32 = 200;
/// Descriptors of batches.
const SIZES: [u32; 4] = [1, 8, 64, 512];
/// Queue pairs of a step in which every rank sends to every other, and waits where only they are
/// measured.
const MANY: u32 = 64;

/// Times in µs: of nothing but the wait for the trigger and the last write, of a merged batch, and of a plain one.
type Round = [f64; 3];

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut bench = Bench::new(options)?;
    let with_card = |what: String, rounds: Vec<Round>| {
        Row::named(what + ": the card, too")
            .compared(&rounds.iter().map(|[_, both @ ..]| *both).collect::<Vec<_>>())
    };
    let gpu_alone = |what: String, rounds: &[Round]| {
        let net = |[empty, both @ ..]: &Round| both.map(|time| time - empty);
        Row::named(what + ": the GPU alone").compared(&rounds.iter().map(net).collect::<Vec<_>>())
    };
    let mut rows = Vec::new();
    for size in SIZES {
        let sends = bench.compare(Part::Sends(size))?;
        rows.push(gpu_alone(format!("{size} sends to one queue pair"), &sends));
        let turns = bench.compare(Part::ByTurns(size))?;
        rows.push(with_card(format!("{size} descriptors, sends and waits by turns"), turns));
    }
    let (sends, waits) = (bench.compare(Part::Sends(MANY))?, bench.compare(Part::Waits)?);
    let sum = |(sends, waits): (&Round, &Round)| [0, 1, 2].map(|way| sends[way] + waits[way]);
    let both: Vec<Round> = sends.iter().zip(&waits).map(sum).collect();
    rows.extend([
        gpu_alone("waits for 64 completions that have come".to_owned(), &waits),
        gpu_alone("64 sends to one queue pair and these waits".to_owned(), &both),
        with_card("64 sends and waits for them".to_owned(), bench.compare(Part::Both)?),
        with_card("a step among 64 queue pairs".to_owned(), bench.compare(Part::Step)?),
    ]);
    for size in SIZES {
        let spread = bench.compare(Part::Spread(size))?;
        rows.push(gpu_alone(format!("{size} sends to as many queue pairs"), &spread));
    }
    let (name, doorbells) = bench.gpu.described(&bench.pair)?;
    let titles = [&*format!("{name}, DOORBELLS {doorbells}"), "MERGED µs", "PLAIN µs"];
    let empty = median(sends.iter().chain(&waits).map(|round| round[0]));
    let all = Row::default().key("gpu", name).key("doorbells", doorbells).key("empty_us", empty);
    Ok(Outcome::compared(all, titles, "Merged and plain batches", &rows))
}

/// What a batch has between the trigger and the last write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// So many sends to one queue pair.
    Sends(u32),
    /// So many sends, each to a queue pair of its own.
    Spread(u32),
    /// So many descriptors: a send, a wait for it, a send, and so on.
    ByTurns(u32),
    /// Waits for what the CPU has sent before.
    Waits,
    /// Sends, and then waits for them.
    Both,
    /// A send to each of many queue pairs, and then a wait for what each of them has received.
    Step,
}

impl Part {
    /// Sends to one queue pair, and to the others.
    fn sends(self) -> (u32, u32) {
        match self {
            Part::Sends(count) => (count, 0),
            Part::Spread(count) => (0, count),
            Part::ByTurns(count) => (count.div_ceil(2), 0),
            Part::Waits | Part::Both => (MANY, 0),
            Part::Step => (0, MANY),
        }
    }
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
    crowd: Vec<(QueuePair, QueuePair)>,
    value: u32,
}

impl Bench {
    fn new(options: &BenchOptions) -> Result<Self, Failure> {
        let pair = Pair::new(options.hca.as_ref())?;
        Ok(Bench { gpu: Gpu::new(options.gpu())?, pair, crowd: Vec::new(), value: 0 })
    }

    /// Makes queue pairs only when a part needs them: a software card polls all that exist, which
    /// costs it time.
    fn gather(&mut self, count: u32) -> Result<(), Failure> {
        let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
        while self.crowd.len() < count as usize {
            self.crowd.push(pair::connected(&self.pair.pd, config)?);
        }
        Ok(())
    }

    fn compare(&mut self, part: Part) -> Result<Vec<Round>, Failure> {
        self.gather(part.sends().1)?;
        in_turns(interrupt::rounds(0..ROUNDS), |way, _| match way {
            0 => self.empty(),
            way => self.round(part, way == 1),
        })
    }

    fn empty(&mut self) -> Result<f64, Failure> {
        let batch = self.begin()?;
        self.trigger(batch)
    }

    fn begin(&mut self) -> Result<Batch, Failure> {
        self.value += 1;
        Ok(Batch::new().wait_value32(&self.gpu.handle(START)?, Condition::Geq, self.value))
    }

    fn round(&mut self, part: Part, merged: bool) -> Result<f64, Failure> {
        let mut batch = self.begin()?.merged(merged);
        let (one, crowd) = part.sends();
        let crowd = &self.crowd[..crowd as usize];
        for i in 0..one {
            self.pair.right.post_recv(&[], 0)?;
            if part == Part::Waits {
                self.pair.left.post_send(WorkRequest::send(&[]))?;
                continue;
            }
            batch = batch.send(self.pair.left.prepare(WorkRequest::send(&[]))?);
            if matches!(part, Part::ByTurns(count) if 2 * i + 1 < count) {
                batch = batch.wait(self.pair.left.send_cq().prepare_wait()?);
            }
        }
        for (here, there) in crowd {
            there.post_recv(&[], 0)?;
            batch = batch.send(here.prepare(WorkRequest::send(&[]))?);
        }
        if part == Part::Waits {
            // All completions arrive before the trigger.
            pair::collect(&self.pair.right.recv_cq(), one.into())?;
        }
        if matches!(part, Part::Waits | Part::Both) {
            for _ in 0..one {
                batch = batch.wait(self.pair.left.send_cq().prepare_wait()?);
            }
        }
        if part == Part::Step {
            for (_, there) in crowd {
                batch = batch.wait(there.recv_cq().prepare_wait()?);
            }
        }
        let time = self.trigger(batch)?;
        pair::collect(&self.pair.left.send_cq(), one.into())?;
        if part != Part::Waits {
            pair::collect(&self.pair.right.recv_cq(), one.into())?;
        }
        for (here, there) in crowd {
            pair::collect(&here.send_cq(), 1)?;
            pair::collect(&there.recv_cq(), 1)?;
        }
        Ok(time)
    }

    /// Posts a batch, flips the word, and waits for the last write.
    fn trigger(&self, batch: Batch) -> Result<f64, Failure> {
        let (gpu, value) = (&self.gpu, self.value);
        let batch = batch.write_value32(&gpu.handle(END)?, value);
        gpu.stream.post(batch).map_err(|error| error.to_string())?;
        gpu.flip(value, Duration::from_micros(60))
    }
}

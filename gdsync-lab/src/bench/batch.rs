//! `gdsync bench batch`: merged batches against plain ones on a GPU's stream, from the flip of a word that the stream
//! waits for until the CPU sees the last write. `gdsync bench plan`: the batch compiler, its memory operations and its
//! CPU time, merged against plain.

use super::gpu::{END, Gpu, START};
use super::pair::{self, Pair};
use super::table::{Outcome, Row};
use super::{in_turns, median};
use gdsync::memop::{Condition, MemOpCaps};
use gdsync::outline::{Descriptor, PaperSend, PaperWait, Program};
use gdsync::{Batch, QueuePair, QueuePairConfig, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 200;
const SIZES: [u32; 4] = [1, 8, 64, 512];
/// Queue pairs of an all-to-all step, and waits of a measurement of waits.
const MANY: u32 = 64;

/// Times in µs: of only the wait for the trigger and the last write, of a merged batch, and of a plain one.
type Round = [f64; 3];

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut bench = MergedBatches::new(options)?;
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
        let sends = bench.compare(BatchKind::Sends(size))?;
        rows.push(gpu_alone(format!("{size} sends to one queue pair"), &sends));
        let turns = bench.compare(BatchKind::ByTurns(size))?;
        rows.push(with_card(format!("{size} descriptors, sends and waits by turns"), turns));
    }
    let (sends, waits) = (bench.compare(BatchKind::Sends(MANY))?, bench.compare(BatchKind::Waits)?);
    let sum = |(sends, waits): (&Round, &Round)| [0, 1, 2].map(|variant| sends[variant] + waits[variant]);
    let both: Vec<Round> = sends.iter().zip(&waits).map(sum).collect();
    rows.extend([
        gpu_alone("waits for 64 completions that have come".to_owned(), &waits),
        gpu_alone("64 sends to one queue pair and these waits".to_owned(), &both),
        with_card("64 sends and waits for them".to_owned(), bench.compare(BatchKind::Both)?),
        with_card("a step among 64 queue pairs".to_owned(), bench.compare(BatchKind::Step)?),
    ]);
    for size in SIZES {
        let spread = bench.compare(BatchKind::Spread(size))?;
        rows.push(gpu_alone(format!("{size} sends to as many queue pairs"), &spread));
    }
    let (name, doorbells) = bench.gpu.described(&bench.pair)?;
    let titles = [&*format!("{name}, DOORBELLS {doorbells}"), "MERGED µs", "PLAIN µs"];
    let empty = median(sends.iter().chain(&waits).map(|round| round[0]));
    let all = Row::default().key("gpu", name).key("doorbells", doorbells).key("empty_us", empty);
    Ok(Outcome::compared(all, titles, "Merged and plain batches", &rows))
}

/// The content of a batch between the trigger and the last write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchKind {
    Sends(u32),
    /// Sends to a queue pair each.
    Spread(u32),
    /// Descriptors: a send, a wait for it, a send, and so on.
    ByTurns(u32),
    /// Waits for earlier sends of the CPU.
    Waits,
    /// Sends, then waits for them.
    Both,
    /// A send to each of many queue pairs, then a wait for what each has received.
    Step,
}

impl BatchKind {
    /// Returns the sends to one queue pair, and to the others.
    fn sends(self) -> (u32, u32) {
        match self {
            BatchKind::Sends(count) => (count, 0),
            BatchKind::Spread(count) => (0, count),
            BatchKind::ByTurns(count) => (count.div_ceil(2), 0),
            BatchKind::Waits | BatchKind::Both => (MANY, 0),
            BatchKind::Step => (0, MANY),
        }
    }
}

struct MergedBatches {
    gpu: Gpu,
    pair: Pair,
    crowd: Vec<(QueuePair, QueuePair)>,
    value: u32,
}

impl MergedBatches {
    fn new(options: &BenchOptions) -> Result<Self, Failure> {
        let pair = Pair::new(options.hca.as_ref())?;
        Ok(MergedBatches { gpu: Gpu::new(options.gpu())?, pair, crowd: Vec::new(), value: 0 })
    }

    /// Creates queue pairs only when needed: a software card polls all that exist, which costs time.
    fn gather(&mut self, count: u32) -> Result<(), Failure> {
        let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
        while self.crowd.len() < count as usize {
            self.crowd.push(pair::connected(&self.pair.pd, config)?);
        }
        Ok(())
    }

    fn compare(&mut self, kind: BatchKind) -> Result<Vec<Round>, Failure> {
        self.gather(kind.sends().1)?;
        in_turns(interrupt::rounds(0..ROUNDS), |variant, _| match variant {
            0 => self.empty(),
            variant => self.round(kind, variant == 1),
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

    fn round(&mut self, kind: BatchKind, merged: bool) -> Result<f64, Failure> {
        let mut batch = self.begin()?.merged(merged);
        let (one, crowd) = kind.sends();
        let crowd = &self.crowd[..crowd as usize];
        for i in 0..one {
            self.pair.right.post_recv(&[], 0)?;
            if kind == BatchKind::Waits {
                self.pair.left.post_send(WorkRequest::send(&[]))?;
                continue;
            }
            batch = batch.send(self.pair.left.prepare(WorkRequest::send(&[]))?);
            if matches!(kind, BatchKind::ByTurns(count) if 2 * i + 1 < count) {
                batch = batch.wait(self.pair.left.send_cq().prepare_wait()?);
            }
        }
        for (here, there) in crowd {
            there.post_recv(&[], 0)?;
            batch = batch.send(here.prepare(WorkRequest::send(&[]))?);
        }
        if kind == BatchKind::Waits {
            // All completions arrive before the trigger.
            pair::collect(&self.pair.right.recv_cq(), one.into())?;
        }
        if matches!(kind, BatchKind::Waits | BatchKind::Both) {
            for _ in 0..one {
                batch = batch.wait(self.pair.left.send_cq().prepare_wait()?);
            }
        }
        if kind == BatchKind::Step {
            for (_, there) in crowd {
                batch = batch.wait(there.recv_cq().prepare_wait()?);
            }
        }
        let time = self.trigger(batch)?;
        pair::collect(&self.pair.left.send_cq(), one.into())?;
        if kind != BatchKind::Waits {
            pair::collect(&self.pair.right.recv_cq(), one.into())?;
        }
        for (here, there) in crowd {
            pair::collect(&here.send_cq(), 1)?;
            pair::collect(&there.recv_cq(), 1)?;
        }
        Ok(time)
    }

    fn trigger(&self, batch: Batch) -> Result<f64, Failure> {
        let (gpu, value) = (&self.gpu, self.value);
        let batch = batch.write_value32(&gpu.handle(END)?, value);
        gpu.stream.post(batch).map_err(|error| error.to_string())?;
        gpu.flip(value, Duration::from_micros(60))
    }
}

/// Measurements of each batch, whose median counts.
const PLAN_ROUNDS: usize = 51;
/// Descriptors of a measurement, which takes some 100 µs.
const DESCRIPTORS: usize = 20_000;

const PEERS: u32 = 64;

pub(super) fn run_plan(_: &BenchOptions) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for size in SIZES {
        rows.extend([
            plan_row(&format!("{size} sends to one queue pair"), &sends(size, 1), None)?,
            plan_row(&format!("{size} sends to as many queue pairs"), &sends(size, size), None)?,
            plan_row(&format!("{size} descriptors, sends and waits by turns"), &by_turns(size), None)?,
        ]);
    }
    let grow = rows.clone();
    let lone = followed_by(sends(64, 1), 1, 64);
    let step = |queues| followed_by(sends(PEERS, PEERS), queues, PEERS);
    let by_card = followed_by(released(PEERS), PEERS, PEERS);
    rows.extend([
        plan_row("64 sends to one queue pair, and their waits", &lone, None)?,
        plan_row("a step among 64, a receive queue for each", &step(PEERS), None)?,
        plan_row("a step among 64, one receive queue", &step(1), None)?,
        plan_row("a step among 64, by a trigger and a collector", &by_card, Some(2))?,
    ]);
    let header = ["BATCH", "OPERATIONS MERGED", "PLAIN", "CPU ns A DESCRIPTOR, MERGED", "PLAIN"];
    // A line for each kind of batch (its name without its size), merged and plain.
    let lines = |outcome: Outcome, title: &str, y: &str, keys: [&'static str; 2]| {
        outcome.lines(title, ["Descriptors of a batch", y], "descriptors", &grow, |row| {
            let kind = row.name().split_once(' ').map_or("", |(_, kind)| kind);
            [(format!("{kind}, merged"), keys[0]), (format!("{kind}, plain"), keys[1])]
        })
    };
    let outcome = Outcome::of(Row::default(), &header, &rows);
    let keys = ["merged.operations", "plain.operations"];
    let outcome = lines(outcome, "Memory operations of a batch", "Operations", keys);
    let keys = ["merged.ns_per_descriptor", "plain.ns_per_descriptor"];
    Ok(lines(outcome, "CPU time of planning and lowering", "A descriptor, ns", keys))
}

fn send(queue_pair: u32, index: u32) -> Descriptor {
    Descriptor::Send(PaperSend { queue_pair, index, trigger: None })
}

fn wait(queue: u32, index: u32) -> Descriptor {
    Descriptor::WaitCq(PaperWait { queue, index, checked: false })
}

fn sends(count: u32, queue_pairs: u32) -> Vec<Descriptor> {
    (0..count).map(|i| send(i % queue_pairs, i / queue_pairs)).collect()
}

/// Returns a send of each queue pair, all by one trigger.
fn released(queue_pairs: u32) -> Vec<Descriptor> {
    let send = |queue_pair| PaperSend { queue_pair, index: 0, trigger: Some((0, u64::from(queue_pair) + 1)) };
    (0..queue_pairs).map(|queue_pair| Descriptor::Send(send(queue_pair))).collect()
}

fn by_turns(count: u32) -> Vec<Descriptor> {
    (0..count).map(|i| if i.is_multiple_of(2) { send(0, i / 2) } else { wait(0, i / 2) }).collect()
}

fn followed_by(mut batch: Vec<Descriptor>, queues: u32, waits: u32) -> Vec<Descriptor> {
    batch.extend((0..waits).map(|i| wait(i % queues, i / queues)));
    batch
}

/// Returns the operations of a batch, and the CPU time of planning and lowering one descriptor. Posting also takes the
/// queues' locks.
fn plan_row(name: &str, batch: &[Descriptor], collect_from: Option<u32>) -> Result<Row, Failure> {
    let program = || collect_from.map_or_else(Program::new, |queues| Program::new().collect_from(queues));
    let mut programs = [program(), program()];
    let repetitions = DESCRIPTORS.div_ceil(batch.len());
    let times: Vec<[f64; 2]> = in_turns(interrupt::rounds(0..PLAN_ROUNDS), |variant, _| {
        let program = &mut programs[variant];
        let start = Instant::now();
        for _ in 0..repetitions {
            program.compile(black_box(batch), &MemOpCaps::FULL, variant == 0)?;
            black_box(program.operations());
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (repetitions * batch.len()) as f64)
    })?;
    let ns = |variant: usize| median(times.iter().map(|both| both[variant]));
    let [merged, plain] = &programs;
    let operations = |row: Row, key, program: &Program| {
        let count = program.operations().len();
        row.cell(key, count, format!("{count} ({:.2})", count as f64 / batch.len() as f64))
    };
    let row = Row::default().cell("batch", name, name).key("descriptors", batch.len());
    let row = operations(operations(row, "merged.operations", merged), "plain.operations", plain);
    Ok(row
        .key("merged.submissions", merged.submissions().count())
        .key("plain.submissions", plain.submissions().count())
        .number("merged.ns_per_descriptor", ns(0), 1)
        .number("plain.ns_per_descriptor", ns(1), 1))
}

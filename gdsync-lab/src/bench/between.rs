//! `gdsync bench turnaround --gpu 0,1`: streams of two GPUs that wake each other, by words in host
//! memory and in the memory of either GPU, against the same memory operations written by hand.

use super::gpu::{END, Gpu, START, by_hand};
use super::outcome::Outcome;
use super::{Comparison, comparison_chart, outcome};
use gdsync::cuda::{self, GpuList, GpuMemory};
use gdsync::memop::{Condition, GpuWord32, MemOpStream, StreamWord, Word32};
use gdsync::memory::StreamAddr;
use gdsync::{Batch, PinnedMemory};
use gdsync_cli::child;
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use serde::Serialize;
use std::time::Duration;

/// Wakes there and back that are enqueued at a time: two operations each for a stream, with one call by
/// hand for all.
const TURNS: u32 = 60;
/// Times that so many are measured.
const RUNS: u32 = 200;
/// Bytes from one word to the other: each has a cache line to itself.
const LINE: usize = 128;

#[derive(Debug, Serialize)]
struct Results {
    /// The GPUs.
    on: String,
    pairs: Vec<Between>,
}

/// What was measured between two GPUs.
#[derive(Debug, Serialize)]
struct Between {
    gpus: [u32; 2],
    /// A wake there and back.
    rows: Vec<Comparison>,
    /// Why words in GPU memory were not measured.
    not_measured: Option<String>,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    // Streams that wait for each other need a channel each where they are of one GPU.
    child::with_channels()?;
    let gpus = options.gpu.as_ref().map_or_else(|| GpuList::from(0).resolve(), GpuList::resolve)?;
    let pairs = gpus.pairs().into_iter().map(between).collect::<Result<_, _>>()?;
    let results = Results { on: gpus.to_string(), pairs };
    let heading = format!("{}, A WAKE THERE AND BACK", results.on);
    let rows = results.pairs.iter().flat_map(Between::text).collect();
    let named: Vec<_> = results.pairs.iter().flat_map(Between::named).collect();
    let chart = comparison_chart("A wake there and back", ["GDSYNC", "BY HAND"], named.iter());
    Ok(outcome(&results, &[&heading, "GDSYNC µs", "BY HAND µs", "RATIO"], rows)?.chart(chart))
}

impl Between {
    /// The rows, each with the GPUs it is about.
    fn named(&self) -> impl Iterator<Item = Comparison> {
        let [one, other] = self.gpus;
        let what = move |row: &Comparison| format!("GPU {one} and GPU {other}, {}", row.what);
        self.rows.iter().map(move |row| Comparison { what: what(row), ..row.clone() })
    }

    fn text(&self) -> Vec<Vec<String>> {
        let [one, other] = self.gpus;
        let rows = self.named().map(|row| row.row());
        let not_measured = self.not_measured.iter().map(|why| {
            let what = format!("GPU {one} and GPU {other}, words in GPU memory: {why}");
            vec![what, "-".to_owned(), "-".to_owned(), "-".to_owned()]
        });
        rows.chain(not_measured).collect()
    }
}

fn between(gpus: [u32; 2]) -> Result<Between, Failure> {
    let sides = [Gpu::new(gpus[0])?, Gpu::new(gpus[1])?];
    let host = PinnedMemory::allocate(2 * LINE)?;
    let words = [Word32::new(&host, 0)?, Word32::new(&host, LINE)?];
    let reached = |side: usize| -> Result<_, Failure> {
        let at = |word: &Word32| sides[side].stream.translate(word.addr(), 4);
        Ok([at(&words[0])?, at(&words[1])?])
    };
    let addresses = [reached(0)?, reached(1)?];
    let mut rows = vec![compare("words in host memory", &sides, [&words[0], &words[1]], addresses)?];
    let [one, other] = [&sides[0].context, &sides[1].context];
    let access = cuda::enable_peer_access(one, other).and_then(|()| cuda::enable_peer_access(other, one));
    if access.is_ok() {
        // A word is written by the one side and waited for by the other: word 0 by side 0.
        for (of_waiter, what) in [(true, "waits"), (false, "writes")] {
            let owner = |word: usize| &sides[if of_waiter { 1 - word } else { word }].context;
            let memory = [GpuMemory::allocate(owner(0), 4)?, GpuMemory::allocate(owner(1), 4)?];
            let words = [GpuWord32::new(&memory[0], 0)?, GpuWord32::new(&memory[1], 0)?];
            let address = |word: &GpuWord32| StreamAddr::new(word.address());
            let addresses = [[address(&words[0]), address(&words[1])]; 2];
            let what = format!("words in the memory of the GPU that {what}");
            rows.push(compare(&what, &sides, [&words[0], &words[1]], addresses)?);
        }
    }
    Ok(Between { gpus, rows, not_measured: access.err().map(|error| error.to_string()) })
}

/// `addresses`: for each side, where it reaches the words.
fn compare<W: StreamWord<u32>>(
    what: &str,
    sides: &[Gpu; 2],
    words: [&W; 2],
    addresses: [[StreamAddr; 2]; 2],
) -> Result<Comparison, Failure> {
    let mut pairs = Vec::new();
    for run in interrupt::rounds(0..RUNS) {
        let first = 2 * run * (TURNS + 1) + 1;
        let ours = wakes(sides, words, first)?;
        pairs.push((ours, wakes_by_hand(sides, addresses, first + TURNS + 1)?));
    }
    Ok(Comparison::new(what, pairs))
}

/// µs of a wake there and back: each stream waits for the other's word, and writes its own. The CPU
/// flips the word that the first waits for, and sees what it writes last.
fn wakes<W: StreamWord<u32>>(sides: &[Gpu; 2], words: [&W; 2], first: u32) -> Result<f64, Failure> {
    let turns = first..first + TURNS;
    let [one, other] = sides;
    let gate = Batch::new().wait_value32(&one.handle(START)?, Condition::Eq, first);
    let there = turns.clone().fold(gate, |batch, turn| {
        batch.write_value32(words[0], turn).wait_value32(words[1], Condition::Geq, turn)
    });
    let back = turns.fold(Batch::new(), |batch, turn| {
        batch.wait_value32(words[0], Condition::Geq, turn).write_value32(words[1], turn)
    });
    let post = |gpu: &Gpu, batch| gpu.stream.post(batch).map(drop).map_err(|error| error.to_string());
    post(one, there.write_value32(&one.handle(END)?, first))?;
    post(other, back)?;
    flip(sides, first)
}

fn wakes_by_hand(sides: &[Gpu; 2], [one, other]: [[StreamAddr; 2]; 2], first: u32) -> Result<f64, Failure> {
    let turns = first..first + TURNS;
    let mut there = vec![by_hand::wait_for(sides[0].addr(START)?, Condition::Eq, first)];
    there.extend(
        turns
            .clone()
            .flat_map(|turn| [by_hand::write(one[0], turn.into(), false), by_hand::wait(one[1], turn)]),
    );
    there.push(by_hand::write(sides[0].addr(END)?, first.into(), false));
    let back =
        turns.flat_map(|turn| [by_hand::wait(other[0], turn), by_hand::write(other[1], turn.into(), false)]);
    let mut back: Vec<_> = back.collect();
    // SAFETY: the addresses are of words that live until both streams are synchronized (`flip`), and the
    // streams reach them: the caller has their addresses from the streams, or has enabled access.
    unsafe {
        by_hand::submit(&sides[0].stream, &mut there)?;
        by_hand::submit(&sides[1].stream, &mut back)?;
    }
    flip(sides, first)
}

fn flip(sides: &[Gpu; 2], value: u32) -> Result<f64, Failure> {
    let time = sides[0].flip(value, Duration::from_micros(50))?;
    sides[1].synchronize()?;
    Ok(time / f64::from(TURNS))
}

//! `gdsync bench turnaround --gpu 0,1`: streams of two GPUs that wake each other, by words in host
//! memory and in the memory of either GPU, against the same memory operations written by hand.

use super::gpu::by_hand::Bare;
use super::gpu::{END, Gpu, START};
use super::in_turns;
use super::table::{Outcome, Row, Table};
use gdsync::cuda::{self, GpuList, GpuMemory};
use gdsync::memop::{Condition, GpuWord32, MemOpStream, StreamWord, Word32};
use gdsync::memory::StreamAddr;
use gdsync::{Batch, CudaStream, PinnedMemory};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{child, interrupt};
use serde_json::{Value, json};
use std::time::Duration;

/// Wakes there and back that are enqueued at a time: two operations each for a stream, with one call by
/// hand for all.
const TURNS: u32 = 60;
/// Times that so many are measured.
const RUNS: u32 = 200;
/// Bytes from one word to the other: each has a cache line to itself.
const LINE: usize = 128;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    // Streams that wait for each other need a channel each where they are of one GPU.
    child::with_channels()?;
    let gpus = options.gpu.as_ref().map_or_else(|| GpuList::from(0).resolve(), GpuList::resolve)?;
    let (mut rows, mut lines, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for pair in gpus.pairs() {
        let (all, not_measured) = between(pair)?;
        let what = |what: &str| format!("GPU {} and GPU {}, {what}", pair[0], pair[1]);
        rows.extend(all.iter().map(|row| row.clone().renamed(what(row.name()))));
        lines.extend_from_slice(&rows[rows.len() - all.len()..]);
        lines.extend(not_measured.iter().map(|why| {
            let dash = |row: Row, _| row.text("-");
            (0..3).fold(Row::default().text(what(&format!("words in GPU memory: {why}"))), dash)
        }));
        pairs.push(json!({ "gpus": pair, "rows": Value::from(all), "not_measured": not_measured }));
    }
    let heading = format!("{gpus}, A WAKE THERE AND BACK");
    let table = Table::new(&[&heading, "GDSYNC µs", "BY HAND µs", "RATIO"], &lines);
    let outcome = Outcome::new(json!({ "on": gpus.to_string(), "pairs": pairs }), [table]);
    Ok(outcome.comparison("A wake there and back", ["GDSYNC", "BY HAND"], &rows))
}

/// A row for each kind of memory, and why words in GPU memory were not measured.
fn between(gpus: [u32; 2]) -> Result<(Vec<Row>, Option<String>), Failure> {
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
    Ok((rows, access.err().map(|error| error.to_string())))
}

/// `addresses`: for each side, where it reaches the words.
fn compare<W: StreamWord<u32>>(
    what: &str,
    sides: &[Gpu; 2],
    words: [&W; 2],
    addresses: [[StreamAddr; 2]; 2],
) -> Result<Row, Failure> {
    let mut next = 1;
    let pairs = in_turns(interrupt::rounds(0..RUNS), |way, _| {
        let first = next;
        next += TURNS + 1;
        match way {
            0 => wakes(sides, words, first),
            _ => wakes_by_hand(sides, addresses, first),
        }
    })?;
    Ok(Row::named(what).compared(&pairs))
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
    let mut there = vec![CudaStream::wait32(sides[0].addr(START)?, Condition::Eq, first)];
    there.extend(turns.clone().flat_map(|turn| {
        [CudaStream::write32(one[0], turn), CudaStream::wait32(one[1], Condition::Geq, turn)]
    }));
    there.push(CudaStream::write32(sides[0].addr(END)?, first));
    let back = turns.flat_map(|turn| {
        [CudaStream::wait32(other[0], Condition::Geq, turn), CudaStream::write32(other[1], turn)]
    });
    let mut back: Vec<_> = back.collect();
    // SAFETY: the addresses are of words that live until both streams are synchronized (`flip`), and the
    // streams reach them: the caller has their addresses from the streams, or has enabled access.
    unsafe {
        sides[0].stream.enqueue(&mut there)?;
        sides[1].stream.enqueue(&mut back)?;
    }
    flip(sides, first)
}

fn flip(sides: &[Gpu; 2], value: u32) -> Result<f64, Failure> {
    let time = sides[0].flip(value, Duration::from_micros(50))?;
    sides[1].synchronize()?;
    Ok(time / f64::from(TURNS))
}

//! The batch compiler: how many memory operations it makes of a batch, and how long it takes,
//! merged against unmerged.

use super::table::{Outcome, Row};
use super::{in_turns, median};
use gdsync::memop::MemOpCaps;
use gdsync::outline::{Descriptor, PaperSend, PaperWait, Program};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::hint::black_box;
use std::time::Instant;

/// Measurements of each batch, of which the median counts.
const ROUNDS: usize = 51;
/// Descriptors of a measurement, which takes some 100 µs.
const DESCRIPTORS: usize = 20_000;

/// Descriptors of a batch.
const SIZES: [u32; 4] = [1, 8, 64, 512];
/// Queue pairs of a step in which every rank sends to every other.
const PEERS: u32 = 64;

pub(super) fn run(_: &BenchOptions) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for size in SIZES {
        rows.extend([
            row(&format!("{size} sends to one queue pair"), &sends(size, 1), None)?,
            row(&format!("{size} sends to as many queue pairs"), &sends(size, size), None)?,
            row(&format!("{size} descriptors, sends and waits by turns"), &by_turns(size), None)?,
        ]);
    }
    let grow = rows.clone();
    let lone = followed_by(sends(64, 1), 1, 64);
    let step = |queues| followed_by(sends(PEERS, PEERS), queues, PEERS);
    let by_card = followed_by(released(PEERS), PEERS, PEERS);
    rows.extend([
        row("64 sends to one queue pair, and their waits", &lone, None)?,
        row("a step among 64, a receive queue for each", &step(PEERS), None)?,
        row("a step among 64, one receive queue", &step(1), None)?,
        row("a step among 64, by a trigger and a collector", &by_card, Some(2))?,
    ]);
    let header = ["BATCH", "OPERATIONS MERGED", "PLAIN", "CPU ns A DESCRIPTOR, MERGED", "PLAIN"];
    // Every kind of batch that grows, merged and plain: its name without its size.
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

/// A send of each queue pair, all by one trigger.
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

/// The operations of a batch, and the CPU's time for planning and lowering one descriptor. Posting also takes the queues'
/// locks.
fn row(name: &str, batch: &[Descriptor], collect_from: Option<u32>) -> Result<Row, Failure> {
    let program = || collect_from.map_or_else(Program::new, |queues| Program::new().collect_from(queues));
    let mut programs = [program(), program()];
    let repetitions = DESCRIPTORS.div_ceil(batch.len());
    let times: Vec<[f64; 2]> = in_turns(interrupt::rounds(0..ROUNDS), |way, _| {
        let program = &mut programs[way];
        let start = Instant::now();
        for _ in 0..repetitions {
            program.compile(black_box(batch), &MemOpCaps::FULL, way == 0)?;
            black_box(program.operations());
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / (repetitions * batch.len()) as f64)
    })?;
    let ns = |way: usize| median(times.iter().map(|both| both[way]));
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

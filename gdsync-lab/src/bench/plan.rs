//! The batch compiler: how many memory operations it makes of a batch, and how long it takes,
//! merged against unmerged.

use super::outcome::Outcome;
use super::{median, outcome};
use gdsync::memop::MemOpCaps;
use gdsync::outline::{Descriptor, PaperSend, PaperWait, Program};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use serde::Serialize;
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

#[derive(Debug, Serialize)]
struct Row {
    batch: String,
    /// The kind of batch that is measured with several numbers of descriptors.
    #[serde(skip)]
    grows: Option<&'static str>,
    descriptors: usize,
    merged: Figures,
    plain: Figures,
}

#[derive(Debug, Serialize)]
struct Figures {
    operations: usize,
    submissions: usize,
    /// The CPU's time for planning and lowering one descriptor. Posting also takes the queues'
    /// locks.
    ns_per_descriptor: f64,
}

pub(super) fn run(_: &BenchOptions) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for size in SIZES {
        for (kind, batch) in [
            ("sends to one queue pair", sends(size, 1)),
            ("sends to as many queue pairs", sends(size, size)),
            ("descriptors, sends and waits by turns", by_turns(size)),
        ] {
            let row = row(format!("{size} {kind}"), &batch, None)?;
            rows.push(Row { grows: Some(kind), ..row });
        }
    }
    let mut add = |name: String, batch: &[Descriptor], collect_from| {
        rows.push(row(name, batch, collect_from)?);
        Ok::<_, Failure>(())
    };
    let lone = followed_by(sends(64, 1), 1, 64);
    add("64 sends to one queue pair, and their waits".to_owned(), &lone, None)?;
    let step = |queues| followed_by(sends(PEERS, PEERS), queues, PEERS);
    add("a step among 64, a receive queue for each".to_owned(), &step(PEERS), None)?;
    add("a step among 64, one receive queue".to_owned(), &step(1), None)?;
    let by_card = followed_by(released(PEERS), PEERS, PEERS);
    add("a step among 64, by a trigger and a collector".to_owned(), &by_card, Some(2))?;
    let cells = |row: &Row| {
        let figures = |figures: &Figures| {
            let per = figures.operations as f64 / row.descriptors as f64;
            [format!("{} ({per:.2})", figures.operations), format!("{:.1}", figures.ns_per_descriptor)]
        };
        let [merged, merged_ns] = figures(&row.merged);
        let [plain, plain_ns] = figures(&row.plain);
        vec![row.batch.clone(), merged, plain, merged_ns, plain_ns]
    };
    let header = ["BATCH", "OPERATIONS MERGED", "PLAIN", "CPU ns A DESCRIPTOR, MERGED", "PLAIN"];
    let outcome = outcome(&rows, &header, rows.iter().map(cells).collect())?;
    let operations = chart("Memory operations of a batch", "Operations", &rows, |one| one.operations as f64);
    let times =
        chart("CPU time of planning and lowering", "A descriptor, ns", &rows, |one| one.ns_per_descriptor);
    Ok(outcome.chart(operations).chart(times))
}

/// Every kind of batch that grows, merged and plain, by its number of descriptors.
fn chart(title: &str, y: &str, rows: &[Row], pick: fn(&Figures) -> f64) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for row in rows {
        let Some(kind) = row.grows else { continue };
        for (way, figures) in [("merged", &row.merged), ("plain", &row.plain)] {
            let (name, point) = (format!("{kind}, {way}"), (row.descriptors as f64, pick(figures)));
            match series.iter_mut().find(|one| one.name == name) {
                Some(one) => one.points.push(point),
                None => series.push(Series::new(name, [point])),
            }
        }
    }
    let x = Axis::new("Descriptors of a batch", Scale::Counts);
    Chart { title: title.to_owned(), content: Content::Lines { x, y: Axis::new(y, Scale::Log), series } }
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

fn row(name: String, batch: &[Descriptor], collect_from: Option<u32>) -> Result<Row, Failure> {
    let figures = |merged| measure(batch, merged, collect_from);
    Ok(Row {
        batch: name,
        grows: None,
        descriptors: batch.len(),
        merged: figures(true)?,
        plain: figures(false)?,
    })
}

fn measure(batch: &[Descriptor], merged: bool, collect_from: Option<u32>) -> Result<Figures, Failure> {
    let mut program = match collect_from {
        Some(queues) => Program::new().collect_from(queues),
        None => Program::new(),
    };
    let repetitions = DESCRIPTORS.div_ceil(batch.len());
    let mut times = Vec::new();
    for _ in interrupt::rounds(0..ROUNDS) {
        let start = Instant::now();
        for _ in 0..repetitions {
            program.compile(black_box(batch), &MemOpCaps::FULL, merged)?;
            black_box(program.operations());
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / (repetitions * batch.len()) as f64);
    }
    let (operations, submissions) = (program.operations().len(), program.submissions().count());
    Ok(Figures { operations, submissions, ns_per_descriptor: median(times) })
}

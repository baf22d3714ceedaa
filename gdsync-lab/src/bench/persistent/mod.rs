//! `gdsync bench persistent`: rounds in which every rank sends to every other, by persistent requests,
//! which a stream or the card waits for, and by notified writes. Ranks are threads with software streams.

mod rank;
mod requests;
mod writes;

use super::outcome::Outcome;
use super::{median, outcome};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use gdsync_notify::bootstrap::Bootstrap;
use rank::{BLOCK, Rank, Way};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Ranks of the rows.
const RANKS: [usize; 3] = [2, 4, 8];
/// In each, every way is measured once.
const RUNS: usize = 10;
/// The ways of the messages.
const WAYS: usize = Way::ALL.len();
/// For the ranks to meet.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Results {
    runs: usize,
    /// Of a run, by each way.
    rounds: u64,
    /// Every byte of every message was checked.
    verified: bool,
    bytes_checked: u64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    ranks: usize,
    what: &'static str,
    /// Medians over the runs, of a round.
    gdsync_us: f64,
    /// By notified writes.
    reference_us: f64,
    /// Of the times of one run: the median, and the ends.
    ratio: f64,
    least_ratio: f64,
    most_ratio: f64,
    /// Memory operations of a rank's stream in a round.
    gdsync_operations: f64,
    reference_operations: f64,
}

/// What one way took in each run, in µs a round, and its memory operations.
#[derive(Default)]
struct Measured {
    times: Vec<f64>,
    operations: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut results =
        Results { runs: RUNS, rounds: options.rounds, verified: true, bytes_checked: 0, rows: Vec::new() };
    let leaves = Arc::new(AtomicBool::new(false));
    for ranks in RANKS {
        let measured = measure(options, ranks, &leaves)?;
        results.runs = results.runs.min(measured[0].times.len());
        let [all, singly, card_waits, notified] = &measured;
        let ways = [
            ("start_all, wait_all", all),
            ("start, wait_on", singly),
            ("start_all, wait_all, trigger and collector", card_waits),
            ("notified writes", notified),
        ];
        for (what, way) in ways.into_iter().filter(|(_, way)| !way.times.is_empty()) {
            let messages = (ranks * (ranks - 1) * way.times.len()) as u64 * options.rounds;
            results.bytes_checked += messages * BLOCK as u64;
            if !std::ptr::eq(way, notified) {
                results.rows.push(Row::new(ranks, what, way, notified));
            }
        }
    }
    let heading = format!("{} RUNS OF {} ROUNDS", results.runs, options.rounds);
    let titles = ["REQUESTS µs", "WRITES µs", "RATIO", "FROM", "TO", "OPERATIONS", "OF WRITES"];
    let header: Vec<_> = [heading.as_str()].into_iter().chain(titles).collect();
    let rows = results.rows.iter().map(Row::cells).collect();
    Ok(outcome(&results, &header, rows)?.chart(results.chart()))
}

impl Results {
    /// The time of a round by the number of ranks, a line for each way.
    fn chart(&self) -> Chart {
        let mut series: Vec<Series> = Vec::new();
        let mut add = |name: &str, point: (f64, f64)| match series.iter_mut().find(|one| one.name == name) {
            Some(one) if one.points.last() == Some(&point) => {}
            Some(one) => one.points.push(point),
            None => series.push(Series::new(name, [point])),
        };
        for row in &self.rows {
            let ranks = row.ranks as f64;
            add(row.what, (ranks, row.gdsync_us));
            add("notified writes", (ranks, row.reference_us));
        }
        let (x, y) = (Axis::new("Ranks", Scale::Counts), Axis::new("Median time of a round, µs", Scale::Log));
        Chart {
            title: "A round in which every rank sends to every other".to_owned(),
            content: Content::Lines { x, y, series },
        }
    }
}

impl Row {
    fn new(ranks: usize, what: &'static str, ours: &Measured, reference: &Measured) -> Self {
        let mut ratios: Vec<_> =
            ours.times.iter().zip(&reference.times).map(|(one, two)| one / two).collect();
        ratios.sort_by(f64::total_cmp);
        let end = |ratio: Option<&f64>| ratio.copied().unwrap_or(f64::NAN);
        Row {
            ranks,
            what,
            gdsync_us: median(ours.times.clone()),
            reference_us: median(reference.times.clone()),
            least_ratio: end(ratios.first()),
            most_ratio: end(ratios.last()),
            ratio: median(ratios),
            gdsync_operations: ours.operations,
            reference_operations: reference.operations,
        }
    }

    fn cells(&self) -> Vec<String> {
        let Row { ranks, what, .. } = self;
        let mut cells = vec![format!("{ranks} ranks, {what}")];
        let numbers = [self.gdsync_us, self.reference_us, self.ratio, self.least_ratio, self.most_ratio];
        cells.extend(numbers.map(|number| format!("{number:.2}")));
        cells.extend([self.gdsync_operations, self.reference_operations].map(|count| format!("{count:.2}")));
        cells
    }
}

/// Each way in each run. The ways take turns in being the first.
fn measure(
    options: &BenchOptions,
    ranks: usize,
    leaves: &Arc<AtomicBool>,
) -> Result<[Measured; WAYS], Failure> {
    let begin = Arc::new(Barrier::new(ranks));
    let (sender, done) = channel();
    for bootstrap in Bootstrap::threads(u32::try_from(ranks)?, TIMEOUT)? {
        let (sender, begin, leaves) = (sender.clone(), begin.clone(), Arc::clone(leaves));
        let (hca, rounds) = (options.hca.clone(), options.rounds);
        std::thread::Builder::new().name("persistent-rank".to_owned()).spawn(move || {
            let played = hca::open(hca.as_ref())
                .and_then(|place| play(place, bootstrap, (&begin, &leaves), rounds))
                .map_err(|error| error.to_string());
            let _ = sender.send(played);
        })?;
    }
    drop(sender);
    let mut measured: [Measured; WAYS] = Default::default();
    for _ in 0..ranks {
        // Where one fails, the others wait for it: they end with the process.
        let played = done.recv().map_err(|_| "a rank has panicked")??;
        for (all, one) in measured.iter_mut().zip(played) {
            all.operations += one.operations / ranks as f64;
            // All begin together, and the last one ends the round.
            all.times.resize(one.times.len(), 0.0);
            all.times.iter_mut().zip(one.times).for_each(|(most, time)| *most = most.max(time));
        }
    }
    Ok(measured)
}

fn play(
    place: (gdsync::Device, u8),
    bootstrap: Bootstrap,
    (begin, leaves): (&Barrier, &AtomicBool),
    rounds: u64,
) -> Result<[Measured; WAYS], Failure> {
    let mut rank = Rank::new(place, bootstrap)?;
    let mut measured: [Measured; WAYS] = Default::default();
    for run in 0..RUNS {
        // All ranks leave at the same run where the user interrupts: one of them looks.
        if begin.wait().is_leader() {
            leaves.store(run > 0 && interrupt::requested(), Ordering::Relaxed);
        }
        begin.wait();
        if leaves.load(Ordering::Relaxed) {
            break;
        }
        for way in (0..WAYS).map(|turn| (turn + run) % WAYS) {
            if !rank.has(Way::ALL[way]) {
                continue;
            }
            let (time, operations) = rank.play(Way::ALL[way], rounds, begin)?;
            measured[way].times.push(time);
            measured[way].operations = operations;
        }
    }
    // A rank that leaves takes its queue pairs along.
    begin.wait();
    Ok(measured)
}

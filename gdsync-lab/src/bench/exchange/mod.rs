//! `gdsync bench exchange`: two streams send to each other, and each waits for its own completion and the peer's
//! message; by gdsync's stream, and by the same memory operations passed to the stream by hand. In one process and
//! between two.

mod ours;
mod side;

use super::MEDIAN_US;
use super::table::{Outcome, Row, Table};
use gdsync::cuda::{self, GpuList, Gpus};
use gdsync_cli::child;
use gdsync_cli::cli::{BenchOptions, Process};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_notify::bootstrap::{Bootstrap, Job, Rendezvous};
use ours::Shape;
use serde::{Deserialize, Serialize};
use serde_json::json;
use side::{BY_HAND, BY_RUST, Figures, Measured, NAPPED, NAPS, POSTING, RUNS, Side, VARIANTS, WHOLE};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    /// The name under which the two meet.
    name: String,
    hca: Option<Hca>,
    gpus: Option<[u32; 2]>,
    rounds: u64,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    if options.gpu.is_some() {
        child::with_channels()?;
    }
    let gpus = options.gpu.as_ref().map(GpuList::resolve).transpose()?;
    let on = gpus.as_ref().map_or("a software stream".to_owned(), Gpus::to_string);
    let pairs = gpus.map_or(vec![None], |gpus| gpus.pairs().into_iter().map(Some).collect());
    let shared = pairs.iter().flatten().find(|[one, other]| one == other);
    let mps = match shared {
        Some([gpu, _]) => cuda::describe(*gpu)?.capabilities.mps,
        None => None,
    };
    // A faulty card is reported once, before two sides would report it.
    drop(hca::open(options.hca.as_ref())?);
    let (mut rows, mut whole, mut parts, mut runs) = (Vec::new(), Vec::new(), Vec::new(), RUNS);
    for gpus in pairs {
        for processes in options.procs.map_or(vec![1, 2], |processes| vec![processes]) {
            let place = (gpus, processes);
            let figures = measure(options, place)?;
            runs = runs.min(figures[0][BY_RUST].times.len());
            for (shape, variants) in Shape::ALL.into_iter().zip(&figures) {
                let name = name(place, shape);
                let of =
                    Row::default().key("gpus", gpus).key("processes", processes).key("shape", json!(shape));
                let (all, part) = (whole_row(&name, variants), part_row(&name, variants));
                rows.push(of.and(all.clone()).and(part.clone()));
                whole.push(all);
                parts.push(part);
            }
        }
    }
    let heading = format!("{on}, {runs} RUNS OF {} EXCHANGES, VERIFIED", options.rounds());
    let header = [&*heading, "RUST µs", "BY HAND µs", "RUST : BY HAND", "OPERATIONS: RUST", "BY HAND"];
    let parts_header =
        ["OF AN EXCHANGE", "POSTING: RUST µs", "BY HAND µs", "THE CARD LATE AFTER: RUST µs", "BY HAND µs"];
    let tables = [Table::new(&header, &whole), Table::new(&parts_header, &parts)];
    // Every message was checked.
    let all = Row::default().key("mps", mps).key("runs", runs).key("rounds", options.rounds());
    let all = all.key("verified", true).key("on", &*on).key("rows", rows);
    let sharing = match mps {
        Some(true) => Some("MPS is on: streams of both processes run side by side"),
        Some(false) => {
            Some("MPS is off: the GPU serves two processes in turn, and their exchanges take its time slices")
        }
        None => None,
    };
    let title = format!("An exchange between two streams, {on}");
    let series = [("Rust", "rust_us"), ("by hand", "by_hand_us")];
    let outcome = Outcome::new(all, tables).bars(title, MEDIAN_US, &whole, &series);
    Ok(sharing.into_iter().fold(outcome, Outcome::note))
}

/// Returns the first side's figures, with the other side in a thread or a process.
fn measure(options: &BenchOptions, (gpus, processes): (Option<[u32; 2]>, u64)) -> Result<Figures, Failure> {
    if processes == 1 {
        return with_thread(options, gpus);
    }
    let plan = Plan {
        name: format!("exchange-{}", std::process::id()),
        hca: options.hca.clone(),
        gpus,
        rounds: options.rounds(),
    };
    let (mut peer, _input) = child::start(child::of(Process::ExchangePeer)?, "the other process", &plan)?;
    let figures = plan.play(0)?;
    match peer.0.wait()? {
        status if status.success() => Ok(figures),
        status => Err(child::failure(format_args!("the other process"), status)),
    }
}

fn with_thread(options: &BenchOptions, gpus: Option<[u32; 2]>) -> Result<Figures, Failure> {
    let mut sides = Bootstrap::threads(2, TIMEOUT)?.into_iter();
    let (Some(first), Some(second)) = (sides.next(), sides.next()) else {
        return Err("a job of two has not two ranks".into());
    };
    let (hca, rounds) = (options.hca.clone(), options.rounds());
    let gpu = |side: usize| gpus.map(|gpus| gpus[side]);
    let (own, other) = (gpu(0), gpu(1));
    let thread = std::thread::Builder::new().name("exchange-peer".to_owned()).spawn(move || {
        let side = Side::new(hca.as_ref(), other, second)?;
        side.play(rounds).map(drop)
    })?;
    let side = Side::new(options.hca.as_ref(), own, first);
    let figures = side.and_then(|side| side.play(rounds));
    match (figures, thread.join()) {
        (_, Err(_)) => Err("the other side panicked".into()),
        (Ok(figures), Ok(Ok(()))) => Ok(figures),
        (Err(error), Ok(Err(other))) => Err(format!("{error}; the other side: {other}").into()),
        (Err(error), Ok(Ok(()))) | (Ok(_), Ok(Err(error))) => Err(error),
    }
}

pub(crate) fn run_peer() -> Result<(), Failure> {
    child::options::<Plan>()?.play(1).map(drop)
}

impl Plan {
    fn play(&self, rank: u32) -> Result<Figures, Failure> {
        let job = Job::new(rank, 2, Rendezvous::Local(self.name.clone()))?;
        let bootstrap = Bootstrap::join(&job, TIMEOUT)?;
        let gpu = self.gpus.map(|gpus| gpus[rank as usize % 2]);
        Side::new(self.hca.as_ref(), gpu, bootstrap)?.play(self.rounds)
    }
}

fn name((gpus, processes): (Option<[u32; 2]>, u64), shape: Shape) -> String {
    let processes = if processes == 1 { "1 process" } else { "2 processes" };
    match gpus.filter(|[one, other]| one != other) {
        Some([one, other]) => format!("GPU {one} and {other}, {processes}, {}", shape.name()),
        None => format!("{processes}, {}", shape.name()),
    }
}

/// Returns the time of an exchange, and its ratio to the time by hand in the same run.
fn whole_row(name: &str, variants: &[Measured; VARIANTS]) -> Row {
    let [rust, hand] = [BY_RUST, BY_HAND].map(|variant| &variants[variant]);
    let runs = rust.times.iter().zip(&hand.times);
    let ratios: Vec<f64> = runs.map(|(rust, hand)| rust[WHOLE] / hand[WHOLE]).collect();
    Row::default()
        .text(name)
        .number("rust_us", rust.median(WHOLE), 2)
        .number("by_hand_us", hand.median(WHOLE), 2)
        .spread("rust_ratio", &ratios)
        .number("rust_operations", rust.operations, 2)
        .number("by_hand_operations", hand.operations, 2)
}

/// Returns the CPU time of handing over one exchange. Also, for one exchange, the sleeps of this process's software
/// card after which it found work, and their total: an upper bound of their share of the time.
fn part_row(name: &str, variants: &[Measured; VARIANTS]) -> Row {
    let [rust, hand] = [BY_RUST, BY_HAND].map(|variant| &variants[variant]);
    let naps = |row: Row, variant: &Measured, [count, us]: [&'static str; 2]| {
        let (naps, napped) = (variant.median(NAPS), variant.median(NAPPED));
        row.key(count, naps).cell(us, napped, format!("{naps:.2} naps, {napped:.2}"))
    };
    let row = Row::default().text(name).number("rust_posting_us", rust.median(POSTING), 2).number(
        "by_hand_posting_us",
        hand.median(POSTING),
        2,
    );
    let row = naps(row, rust, ["rust_naps", "rust_naps_us"]);
    naps(row, hand, ["by_hand_naps", "by_hand_naps_us"])
}

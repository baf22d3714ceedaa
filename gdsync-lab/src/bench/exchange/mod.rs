//! `gdsync bench exchange`: two streams that send to each other and wait, each for its own completion and
//! for the other's message; by gdsync's stream, and by the same memory operations given to the stream by hand.
//! In one process and between two.

mod ours;
mod side;
mod way;

use super::outcome::{Outcome, Table};
use super::{Spread, median};
use gdsync::cuda::{self, GpuList, Gpus};
use gdsync_cli::child;
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Values};
use gdsync_notify::bootstrap::{Bootstrap, Job, Meeting};
use serde::{Deserialize, Serialize};
use side::{BY_HAND, BY_RUST, Figures, Measured, RUNS, Side, WAYS};
use std::io::{self, BufRead, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use way::Shape;

/// For the sides to meet.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What the other process reads from its standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Plan {
    /// Where the two meet.
    name: String,
    hca: Option<Hca>,
    gpus: Option<[u32; 2]>,
    rounds: u64,
}

#[derive(Debug, Serialize)]
struct Results {
    /// The GPUs, or that there is none.
    on: String,
    /// Whether processes share the GPU by MPS; none where each side has a GPU of its own or none, or where
    /// the driver does not say.
    mps: Option<bool>,
    runs: usize,
    /// Of a run, by each way.
    rounds: u64,
    /// Every message was checked.
    verified: bool,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// The GPU of each side.
    gpus: Option<[u32; 2]>,
    processes: u64,
    shape: Shape,
    /// An exchange: medians over the runs, in µs.
    rust_us: f64,
    by_hand_us: f64,
    /// Divided by the time by hand in the same run.
    rust_ratio: Spread,
    /// What of it the CPU takes to hand over one exchange.
    rust_posting_us: f64,
    by_hand_posting_us: f64,
    /// Naps of the software card of this process after which it found work, for one exchange, and their lengths
    /// together: at most so much of the time is theirs.
    rust_naps: f64,
    rust_naps_us: f64,
    by_hand_naps: f64,
    by_hand_naps_us: f64,
    /// Memory operations of an exchange.
    rust_operations: f64,
    by_hand_operations: f64,
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
    // What is wrong with the card is said once, before there are two sides that would.
    drop(hca::open(options.hca.as_ref())?);
    let (mut rows, mut runs) = (Vec::new(), RUNS);
    for gpus in pairs {
        for processes in options.processes.map_or(vec![1, 2], |processes| vec![processes]) {
            let place = (gpus, processes);
            let figures = measure(options, place)?;
            runs = runs.min(figures[0][BY_RUST].whole.len());
            rows.extend(Shape::ALL.iter().zip(&figures).map(|(shape, ways)| Row::new(place, *shape, ways)));
        }
    }
    Results { on, mps, runs, rounds: options.rounds, verified: true, rows }.outcome()
}

impl Results {
    fn outcome(&self) -> Result<Outcome, Failure> {
        let heading = format!("{}, {} RUNS OF {} EXCHANGES, VERIFIED", self.on, self.runs, self.rounds);
        let figures = ["RUST µs", "BY HAND µs", "RUST : BY HAND", "OPERATIONS: RUST", "BY HAND"];
        let header = [&[heading.as_str()][..], &figures].concat();
        let whole = self.rows.iter().map(Row::whole).collect();
        let posting = ["POSTING: RUST µs", "BY HAND µs"];
        let naps = ["THE CARD LATE AFTER: RUST µs", "BY HAND µs"];
        let parts_header = [&["OF AN EXCHANGE"][..], &posting, &naps].concat();
        let parts = self.rows.iter().map(Row::parts).collect();
        let sharing = match self.mps {
            Some(true) => Some("MPS is on: streams of both processes run side by side"),
            Some(false) => Some(
                "MPS is off: the GPU serves two processes in turn, and their exchanges take its time slices",
            ),
            None => None,
        };
        let tables = [Table::new(&header, whole), Table::new(&parts_header, parts)];
        let outcome = Outcome::new(self, tables)?.chart(self.chart());
        Ok(sharing.into_iter().fold(outcome, Outcome::note))
    }

    /// What an exchange takes by each way.
    fn chart(&self) -> Chart {
        let column = |name: &str, pick: fn(&Row) -> f64| Values::new(name, self.rows.iter().map(pick));
        Chart {
            title: format!("An exchange between two streams, {}", self.on),
            content: Content::Categories {
                x: Axis::new("Median time, µs", Scale::Linear),
                names: self.rows.iter().map(Row::name).collect(),
                series: vec![column("Rust", |row| row.rust_us), column("by hand", |row| row.by_hand_us)],
            },
        }
    }
}

/// The first side's figures: with the other side in a thread, or in a process of its own.
fn measure(options: &BenchOptions, (gpus, processes): (Option<[u32; 2]>, u64)) -> Result<Figures, Failure> {
    if processes == 1 {
        return with_thread(options, gpus);
    }
    let plan = Plan {
        name: format!("exchange-{}", std::process::id()),
        hca: options.hca.clone(),
        gpus,
        rounds: options.rounds,
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("exchange-peer").stdin(Stdio::piped());
    child::dies_with_this_process(&mut command);
    let mut peer =
        child::Guarded(command.spawn().map_err(|error| format!("cannot start the other process: {error}"))?);
    let mut input = peer.0.stdin.take().ok_or("the other process has no input")?;
    writeln!(input, "{}", serde_json::to_string(&plan)?)?;
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
    let (hca, rounds) = (options.hca.clone(), options.rounds);
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

/// The other process: what it does comes in a line of stdin.
pub(crate) fn run_peer() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let plan: Plan = serde_json::from_str(&line)?;
    plan.play(1).map(drop)
}

impl Plan {
    /// One of two processes.
    fn play(&self, rank: u32) -> Result<Figures, Failure> {
        let job = Job::new(rank, 2, Meeting::Local(self.name.clone()))?;
        let bootstrap = Bootstrap::join(&job, TIMEOUT)?;
        let gpu = self.gpus.map(|gpus| gpus[rank as usize % 2]);
        Side::new(self.hca.as_ref(), gpu, bootstrap)?.play(self.rounds)
    }
}

fn number(value: f64) -> String {
    format!("{value:.2}")
}

impl Row {
    fn new((gpus, processes): (Option<[u32; 2]>, u64), shape: Shape, ways: &[Measured; WAYS]) -> Self {
        let [rust, hand] = [BY_RUST, BY_HAND].map(|way| &ways[way]);
        let middle = |times: &Vec<f64>| median(times.clone());
        Row {
            gpus,
            processes,
            shape,
            rust_us: middle(&rust.whole),
            by_hand_us: middle(&hand.whole),
            rust_ratio: Spread::of(
                rust.whole.iter().zip(&hand.whole).map(|(rust, hand)| rust / hand).collect(),
            ),
            rust_posting_us: middle(&rust.posting),
            by_hand_posting_us: middle(&hand.posting),
            rust_naps: middle(&rust.naps),
            rust_naps_us: middle(&rust.napped),
            by_hand_naps: middle(&hand.naps),
            by_hand_naps_us: middle(&hand.napped),
            rust_operations: rust.operations,
            by_hand_operations: hand.operations,
        }
    }

    fn name(&self) -> String {
        let processes = if self.processes == 1 { "1 process" } else { "2 processes" };
        match self.gpus.filter(|[one, other]| one != other) {
            Some([one, other]) => format!("GPU {one} and {other}, {processes}, {}", self.shape.name()),
            None => format!("{processes}, {}", self.shape.name()),
        }
    }

    /// What an exchange takes.
    fn whole(&self) -> Vec<String> {
        let [rust, hand] = [self.rust_us, self.by_hand_us].map(number);
        let [by_rust, by_hand] = [self.rust_operations, self.by_hand_operations].map(number);
        vec![self.name(), rust, hand, self.rust_ratio.text(), by_rust, by_hand]
    }

    /// Whose part of it is how large.
    fn parts(&self) -> Vec<String> {
        let [rust, hand] = [self.rust_posting_us, self.by_hand_posting_us].map(number);
        let naps = |naps, us| format!("{naps:.2} naps, {us:.2}");
        let of_rust = naps(self.rust_naps, self.rust_naps_us);
        vec![self.name(), rust, hand, of_rust, naps(self.by_hand_naps, self.by_hand_naps_us)]
    }
}

//! `gdsync bench first`: the first post of each kind, on a fresh stream and with fresh objects, beside the
//! hundredth: on a software stream, and on a GPU's where there is one.
//!
//! Each run is a process of its own, so that it has the very first post of a context, too. The runs begin
//! with different kinds.

mod by_hand;
mod kinds;

use super::outcome::{self, Outcome};
use super::{Spread, gpu::Gpu, median, micros_since};
use by_hand::ByHand;
use gdsync::{SoftStream, Stream, cuda};
use gdsync_cli::child;
use gdsync_cli::cli::{BenchFirstOptions, BenchOptions};
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Values};
use kinds::{KINDS, Kind, POSTS};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs on each kind of stream.
const RUNS: usize = 10;
/// The posts around the hundredth whose median it is.
const HUNDREDTH: std::ops::RangeInclusive<usize> = 89..=109;

/// What a run's process has found.
#[derive(Debug, Serialize, Deserialize)]
struct Run {
    /// What the stream is.
    on: String,
    /// How long the process' first stream took to make.
    stream_us: f64,
    /// In the order of the posts.
    kinds: Vec<Played>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Played {
    what: String,
    /// Each post's time.
    us: Vec<f64>,
    /// Values that were looked at, and were as they were sent.
    checked: u64,
}

#[derive(Debug, Serialize)]
struct Table {
    on: String,
    runs: usize,
    posts: usize,
    /// All of them were as they were sent: one that is not ends the bench.
    values_checked: u64,
    /// Median of the time that a process' first stream takes to make.
    first_stream_us: f64,
    rows: Vec<Row>,
}

/// A kind of post. Medians over the runs.
#[derive(Debug, Serialize)]
struct Row {
    what: String,
    first_us: f64,
    hundredth_us: f64,
    /// Of the times of one run: the median, and the ends.
    ratio: f64,
    least_ratio: f64,
    most_ratio: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut tables = vec![table(options, None)?];
    if cuda::device_count().is_ok_and(|count| options.gpu() < count) {
        tables.push(table(options, Some(options.gpu()))?);
    }
    let outcome = Outcome::new(&tables, tables.iter().map(Table::shown))?;
    Ok(tables.iter().map(Table::chart).fold(outcome, Outcome::chart))
}

/// One run, in this process. Writes what it has found.
pub(crate) fn run_one(options: &BenchFirstOptions) -> Result<(), Failure> {
    let start = Instant::now();
    let run = match options.gpu {
        None => {
            drop(Stream::new(SoftStream::new()?)?);
            let stream_us = micros_since(start);
            let make = || Ok(Stream::new(SoftStream::new()?)?);
            Run { on: "a software stream".to_owned(), stream_us, kinds: play(options, make)? }
        }
        Some(ordinal) => {
            // The context is the program's; of the rest, the first stream's part is measured.
            let context = cuda::context(ordinal)?;
            let start = Instant::now();
            let gpu = Gpu::new(ordinal)?;
            let stream_us = micros_since(start);
            let make = || Ok(Stream::new(gdsync::CudaStream::new(context.new_stream()?)?)?);
            Run { on: gpu.name()?, stream_us, kinds: play(options, make)? }
        }
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&run)?)?)
}

/// Every kind, each on a stream of its own, from the run's first kind on.
fn play<B: ByHand>(
    options: &BenchFirstOptions,
    make: impl Fn() -> Result<Stream<B>, Failure>,
) -> Result<Vec<Played>, Failure> {
    let begin = options.run as usize % RUNS * KINDS.len() / RUNS;
    let turn = |turn: usize| KINDS[(begin + turn) % KINDS.len()];
    (0..KINDS.len()).map(turn).map(|kind: Kind| kind.play(options.hca.as_ref(), &make()?)).collect()
}

fn table(options: &BenchOptions, gpu: Option<u32>) -> Result<Table, Failure> {
    let runs: Vec<Run> =
        interrupt::rounds(0..RUNS).map(|run| in_a_process(options, gpu, run)).collect::<Result<_, _>>()?;
    let the_very_first = runs.iter().filter_map(|run| run.kinds.first()).collect();
    let mut rows = vec![Row::new("the very first post of a process", the_very_first)];
    for kind in KINDS {
        let played = runs.iter().flat_map(|run| &run.kinds).filter(|played| played.what == kind.name());
        rows.push(Row::new(kind.name(), played.collect()));
    }
    let values_checked = runs.iter().flat_map(|run| &run.kinds).map(|played| played.checked).sum();
    Ok(Table {
        on: runs.first().map(|run| run.on.clone()).unwrap_or_default(),
        runs: runs.len(),
        posts: POSTS,
        values_checked,
        first_stream_us: median(runs.iter().map(|run| run.stream_us).collect()),
        rows,
    })
}

fn in_a_process(options: &BenchOptions, gpu: Option<u32>, run: usize) -> Result<Run, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench-first", "--run", &run.to_string()]).stdin(Stdio::null()).stderr(Stdio::inherit());
    if let Some(gpu) = gpu {
        command.args(["--gpu", &gpu.to_string()]);
    }
    if let Some(hca) = &options.hca {
        command.args(["--hca", &hca.to_string()]);
    }
    child::dies_with_this_process(&mut command);
    let output = command.output().map_err(|error| format!("cannot start the process of a run: {error}"))?;
    if !output.status.success() {
        return Err(child::failure(format_args!("the process of run {run}"), output.status));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

impl Row {
    fn new(what: &str, runs: Vec<&Played>) -> Self {
        let first: Vec<f64> = runs.iter().filter_map(|run| run.us.first().copied()).collect();
        let hundredth: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.us.get(HUNDREDTH))
            .map(|around| median(around.to_vec()))
            .collect();
        let ratios = first.iter().zip(&hundredth).map(|(first, later)| first / later);
        let Spread { median: ratio, least, most } = Spread::of(ratios.collect());
        Row {
            what: what.to_owned(),
            ratio,
            least_ratio: least,
            most_ratio: most,
            first_us: median(first),
            hundredth_us: median(hundredth),
        }
    }

    fn cells(&self) -> Vec<String> {
        let times = [self.first_us, self.hundredth_us].map(|us| format!("{us:.2}"));
        let ratios = [self.ratio, self.least_ratio, self.most_ratio].map(|ratio| format!("{ratio:.1}"));
        [vec![self.what.clone()], times.to_vec(), ratios.to_vec()].concat()
    }
}

impl Table {
    fn shown(&self) -> outcome::Table {
        let Table { on, runs, first_stream_us, .. } = self;
        let heading = format!("{on}, {runs} RUNS; THE FIRST STREAM TAKES {first_stream_us:.0} µs");
        let header = [heading.as_str(), "FIRST µs", "HUNDREDTH µs", "RATIO", "FROM", "TO"];
        outcome::Table::new(&header, self.rows.iter().map(Row::cells).collect())
    }

    fn chart(&self) -> Chart {
        let column = |name: &str, pick: fn(&Row) -> f64| Values::new(name, self.rows.iter().map(pick));
        Chart {
            title: format!("The first post and the hundredth, {}", self.on),
            content: Content::Categories {
                x: Axis::new("Median time, µs", Scale::Linear),
                names: self.rows.iter().map(|row| row.what.clone()).collect(),
                series: vec![
                    column("first", |row| row.first_us),
                    column("hundredth", |row| row.hundredth_us),
                ],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_first_post_beside_those_around_the_hundredth() {
        let played = |first: f64, later: f64| {
            let mut us = vec![1000.0; POSTS];
            us[0] = first;
            us[89..].iter_mut().for_each(|time| *time = later);
            // One that was interrupted.
            us[95] = 9999.0;
            Played { what: "x".to_owned(), us, checked: 1 }
        };
        let runs = [played(8.0, 2.0), played(3.0, 3.0), played(20.0, 1.0)];
        let row = Row::new("x", runs.iter().collect());
        assert_eq!((row.first_us, row.hundredth_us), (8.0, 2.0));
        assert_eq!((row.ratio, row.least_ratio, row.most_ratio), (4.0, 1.0, 20.0));
    }
}

//! `gdsync bench first`: the first post of each kind, on a fresh stream with fresh objects, beside the hundredth; on a
//! software stream, and on a GPU's if there is one.
//!
//! Each run is a separate process, so that it includes the very first post of a context. The runs begin with different
//! kinds.

mod kinds;

use super::gpu::{Gpu, by_hand::Bare};
use super::table::{MEDIAN_RATIO, Outcome, Row, Table};
use super::{MEDIAN_US, in_a_process, median, micros_since};
use gdsync::{SoftStream, Stream, cuda};
use gdsync_cli::cli::{BenchOptions, Process};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use gdsync_cli::{child, interrupt};
use kinds::{Link, POSTS, PostKind, kinds};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::time::Instant;

const RUNS: usize = 10;
/// The posts whose median counts as the hundredth.
const HUNDREDTH: std::ops::RangeInclusive<usize> = 89..=109;

#[derive(Debug, Serialize, Deserialize)]
struct Options {
    run: usize,
    /// The GPU; none for a software stream.
    gpu: Option<u32>,
    hca: Option<Hca>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    on: String,
    /// The time to create the process's first stream.
    stream_us: f64,
    kinds: Vec<Played>,
}

/// A kind of post, and the time of each. All values arrived as sent; a wrong one ends the benchmark.
type Played = (String, Vec<f64>);

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = cuda::device_count().is_ok_and(|count| options.gpu() < count).then(|| options.gpu());
    let mut all = Outcome::new(Vec::<Row>::new(), []);
    let mut json = Vec::new();
    for gpu in [Some(None), gpu.map(Some)].into_iter().flatten() {
        let runs: Vec<Run> = interrupt::rounds(0..RUNS)
            .map(|run| {
                let options = Options { run, gpu, hca: options.hca.clone() };
                in_a_process(&format!("the process of run {run}"), Process::BenchFirst, &options)
            })
            .collect::<Result<_, _>>()?;
        let on = runs.first().map(|run| run.on.clone()).unwrap_or_default();
        let first_stream = median(runs.iter().map(|run| run.stream_us));
        let posts = || runs.iter().flat_map(|run| &run.kinds);
        let the_very_first = runs.iter().filter_map(|run| run.kinds.first());
        let mut rows = vec![row("the very first post of a process", the_very_first)];
        for (name, ..) in kinds::<SoftStream>() {
            rows.push(row(name, posts().filter(|(what, _)| what == name)));
        }
        let heading = format!("{on}, {} RUNS; THE FIRST STREAM TAKES {first_stream:.0} µs", runs.len());
        all.tables
            .push(Table::new(&[&heading, "FIRST µs", "HUNDREDTH µs", MEDIAN_RATIO, "FROM", "TO"], &rows));
        let series = [("first", "first_us"), ("hundredth", "hundredth_us")];
        all = all.bars(format!("The first post and the hundredth, {on}"), MEDIAN_US, &rows, &series);
        let checked: usize = posts().map(|(_, us)| us.len()).sum();
        let table = Row::default().key("on", on).key("runs", runs.len()).key("posts", POSTS);
        let table = table.key("values_checked", checked).key("first_stream_us", first_stream);
        json.push(table.key("rows", rows));
    }
    all.json = json.into();
    Ok(all)
}

/// Performs one run in this process, and writes its results.
pub(crate) fn run_one() -> Result<(), Failure> {
    let options: Options = child::options()?;
    let start = Instant::now();
    let run = match options.gpu {
        None => {
            drop(Stream::new(SoftStream::new()?)?);
            let stream_us = micros_since(start);
            let make = || Ok(Stream::new(SoftStream::new()?)?);
            Run { on: "a software stream".to_owned(), stream_us, kinds: play(&options, make)? }
        }
        Some(ordinal) => {
            // The context belongs to the program; the first stream's share of the rest is measured.
            let context = cuda::context(ordinal)?;
            let start = Instant::now();
            let gpu = Gpu::new(ordinal)?;
            let stream_us = micros_since(start);
            let make = || Ok(Stream::new(gdsync::CudaStream::new(context.new_stream()?)?)?);
            Run { on: gpu.name()?, stream_us, kinds: play(&options, make)? }
        }
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&run)?)?)
}

/// Performs every kind, each on a separate stream, from the run's first kind on.
fn play<B: Bare>(
    options: &Options,
    make: impl Fn() -> Result<Stream<B>, Failure>,
) -> Result<Vec<Played>, Failure> {
    let mut kinds = kinds();
    let begin = options.run % RUNS * kinds.len() / RUNS;
    kinds.rotate_left(begin);
    let play = |(name, needs, play): PostKind<B>| -> Result<Played, Failure> {
        let stream = make()?;
        let link = Link::new(options.hca.as_ref(), needs)?;
        Ok((name.to_owned(), play(&link, &stream)?))
    };
    kinds.into_iter().map(play).collect()
}

/// Returns a kind's row: medians over the runs, and the ratios of each run's times.
fn row<'a>(what: &str, runs: impl Iterator<Item = &'a Played>) -> Row {
    let times = |(_, us): &Played| Some((*us.first()?, median(us.get(HUNDREDTH)?.iter().copied())));
    let times: Vec<(f64, f64)> = runs.filter_map(times).collect();
    let ratios: Vec<f64> = times.iter().map(|(first, later)| first / later).collect();
    Row::named(what)
        .number("first_us", median(times.iter().map(|both| both.0)), 2)
        .number("hundredth_us", median(times.iter().map(|both| both.1)), 2)
        .ratios(&ratios, 1)
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
            // An interrupted one.
            us[95] = 9999.0;
            ("x".to_owned(), us)
        };
        let runs = [played(8.0, 2.0), played(3.0, 3.0), played(20.0, 1.0)];
        let row = row("x", runs.iter());
        let keys = ["first_us", "hundredth_us", "ratio", "least_ratio", "most_ratio"];
        assert_eq!(keys.map(|key| row.get(key)), [8.0, 2.0, 4.0, 1.0, 20.0]);
    }
}

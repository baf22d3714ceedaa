//! Measurements, each beside a reference in the same run.

#[deny(unsafe_code)]
mod all;
#[deny(unsafe_code)]
mod alltoall;
#[deny(unsafe_code)]
mod batch;
mod between;
#[deny(unsafe_code)]
mod card;
#[deny(unsafe_code)]
mod checked;
#[deny(unsafe_code)]
mod cq;
mod device;
mod exchange;
#[deny(unsafe_code)]
mod fanout;
pub(crate) mod first;
mod gpu;
mod graph;
mod memops;
mod overlap;
#[deny(unsafe_code)]
mod page;
#[deny(unsafe_code)]
mod pair;
#[deny(unsafe_code)]
mod persistent;
#[deny(unsafe_code)]
mod plan;
mod post;
mod quiet;
#[deny(unsafe_code)]
mod ranks;
#[deny(unsafe_code)]
pub(crate) mod scale;
#[deny(unsafe_code)]
mod table;
mod turnaround;

pub(crate) use exchange::run_peer as run_exchange_peer;
pub(crate) use table::median;

use crate::draw;
use gdsync_cli::cli::{self, BenchOptions, Benchmark, Process};
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use gdsync_cli::{child, progress, text};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::process::Stdio;
use std::time::Instant;
use table::Outcome;

/// What most pictures show.
const MEDIAN_US: &str = "Median time, µs";

/// Measures, prints what was found, and draws it where that is asked for.
///
/// # Errors
/// A file that cannot be written, before anything is measured; why a benchmark failed.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let picture = options.plot.as_deref().map(Destination::new).transpose()?;
    let page = options.html.as_deref().map(Destination::new).transpose()?;
    if options.what == Benchmark::All {
        return all::run(options, page);
    }
    let outcome = measured(options.what, options)?;
    text::print(options.json, &outcome.json, || outcome.text())?;
    if let Some(picture) = picture {
        picture.write(&draw::svg(&outcome.charts)?)?;
    }
    match page {
        Some(page) => page.write(&page::page(&[(options.what, Ok(outcome))])?),
        None => Ok(()),
    }
}

/// Measures one benchmark, and shows meanwhile that it runs.
fn measured(what: Benchmark, options: &BenchOptions) -> Result<Outcome, Failure> {
    progress::show(options.json, format!("bench {}", cli::word(&what)));
    let outcome = match what {
        Benchmark::All => Err("all benchmarks are no benchmark of their own".into()),
        Benchmark::Card => card::run(options),
        Benchmark::Checked => checked::run(options),
        Benchmark::Cq => cq::run(options),
        Benchmark::Device => device::run(options),
        Benchmark::Alltoall => alltoall::run(options),
        Benchmark::Scale => scale::run(options),
        Benchmark::Persistent => persistent::run(options),
        Benchmark::Fanout => fanout::run(options),
        Benchmark::First => first::run(options),
        Benchmark::Batch => batch::run(options),
        Benchmark::Memops => memops::run(options),
        Benchmark::Plan => plan::run(options),
        Benchmark::Turnaround if options.gpu.as_ref().is_some_and(|list| list.single().is_none()) => {
            between::run(options)
        }
        Benchmark::Turnaround => turnaround::run(options),
        Benchmark::Quiet => quiet::run(options),
        Benchmark::Graph => graph::run(options),
        Benchmark::Exchange => exchange::run(options),
        Benchmark::Post => post::run(options),
        Benchmark::Overlap => overlap::run(options),
    };
    progress::clear();
    outcome
}

fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// How long a call takes, in µs.
fn timed(call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    call()?;
    Ok(micros_since(start))
}

/// What a process of this program, `what`, has found: it writes it as JSON.
fn in_a_process<T: DeserializeOwned>(
    what: &str,
    process: Process,
    options: &impl Serialize,
) -> Result<T, Failure> {
    let mut command = child::of(process)?;
    command.stdout(Stdio::piped());
    let (mut process, _input) = child::start(command, what, options)?;
    let mut found = Vec::new();
    process.0.stdout.take().map_or(Ok(0), |mut output| output.read_to_end(&mut found))?;
    match process.0.wait()? {
        status if status.success() => Ok(serde_json::from_slice(&found)?),
        status => Err(child::failure(format_args!("{what}"), status)),
    }
}

/// Measures every way in each round. Another one is the first in each: the first may find caches colder.
fn in_turns<R: Copy, T: Copy + Default, const WAYS: usize>(
    rounds: impl IntoIterator<Item = R>,
    mut measure: impl FnMut(usize, R) -> Result<T, Failure>,
) -> Result<Vec<[T; WAYS]>, Failure> {
    let by_all = |(number, round)| {
        let mut all = [T::default(); WAYS];
        for way in (0..WAYS).map(|turn| (turn + number) % WAYS) {
            all[way] = measure(way, round)?;
        }
        Ok(all)
    };
    rounds.into_iter().enumerate().map(by_all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_is_the_first_in_each_round() {
        let mut order = Vec::new();
        let measured: Vec<[u32; 3]> = in_turns(5..8, |way, round| {
            order.push(way);
            Ok(10 * round + way as u32)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(measured, [[50, 51, 52], [60, 61, 62], [70, 71, 72]]);
    }
}

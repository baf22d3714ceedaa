//! Benchmarks, each beside a reference in the same run.

#[deny(unsafe_code)]
mod alltoall;
#[deny(unsafe_code)]
mod batch;
#[deny(unsafe_code)]
mod card;
mod card_gpu;
pub(crate) mod device;
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
mod post;
mod quiet;
#[deny(unsafe_code)]
mod ranks;
#[deny(unsafe_code)]
pub(crate) mod scale;
#[deny(unsafe_code)]
mod table;
mod turnaround;
#[deny(unsafe_code)]
mod waits;

pub(crate) use exchange::run_peer as run_exchange_peer;
pub(crate) use table::median;

use crate::draw;
use gdsync_cli::cli::{self, BenchOptions, Benchmark, Process};
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::{AlreadySaid, Failure};
use gdsync_cli::{child, interrupt, json, progress, text};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::Read;
use std::process::Stdio;
use std::time::Instant;
use table::Outcome;

const MEDIAN_US: &str = "Median time, µs";

/// Measures, prints the results, and draws them if asked to.
///
/// # Errors
/// A file that cannot be written, before anything is measured; a benchmark's error.
pub(crate) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let picture = options.plot.as_deref().map(Destination::new).transpose()?;
    let page = options.html.as_deref().map(Destination::new).transpose()?;
    if options.what == Benchmark::All {
        return run_all(options, page);
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
        Benchmark::Card => match &options.gpu {
            Some(gpus) => card_gpu::run(options, gpus),
            None => card::run(options),
        },
        Benchmark::Checked => waits::run_checked(options),
        Benchmark::Cq => waits::run(options),
        Benchmark::Device => device::run(options),
        Benchmark::Alltoall => alltoall::run(options),
        Benchmark::Scale => scale::run(options),
        Benchmark::Persistent => persistent::run(options),
        Benchmark::Fanout => fanout::run(options),
        Benchmark::First => first::run(options),
        Benchmark::Batch => batch::run(options),
        Benchmark::Memops => memops::run(options),
        Benchmark::Plan => batch::run_plan(options),
        Benchmark::Turnaround if options.gpu.as_ref().is_some_and(|list| list.single().is_none()) => {
            turnaround::run_between(options)
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

fn timed(call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    call()?;
    Ok(micros_since(start))
}

/// Starts a process of this program, described as `what`, and returns its results, which it writes as JSON.
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

/// Measures every variant in each round. The variants take turns in being first, as the first may find colder caches.
fn in_turns<R: Copy, T: Copy + Default, const VARIANTS: usize>(
    rounds: impl IntoIterator<Item = R>,
    mut measure: impl FnMut(usize, R) -> Result<T, Failure>,
) -> Result<Vec<[T; VARIANTS]>, Failure> {
    let by_all = |(number, round)| {
        let mut all = [T::default(); VARIANTS];
        for variant in (0..VARIANTS).map(|turn| (turn + number) % VARIANTS) {
            all[variant] = measure(variant, round)?;
        }
        Ok(all)
    };
    rounds.into_iter().enumerate().map(by_all).collect()
}

/// The benchmarks of `all`, in order. The others need a GPU, or a card of the system.
const ALL: [Benchmark; 9] = [
    Benchmark::Card,
    Benchmark::Checked,
    Benchmark::Plan,
    Benchmark::First,
    Benchmark::Exchange,
    Benchmark::Fanout,
    Benchmark::Persistent,
    Benchmark::Alltoall,
    Benchmark::Scale,
];

/// Runs them, prints each as it ends, and writes the page. The error of one is printed, and the others still run.
fn run_all(options: &BenchOptions, page: Option<Destination>) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for what in interrupt::rounds(ALL) {
        let outcome = measured(what, options);
        match &outcome {
            Err(error) => text::complain(format_args!("bench {}: {error}", cli::word(&what))),
            Ok(outcome) if !options.json => {
                text::print_text(&format!("bench {}\n{}\n", cli::word(&what), outcome.text()))?;
            }
            Ok(_) => {}
        }
        outcomes.push((what, outcome));
    }
    if options.json {
        json::print(&rows(&outcomes))?;
    }
    if let Some(page) = page {
        page.write(&page::page(&outcomes)?)?;
    }
    match outcomes.iter().any(|(_, outcome)| outcome.is_err()) {
        true => Err(AlreadySaid.into()),
        false => Ok(()),
    }
}

/// Returns each benchmark's name, with its results or its error.
fn rows(outcomes: &[(Benchmark, Result<Outcome, Failure>)]) -> Vec<Value> {
    let row = |(what, outcome): &(Benchmark, Result<Outcome, Failure>)| match outcome {
        Ok(outcome) => json!({ "benchmark": cli::word(what), "results": outcome.json }),
        Err(error) => json!({ "benchmark": cli::word(what), "error": json::reason(error) }),
    };
    outcomes.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_way_is_the_first_in_each_round() {
        let mut order = Vec::new();
        let measured: Vec<[u32; 3]> = in_turns(5..8, |variant, round| {
            order.push(variant);
            Ok(10 * round + variant as u32)
        })
        .unwrap();
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(measured, [[50, 51, 52], [60, 61, 62], [70, 71, 72]]);
    }

    #[test]
    fn a_benchmark_that_fails_is_there_with_its_error() {
        let outcomes =
            [(Benchmark::Card, Ok(Outcome::new(vec![1], []))), (Benchmark::Plan, Err("no".into()))];
        let card = json!({ "benchmark": "card", "results": [1] });
        assert_eq!(rows(&outcomes), [card, json!({ "benchmark": "plan", "error": { "message": "no" } })]);
    }
}

//! Measurements, each beside a reference in the same run.

mod all;
mod alltoall;
mod batch;
mod between;
mod card;
mod checked;
mod cq;
mod device;
mod exchange;
mod fanout;
pub(crate) mod first;
mod gpu;
mod graph;
mod memops;
mod outcome;
mod overlap;
mod page;
mod pair;
mod persistent;
mod plan;
mod post;
mod quiet;
pub(crate) mod scale;
mod turnaround;

pub(crate) use exchange::run_peer as run_exchange_peer;

use crate::draw;
use gdsync_cli::cli::{self, BenchOptions, Benchmark};
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Values};
use gdsync_cli::{progress, text};
use outcome::{Outcome, Table};
use serde::Serialize;
use std::time::Instant;

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

/// The outcome of a benchmark with one table.
fn outcome(results: &impl Serialize, header: &[&str], rows: Vec<Vec<String>>) -> Result<Outcome, Failure> {
    Outcome::new(results, [Table::new(header, rows)])
}

/// The outcome of a benchmark whose rows compare. `titles`: of the table, of our column, and of the reference's;
/// `picture`: of the picture.
fn compared(
    results: &impl Serialize,
    titles: [&str; 3],
    picture: &str,
    rows: &[Comparison],
) -> Result<Outcome, Failure> {
    let [what, ours, reference] = titles;
    let cells = rows.iter().map(Comparison::row).collect();
    let chart = comparison_chart(picture, [ours, reference], rows.iter());
    Ok(outcome(results, &[what, ours, reference, "RATIO"], cells)?.chart(chart))
}

/// A picture of comparisons, one under the other. `columns`: the titles of ours and of the reference's.
fn comparison_chart<'a>(
    title: &str,
    columns: [&str; 2],
    rows: impl Iterator<Item = &'a Comparison> + Clone,
) -> Chart {
    let [ours, reference] =
        columns.map(|column| column.trim_end_matches(" µs").to_lowercase().replace("gpu", "GPU"));
    Chart {
        title: title.to_owned(),
        content: Content::Categories {
            x: Axis::new("Median time, µs", Scale::Linear),
            names: rows.clone().map(|row| row.what.clone()).collect(),
            series: vec![
                Values::new(ours, rows.clone().map(|row| row.gdsync_us)),
                Values::new(reference, rows.map(|row| row.reference_us)),
            ],
        },
    }
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

/// Measures ours and the reference. The caller alternates which of them is first: the first may
/// find caches colder.
fn in_turn(
    ours_first: bool,
    ours: impl FnOnce() -> Result<f64, Failure>,
    reference: impl FnOnce() -> Result<f64, Failure>,
) -> Result<(f64, f64), Failure> {
    if ours_first {
        Ok((ours()?, reference()?))
    } else {
        let reference = reference()?;
        Ok((ours()?, reference))
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Of several runs.
#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: Vec<f64>) -> Self {
        let (least, most) = (
            values.iter().copied().fold(f64::NAN, f64::min),
            values.iter().copied().fold(f64::NAN, f64::max),
        );
        Spread { median: median(values), least, most }
    }

    fn text(&self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}

/// Two ways of doing the same, measured in turns.
#[derive(Clone, Debug, Serialize)]
struct Comparison {
    what: String,
    /// Median of ours, in µs.
    gdsync_us: f64,
    /// Median of the reference, in µs.
    reference_us: f64,
    /// Median over the rounds of ours divided by the reference.
    ratio: f64,
}

impl Comparison {
    /// `pairs`: ours and the reference's, in µs, each pair measured side by side.
    fn new(what: impl Into<String>, pairs: Vec<(f64, f64)>) -> Self {
        let column = |pick: fn(&(f64, f64)) -> f64| median(pairs.iter().map(pick).collect());
        Comparison {
            what: what.into(),
            gdsync_us: column(|pair| pair.0),
            reference_us: column(|pair| pair.1),
            ratio: column(|pair| pair.0 / pair.1),
        }
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.what.clone(),
            format!("{:.2}", self.gdsync_us),
            format!("{:.2}", self.reference_us),
            format!("{:.2}", self.ratio),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_that_of_the_rounds_and_not_of_the_medians() {
        let comparison = Comparison::new("x", vec![(2.0, 1.0), (20.0, 10.0), (9.0, 3.0)]);
        assert_eq!((comparison.gdsync_us, comparison.reference_us, comparison.ratio), (9.0, 3.0, 2.0));
        assert!(median(Vec::new()).is_nan());
    }
}

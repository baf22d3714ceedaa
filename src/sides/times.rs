//! Times that were measured, as results show them.

use super::timing::Timing;
use crate::plot::{self, Axis, Content, Scale, Series};
use serde::Serialize;

/// Bars of a histogram.
const BINS: usize = 80;

/// Titles of columns, in the order of [`Times::cells`].
pub(crate) const TITLES: [&str; 6] = ["MIN µs", "P50 µs", "P90 µs", "P99 µs", "P99.9 µs", "MAX µs"];
/// Names of values, in the order of [`Times::values`].
pub(crate) const NAMES: [&str; 6] = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"];

/// The least, the most, and percentiles, in µs.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    min_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
    /// Each time in µs, and how often it was measured.
    #[serde(skip)]
    recorded: Vec<(f64, u64)>,
}

impl Times {
    pub(crate) fn new(timing: &Timing) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        Times {
            min_us: us(timing.shortest),
            p50_us: us(timing.quantile(0.5)),
            p90_us: us(timing.quantile(0.9)),
            p99_us: us(timing.quantile(0.99)),
            p999_us: us(timing.quantile(0.999)),
            max_us: us(timing.longest),
            recorded: timing.recorded().map(|(ns, count)| (us(ns), count)).collect(),
        }
    }

    pub(crate) fn values(&self) -> [f64; 6] {
        [self.min_us, self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us]
    }

    pub(crate) fn cells(&self) -> [String; 6] {
        self.values().map(|value| format!("{value:.2}"))
    }
}

/// Lines of times by size. `title`: of the axis of times.
pub(crate) fn lines<'a>(title: &str, runs: impl Iterator<Item = (u64, &'a Times)> + Clone) -> Content {
    let line = |name: &str, pick: fn(&Times) -> f64| {
        Series::new(name, runs.clone().map(|(size, times)| (size as f64, pick(times))))
    };
    Content::Lines {
        x: Axis::new("Message", Scale::Sizes),
        y: Axis::new(title, Scale::Log),
        series: vec![
            line("P50", |times| times.p50_us),
            line("P90", |times| times.p90_us),
            line("P99", |times| times.p99_us),
            line("P99.9", |times| times.p999_us),
            line("least", |times| times.min_us),
            line("most", |times| times.max_us),
        ],
    }
}

/// A histogram of the times of one run. `title`: of the axis of times.
pub(crate) fn histogram(title: &str, times: &Times) -> Content {
    let marks =
        [("P50", times.p50_us), ("P90", times.p90_us), ("P99", times.p99_us), ("P99.9", times.p999_us)];
    Content::Histogram {
        x: Axis::new(title, Scale::Log),
        bins: plot::bins(&times.recorded, BINS),
        marks: marks.map(|(name, value)| (name.to_owned(), value)).to_vec(),
    }
}

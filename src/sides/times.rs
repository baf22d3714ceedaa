//! Times that were measured, as results show them.

use super::timing::Timing;
use crate::plot::{self, Axis, Content, Scale, Series};
use serde::{Serialize, Serializer};

/// Bars of a histogram.
const BINS: usize = 80;

/// Titles of columns, names of values, and the values of [`Times`], in their order.
pub(crate) const TITLES: [&str; 6] = ["MIN µs", "P50 µs", "P90 µs", "P99 µs", "P99.9 µs", "MAX µs"];
pub(crate) const NAMES: [&str; 6] = ["min_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
/// Lines of a picture, and the places of their values. The percentiles are the marks of a histogram.
const LINES: [(&str, usize); 6] =
    [("P50", 1), ("P90", 2), ("P99", 3), ("P99.9", 4), ("least", 0), ("most", 5)];

/// The least, the most, and percentiles, in µs.
#[derive(Debug)]
pub(crate) struct Times {
    values: [f64; 6],
    /// Each time in µs, and how often it was measured.
    recorded: Vec<(f64, u64)>,
}

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(NAMES.iter().zip(self.values))
    }
}

impl Times {
    pub(crate) fn new(timing: &Timing) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(|part| timing.quantile(part));
        Times {
            values: [timing.shortest, p50, p90, p99, p999, timing.longest].map(us),
            recorded: timing.recorded().map(|(ns, count)| (us(ns), count)).collect(),
        }
    }
}

/// Lines of times by size. `title`: of the axis of times.
pub(crate) fn lines<'a>(title: &str, runs: impl Iterator<Item = (u64, &'a Times)> + Clone) -> Content {
    let line =
        |(name, at)| Series::new(name, runs.clone().map(|(size, times)| (size as f64, times.values[at])));
    let (x, y) = (Axis::new("Message", Scale::Sizes), Axis::new(title, Scale::Log));
    Content::Lines { x, y, series: LINES.map(line).to_vec() }
}

/// A histogram of the times of one run. `title`: of the axis of times.
pub(crate) fn histogram(title: &str, times: &Times) -> Content {
    Content::Histogram {
        x: Axis::new(title, Scale::Log),
        bins: plot::bins(&times.recorded, BINS),
        marks: LINES[..4].iter().map(|(name, at)| ((*name).to_owned(), times.values[*at])).collect(),
    }
}

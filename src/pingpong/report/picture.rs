//! Pictures of what a pingpong measured.

use super::Report;
use crate::cli;
use crate::plot::{Axis, Chart, Content, Scale, Series};
use crate::sides::times;

/// The axis of latencies.
const LATENCY: &str = "Half round trip, µs";

/// Of a sweep, latency and bandwidth by size; of a single run, a histogram.
pub(in crate::pingpong) fn charts(reports: &[Report], is_sweep: bool) -> Vec<Chart> {
    match reports {
        [report] if !is_sweep => vec![Chart {
            title: format!("Round trips of {}, {}", crate::size::text(report.size_bytes), what(report)),
            content: times::histogram(LATENCY, &report.times),
        }],
        _ => sweep(reports),
    }
}

/// What the runs have in common, in a few words.
fn what(report: &Report) -> String {
    let on = report.gpu.as_deref().unwrap_or("host memory");
    format!("{}, {}, {on}", report.card, cli::word(&report.op))
}

fn sweep(reports: &[Report]) -> Vec<Chart> {
    let chart = |title: &str, content| {
        let title =
            reports.first().map_or_else(|| title.to_owned(), |report| format!("{title}, {}", what(report)));
        Chart { title, content }
    };
    let points = reports.iter().map(|report| (report.size_bytes as f64, report.bytes_per_s / 1e6));
    let bandwidth = Content::Lines {
        x: Axis::new("Message", Scale::Sizes),
        y: Axis::new("Both directions together, MB/s", Scale::Log),
        series: vec![Series::new("both directions together", points)],
    };
    let latency = times::lines(LATENCY, reports.iter().map(|report| (report.size_bytes, &report.times)));
    vec![chart("Latency by size", latency), chart("Bandwidth by size", bandwidth)]
}

//! Pictures of what a pingpong measured.

use super::Report;
use crate::cli;
use crate::plot::{self, Axis, Chart, Content, Scale, Series};

/// Bars of a histogram.
const BINS: usize = 80;

/// Of a sweep, latency and bandwidth by size; of a single run, a histogram.
pub(in crate::pingpong) fn charts(reports: &[Report], is_sweep: bool) -> Vec<Chart> {
    match reports {
        [report] if !is_sweep => vec![histogram(report)],
        _ => sweep(reports),
    }
}

/// What the runs have in common, in a few words.
fn what(report: &Report) -> String {
    let on = report.gpu.as_deref().unwrap_or("host memory");
    format!("{}, {}, {on}", report.card, cli::word(&report.op))
}

fn sweep(reports: &[Report]) -> Vec<Chart> {
    let line = |name: &str, pick: fn(&Report) -> f64| {
        Series::new(name, reports.iter().map(|report| (report.size as f64, pick(report))))
    };
    let lines = |title: &str, y: &str, series| {
        let (x, y) = (Axis::new("Message", Scale::Sizes), Axis::new(y, Scale::Log));
        let title =
            reports.first().map_or_else(|| title.to_owned(), |report| format!("{title}, {}", what(report)));
        Chart { title, content: Content::Lines { x, y, series } }
    };
    let latency = vec![
        line("P50", |report| report.p50_us),
        line("P90", |report| report.p90_us),
        line("P99", |report| report.p99_us),
        line("P99.9", |report| report.p999_us),
        line("least", |report| report.min_us),
        line("most", |report| report.max_us),
    ];
    let bandwidth = vec![line("both directions together", |report| report.bytes_per_s / 1e6)];
    vec![
        lines("Latency by size", "Half round trip, µs", latency),
        lines("Bandwidth by size", "Both directions together, MB/s", bandwidth),
    ]
}

fn histogram(report: &Report) -> Chart {
    let marks =
        [("P50", report.p50_us), ("P90", report.p90_us), ("P99", report.p99_us), ("P99.9", report.p999_us)];
    Chart {
        title: format!("Round trips of {}, {}", crate::size::text(report.size), what(report)),
        content: Content::Histogram {
            x: Axis::new("Half round trip, µs", Scale::Log),
            bins: plot::bins(&report.times, BINS),
            marks: marks.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        },
    }
}

//! `gdsync bench net`: bandwidth, message rate and latency of messages posted by streams, between two sides on one or
//! two hosts.
//!
//! The sides meet like those of `gdsync pingpong` ([`crate::sides`]). One or both send messages (`flow.rs`; one at a
//! time in `side.rs`), each to a slot in the other side's memory (`lanes.rs`). Arrived messages are checked after the
//! measurement (`side.rs`).

mod flow;
mod lanes;
mod side;

use crate::cli::{self, NetMode, NetOperation, NetOptions, Process};
use crate::failure::Failure;
use crate::plot::Chart;
use crate::sides::report::{self, Setting};
use crate::sides::side::play;
use crate::sides::timing::{self, Times};
use crate::sides::{Channel, Measurement, Peer};
use crate::{size, text};
use lanes::{Direction, Moved};
use serde::Serialize;
use serde_json::{Value, json};
use side::Net;

impl Measurement for NetOptions {
    const COMMAND: &'static str = "bench net";
    const PEER: Process = Process::NetPeer;
    type Report = Report;

    fn play(&self, rank: u64, other: Peer, mut channel: Channel) -> Result<Report, Failure> {
        play(Net::new(self, rank, other, &mut channel), channel)
    }
}

const LATENCY: &str = "From post until completion, µs";

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    setting: Setting,
    mode: NetMode,
    operation: NetOperation,
    /// True if both sides send; rates are the sum of both directions.
    bidirectional: bool,
    qps: u64,
    /// Messages under way on a queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    /// Measured messages of all directions.
    messages: u64,
    /// Messages before the measured ones.
    warmup: u64,
    messages_per_s: f64,
    bytes_per_s: f64,
    /// Times from post until completion.
    #[serde(flatten)]
    times: Option<Times>,
    /// Memory operations of this side's stream for each message it sends; for latencies, including the warm-up.
    memory_operations_per_message: f64,
}

impl Report {
    /// `operations`: for each message that this side has sent.
    fn new(
        options: &NetOptions,
        setting: Setting,
        moved: &Moved,
        warmup: u64,
        times: Option<Times>,
        operations: f64,
    ) -> Self {
        let rate = |of: &Direction| of.messages() as f64 / of.took.as_secs_f64().max(1e-9);
        let messages_per_s = rate(&moved.own) + rate(&moved.other);
        Report {
            bytes_per_s: messages_per_s * setting.size_bytes as f64,
            setting,
            mode: options.mode,
            operation: options.operation,
            bidirectional: options.bidirectional,
            qps: options.qps,
            window: (options.mode != NetMode::Latency).then(|| options.window()),
            messages: moved.messages(),
            warmup,
            messages_per_s,
            times,
            memory_operations_per_message: operations,
        }
    }
}

impl report::Report for Report {
    const UNIT: &'static str = "messages";
    const TITLES: [&'static str; 4] = ["MESSAGES", "BANDWIDTH", "RATE", "MEMOPS/MSG"];
    const NAMES: [&'static str; 4] =
        ["messages", "bytes_per_s", "messages_per_s", "memory_operations_per_message"];

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn kind(&self) -> (String, Value) {
        let words = format!("RC {} {}", cli::word(&self.operation), cli::word(&self.mode));
        (words, json!({ "mode": self.mode, "operation": self.operation }))
    }

    fn heading(&self) -> String {
        let batch = self.setting.batch;
        let under_way = match self.window {
            Some(window) => {
                let queue_pairs = text::count(self.qps, "queue pair");
                format!("{queue_pairs}, {window} messages under way on each, {batch} posted at a time")
            }
            None => format!("one message under way, {batch} enqueued at a time"),
        };
        let kind = self.kind().0 + if self.bidirectional { " of both directions" } else { "" };
        self.setting.heading(&kind, "", &under_way, Self::UNIT)
    }

    /// Latencies by size, or a histogram for one size; otherwise bandwidth and rate by size.
    fn charts(reports: &[Self], is_sweep: bool) -> Vec<Chart> {
        let Some(first) = reports.first() else { return Vec::new() };
        let what = first.setting.what(&first.operation);
        if let (false, [Report { times: Some(one), setting, .. }]) = (is_sweep, reports) {
            let title = format!("Messages of {}, {what}", size::text(setting.size_bytes));
            return vec![Chart { title, content: timing::histogram(LATENCY, one) }];
        }
        if first.times.is_some() {
            let runs = reports.iter().filter_map(|one| Some((one.setting.size_bytes, one.times.as_ref()?)));
            return vec![Chart {
                title: format!("Latency by size, {what}"),
                content: timing::lines(LATENCY, runs),
            }];
        }
        let direction = if first.bidirectional { "both directions together" } else { "one direction" };
        let line = |title: &str, y: &str, pick: fn(&Self) -> f64| {
            report::by_size(format!("{title}, {what}"), y, direction, reports, pick)
        };
        let mut charts = vec![
            line("Bandwidth by size", "Bandwidth, MB/s", |report| report.bytes_per_s / 1e6),
            line("Rate by size", "Messages per second", |report| report.messages_per_s),
        ];
        if first.mode == NetMode::Rate {
            charts.reverse();
        }
        charts
    }
}

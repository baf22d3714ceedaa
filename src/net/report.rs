//! What a run has measured, and how it is shown.

use super::flow::{Direction, Moved};
use crate::cli::{self, NetMode, NetOperation, NetOptions, QueueChoice, Trigger};
use crate::failure::Failure;
use crate::placement::Layout;
use crate::plot::{Axis, Chart, Content, Scale, Series};
use crate::sides::times::{self, Times};
use crate::sides::{self, GpusOfSides, Timing, checked};
use crate::{size, text};
use serde::Serialize;
use std::time::Duration;

/// The axis of latencies.
const LATENCY: &str = "From post until completion, µs";

/// What was measured, and where.
pub(super) struct Measured<'a> {
    pub(super) card: &'a str,
    pub(super) gpus: Option<GpusOfSides>,
    /// The host of the other side, where that was started by itself.
    pub(super) server: Option<&'a str>,
    pub(super) doorbells: String,
    pub(super) moved: Moved,
    /// Elapsed time and CPU time of the process.
    pub(super) usage: (Duration, Duration),
    /// Memory operations of this side's stream, and for how many messages; of latencies, also in the warm-up.
    pub(super) operations: (u64, u64),
    pub(super) timing: &'a Timing,
}

/// The result, in the words of the JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    card: String,
    /// The host of the server, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    mode: NetMode,
    operation: NetOperation,
    /// Both sides begin messages; the rates are those of both together.
    bidirectional: bool,
    /// Queue pairs of each side.
    qps: u64,
    /// Messages that a queue pair has under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    /// Messages that are posted, or enqueued, at a time.
    batch: u64,
    procs: u64,
    trigger: Trigger,
    /// The GPUs that trigger, and that have the messages in their memory.
    gpu: Option<String>,
    /// Their numbers, one for each side.
    gpus: Option<[u32; 2]>,
    /// How doorbells reach the card; `card` where the stream rings none.
    doorbells: String,
    /// The interface that makes the queues.
    queues: QueueChoice,
    /// Whose memory the queues lie in.
    #[serde(flatten)]
    layout: Layout,
    size_bytes: u64,
    /// Messages that were measured, of all sides that begin them.
    messages: u64,
    /// The messages that were asked for, where the run was interrupted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_of: Option<u64>,
    messages_per_s: f64,
    bytes_per_s: f64,
    /// From post until completion.
    #[serde(flatten)]
    times: Option<Times>,
    /// Elapsed time of the measurement, and CPU time of this process meanwhile: all threads, user and system.
    wall_s: f64,
    cpu_s: f64,
    /// Memory operations of this side's stream for one message that it begins.
    memory_operations_per_message: f64,
    /// Every byte that has arrived was checked.
    verified: bool,
}

impl Report {
    pub(super) fn new(options: &NetOptions, measured: Measured<'_>) -> Self {
        let sides = &options.sides;
        let Moved { own, other } = &measured.moved;
        let (messages, size) = (measured.moved.messages(), options.size());
        let asked = sides.iters * if options.bidirectional { 2 } else { 1 };
        let rate = |of: &Direction| of.messages() as f64 / of.took.as_secs_f64().max(1e-9);
        let messages_per_s = rate(own) + rate(other);
        let is_latency = options.mode == NetMode::Latency;
        let (operations, begun) = measured.operations;
        Report {
            card: measured.card.to_owned(),
            server: measured.server.map(str::to_owned),
            mode: options.mode,
            operation: options.operation,
            bidirectional: options.bidirectional,
            qps: options.qps,
            window: (!is_latency).then(|| options.window()),
            batch: options.batch(),
            procs: sides.procs,
            trigger: sides.trigger,
            gpu: measured.gpus.as_ref().map(GpusOfSides::text),
            gpus: measured.gpus.as_ref().map(|gpus| gpus.sides),
            doorbells: measured.doorbells,
            queues: sides.queues,
            layout: sides.layout,
            size_bytes: size,
            messages,
            interrupted_of: (messages < asked && sides.duration.is_none()).then_some(asked),
            messages_per_s,
            bytes_per_s: messages_per_s * size as f64,
            times: (is_latency && own.messages() > 0).then(|| Times::new(measured.timing)),
            wall_s: measured.usage.0.as_secs_f64(),
            cpu_s: measured.usage.1.as_secs_f64(),
            memory_operations_per_message: operations as f64 / begun.max(1) as f64,
            verified: sides.check,
        }
    }

    /// What the runs of a sweep have in common.
    fn heading(&self) -> String {
        let between = match &self.server {
            Some(server) => format!("this side and {server}"),
            None if self.procs == 2 => "two processes".to_owned(),
            None => "two sides of one process".to_owned(),
        };
        let gpu = self.gpu.as_ref().map_or(String::new(), |gpu| format!(" of {gpu}, messages in GPU memory"));
        let under_way = match self.window {
            Some(window) => format!(
                "{}, {window} messages under way on each, {} posted at a time",
                text::count(self.qps, "queue pair"),
                self.batch
            ),
            None => format!("one message under way, {} enqueued at a time", self.batch),
        };
        let interrupted = self
            .interrupted_of
            .map_or_else(String::new, |all| format!(", INTERRUPTED before {all} messages"));
        format!(
            "RC {} {}{} between {between} on {}, triggered by the {}{gpu}, doorbells {}{}{}, {under_way}, {}{interrupted}\n",
            cli::word(&self.operation),
            cli::word(&self.mode),
            if self.bidirectional { " of both directions" } else { "" },
            self.card,
            cli::word(&self.trigger),
            self.doorbells,
            if self.queues == QueueChoice::Devx { ", queues made by commands" } else { "" },
            self.layout,
            checked(self.verified),
        )
    }

    fn row(&self) -> Vec<String> {
        let counts = [size::text(self.size_bytes), self.messages.to_string()];
        let times = self.times.iter().flat_map(Times::cells);
        let rest = [
            text::rate(self.bytes_per_s, "B"),
            text::rate(self.messages_per_s, "msg"),
            format!("{:.0}%", 100.0 * self.cpu_s / self.wall_s.max(1e-9)),
            format!("{:.2}", self.memory_operations_per_message),
        ];
        counts.into_iter().chain(times).chain(rest).collect()
    }

    /// In the order of [`csv`].
    fn values(&self) -> Vec<String> {
        let counts = [self.size_bytes.to_string(), self.messages.to_string()];
        let times = self.times.iter().flat_map(Times::values);
        let rest = [self.bytes_per_s, self.messages_per_s, self.cpu_s, self.wall_s];
        let numbers = times.chain(rest).chain([self.memory_operations_per_message]);
        counts.into_iter().chain(numbers.map(|number| format!("{number:.3}"))).collect()
    }
}

/// What the runs have in common, and a row for each. At the last of them an interrupted sweep has ended.
pub(super) fn table(reports: &[Report]) -> String {
    let has_times = reports.iter().any(|report| report.times.is_some());
    let times = if has_times { &times::TITLES[..] } else { &[] };
    let header = [&["SIZE", "MESSAGES"][..], times, &["BANDWIDTH", "RATE", "CPU", "MEMOPS/MSG"]].concat();
    let rows: Vec<_> = reports.iter().map(Report::row).collect();
    reports.last().map_or_else(String::new, Report::heading) + &text::table(&header, &rows)
}

/// A line of names, which are those in JSON, and a line for each run.
pub(super) fn csv(reports: &[Report]) -> String {
    let has_times = reports.iter().any(|report| report.times.is_some());
    let times = if has_times { format!("{},", times::NAMES) } else { String::new() };
    let names = format!(
        "size_bytes,messages,{times}bytes_per_s,messages_per_s,cpu_s,wall_s,memory_operations_per_message\n"
    );
    let lines = reports.iter().map(|report| report.values().join(",") + "\n");
    std::iter::once(names).chain(lines).collect()
}

/// What a server says of the runs with its client.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    client: &'a str,
    card: &'a str,
    mode: NetMode,
    operation: NetOperation,
    /// Bytes of the messages of each run.
    sizes_bytes: Vec<u64>,
    /// Messages that were measured in all runs.
    messages: u64,
    /// Every byte that has arrived was checked.
    verified: bool,
}

/// What a server says of its runs.
pub(super) fn verdict(client: &str, reports: &[Report]) -> Result<sides::Verdict, Failure> {
    let first = reports.first().ok_or("there was no run")?;
    let said = Verdict {
        client,
        card: &first.card,
        mode: first.mode,
        operation: first.operation,
        sizes_bytes: reports.iter().map(|report| report.size_bytes).collect(),
        messages: reports.iter().map(|report| report.messages).sum(),
        verified: reports.iter().all(|report| report.verified),
    };
    let text = format!(
        "RC {} {} with {client} on {}: {} messages, {}, {}\n",
        cli::word(&said.operation),
        cli::word(&said.mode),
        said.card,
        said.messages,
        size::each(&said.sizes_bytes),
        checked(said.verified),
    );
    Ok(sides::Verdict { json: serde_json::to_value(&said)?, text })
}

/// Latencies: by size, or a histogram of one size. Else bandwidth and rate by size.
pub(super) fn charts(reports: &[Report], is_sweep: bool) -> Vec<Chart> {
    let Some(first) = reports.first() else { return Vec::new() };
    let on = first.gpu.as_deref().unwrap_or("host memory");
    let what = format!("{}, {}, {on}", first.card, cli::word(&first.operation));
    if let (false, [Report { times: Some(one), size_bytes, .. }]) = (is_sweep, reports) {
        let title = format!("Messages of {}, {what}", size::text(*size_bytes));
        return vec![Chart { title, content: times::histogram(LATENCY, one) }];
    }
    let line = |title: &str, axis: &str, name: &str, pick: fn(&Report) -> f64| Chart {
        title: format!("{title}, {what}"),
        content: Content::Lines {
            x: Axis::new("Message", Scale::Sizes),
            y: Axis::new(axis, Scale::Log),
            series: vec![Series::new(
                name,
                reports.iter().map(|report| (report.size_bytes as f64, pick(report))),
            )],
        },
    };
    let direction = if first.bidirectional { "both directions together" } else { "one direction" };
    let mut charts = vec![
        line("Bandwidth by size", "Bandwidth, MB/s", direction, |report| report.bytes_per_s / 1e6),
        line("Rate by size", "Messages per second", direction, |report| report.messages_per_s),
    ];
    if first.times.is_some() {
        let runs = reports.iter().filter_map(|report| Some((report.size_bytes, report.times.as_ref()?)));
        let latency = times::lines(LATENCY, runs);
        charts = vec![Chart { title: format!("Latency by size, {what}"), content: latency }];
    } else if first.mode == NetMode::Rate {
        charts.reverse();
    }
    charts
}

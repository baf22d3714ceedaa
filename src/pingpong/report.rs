//! What a pingpong measured.

mod picture;

pub(super) use picture::charts;

use crate::cli::{self, Operation, PingpongOptions, QueueChoice, Service, Trigger};
use crate::failure::Failure;
use crate::placement::Layout;
use crate::sides::times::{self, Times};
use crate::sides::{self, GpusOfSides, Timing, checked};
use crate::text;
use serde::Serialize;
use std::time::Duration;

/// What was measured, and where.
pub(super) struct Measured<'a> {
    pub(super) card: &'a str,
    pub(super) gpus: Option<GpusOfSides>,
    /// The host of the other side, where that was started by itself.
    pub(super) server: Option<&'a str>,
    pub(super) doorbells: String,
    pub(super) timing: &'a Timing,
    /// Elapsed time and CPU time of the measured exchanges, as the CPU sees them: prepared,
    /// performed, collected.
    pub(super) usage: (Duration, Duration),
    /// Memory operations of the stream, warm-up included.
    pub(super) operations: u64,
    /// Exchanges that were made, warm-up included.
    pub(super) exchanges: u64,
}

/// The result, in the words of the JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    card: String,
    /// The host of the server, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    transport: Service,
    op: Operation,
    procs: u64,
    trigger: Trigger,
    /// The GPUs that trigger, and that have the messages in their memory.
    gpu: Option<String>,
    /// Their numbers, one for each side.
    gpus: Option<[u32; 2]>,
    /// Whether processes share it by MPS. Two that do not are served in turn, each for a time slice.
    mps: Option<bool>,
    /// How doorbells reach the card; `card` where the stream rings none.
    doorbells: String,
    /// The interface that makes the queues.
    queues: QueueChoice,
    /// Whose memory the queues lie in.
    #[serde(flatten)]
    layout: Layout,
    batch: u64,
    /// Of a message.
    size_bytes: u64,
    /// Exchanges measured; each is two messages.
    iterations: u64,
    /// The exchanges that were asked for, where the run was interrupted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_of: Option<u64>,
    /// Half round trips.
    #[serde(flatten)]
    times: Times,
    /// Messages of both directions.
    messages_per_s: f64,
    bytes_per_s: f64,
    /// Elapsed time from when the CPU prepares the first measured exchange until it has seen the
    /// last, and CPU time of this process meanwhile: all threads, user and system.
    wall_s: f64,
    cpu_s: f64,
    /// Memory operations of this side's stream for one exchange.
    memory_operations_per_iteration: f64,
    /// Every byte of every message was checked.
    verified: bool,
}

impl Report {
    pub(super) fn new(options: &PingpongOptions, measured: Measured<'_>) -> Self {
        let timing = measured.timing;
        let seconds = timing.elapsed().as_secs_f64();
        let iterations = measured.exchanges.saturating_sub(options.sides.warmup);
        let messages = 2.0 * iterations as f64 / seconds.max(1e-9);
        Report {
            card: measured.card.to_owned(),
            server: measured.server.map(str::to_owned),
            transport: options.transport,
            op: options.op,
            procs: options.sides.procs,
            trigger: options.sides.trigger,
            gpu: measured.gpus.as_ref().map(GpusOfSides::text),
            gpus: measured.gpus.as_ref().map(|gpus| gpus.sides),
            mps: measured.gpus.and_then(|gpus| gpus.mps),
            doorbells: measured.doorbells,
            queues: options.sides.queues,
            layout: options.sides.layout,
            batch: options.batch,
            size_bytes: options.size,
            iterations,
            interrupted_of: (iterations < options.sides.iters && options.sides.duration.is_none())
                .then_some(options.sides.iters),
            times: Times::new(timing),
            messages_per_s: messages,
            bytes_per_s: messages * options.size as f64,
            wall_s: measured.usage.0.as_secs_f64(),
            cpu_s: measured.usage.1.as_secs_f64(),
            memory_operations_per_iteration: measured.operations as f64 / measured.exchanges as f64,
            verified: options.sides.check,
        }
    }

    /// How two processes share the GPU.
    fn sharing(&self) -> &'static str {
        match self.mps.filter(|_| self.procs == 2) {
            Some(true) => ", shared by MPS",
            Some(false) => ", shared WITHOUT MPS (half a round trip is that of time slices)",
            None => "",
        }
    }

    fn sides(&self) -> String {
        match &self.server {
            Some(server) => format!("this side and {server}"),
            None if self.procs == 2 => "two processes".to_owned(),
            None => "two sides of one process".to_owned(),
        }
    }

    /// What the runs of a sweep have in common.
    fn heading(&self) -> String {
        let checked = checked(self.verified);
        let interrupted = self
            .interrupted_of
            .map_or_else(String::new, |all| format!(", INTERRUPTED before {all} exchanges"));
        format!(
            "{} {} between {} on {}, triggered by the {}{}{}, doorbells {}{}{}, {} exchanges enqueued at a time, {checked}{interrupted}\n",
            gdsync::verbs::Transport::from(self.transport),
            cli::word(&self.op),
            self.sides(),
            self.card,
            cli::word(&self.trigger),
            self.gpu.as_ref().map_or(String::new(), |gpu| format!(" of {gpu}, messages in GPU memory")),
            self.sharing(),
            self.doorbells,
            if self.queues == QueueChoice::Devx { ", queues made by commands" } else { "" },
            self.layout,
            self.batch,
        )
    }

    fn row(&self) -> Vec<String> {
        let counts = [crate::size::text(self.size_bytes), self.iterations.to_string()];
        let rest = [
            text::rate(self.messages_per_s, "msg"),
            text::rate(self.bytes_per_s, "B"),
            format!("{:.0}%", 100.0 * self.cpu_s / self.wall_s.max(1e-9)),
            format!("{:.2}", self.memory_operations_per_iteration),
        ];
        counts.into_iter().chain(self.times.cells()).chain(rest).collect()
    }

    /// In the order of [`csv`].
    fn values(&self) -> Vec<String> {
        let times = self.times.values();
        let rates = [self.messages_per_s, self.bytes_per_s, self.cpu_s, self.wall_s];
        let counts = [self.size_bytes.to_string(), self.iterations.to_string()];
        let numbers = times.into_iter().chain(rates).chain([self.memory_operations_per_iteration]);
        counts.into_iter().chain(numbers.map(|number| format!("{number:.3}"))).collect()
    }
}

/// What a server says of the runs with its client.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    client: &'a str,
    card: &'a str,
    transport: Service,
    op: Operation,
    /// Of the messages of each run.
    sizes_bytes: Vec<u64>,
    /// Exchanges that were measured in all runs.
    iterations: u64,
    /// Every byte of every message was checked.
    verified: bool,
}

/// What a server says of its runs.
pub(super) fn verdict(client: &str, reports: &[Report]) -> Result<sides::Verdict, Failure> {
    let first = reports.first().ok_or("there was no run")?;
    let said = Verdict {
        client,
        card: &first.card,
        transport: first.transport,
        op: first.op,
        sizes_bytes: reports.iter().map(|report| report.size_bytes).collect(),
        iterations: reports.iter().map(|report| report.iterations).sum(),
        verified: reports.iter().all(|report| report.verified),
    };
    let text = format!(
        "{} {} with {client} on {}: {} exchanges, {}, {}\n",
        gdsync::verbs::Transport::from(said.transport),
        cli::word(&said.op),
        said.card,
        said.iterations,
        crate::size::each(&said.sizes_bytes),
        checked(said.verified),
    );
    Ok(sides::Verdict { json: serde_json::to_value(&said)?, text })
}

/// A line of names, which are those in JSON, and a line for each run.
pub(super) fn csv(reports: &[Report]) -> String {
    let lines = reports.iter().map(|report| report.values().join(",") + "\n");
    let names = times::NAMES;
    let names = format!(
        "size_bytes,iterations,{names},messages_per_s,bytes_per_s,cpu_s,wall_s,memory_operations_per_iteration\n"
    );
    std::iter::once(names).chain(lines).collect()
}

/// What the runs have in common, and a row for each. At the last of them an interrupted sweep has ended.
pub(super) fn table(reports: &[Report]) -> String {
    let header =
        [&["SIZE", "ITERS"][..], &times::TITLES, &["MESSAGES", "BYTES", "CPU", "MEMOPS/ITER"]].concat();
    let rows: Vec<_> = reports.iter().map(Report::row).collect();
    reports.last().map_or_else(String::new, Report::heading) + &text::table(&header, &rows)
}

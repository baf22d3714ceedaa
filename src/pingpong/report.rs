//! What a pingpong measured.

mod picture;

pub(super) use picture::charts;

use super::timing::Timing;
use crate::cli::{self, Operation, PingpongOptions, QueueChoice, Service, Trigger};
use crate::failure::Failure;
use crate::placement::Layout;
use crate::text;
use gdsync::cuda;
use serde::{Deserialize, Serialize};
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

/// The GPU of a side that was started by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RemoteGpu {
    pub(super) number: u32,
    pub(super) name: String,
}

/// The GPUs of the two sides.
pub(super) struct GpusOfSides {
    sides: [u32; 2],
    names: [String; 2],
    /// Both sides use one GPU.
    is_shared: bool,
    /// Processes share the GPU by MPS; none where each side has a GPU, or where its driver does not
    /// say.
    mps: Option<bool>,
}

impl GpusOfSides {
    pub(super) fn describe(sides: [u32; 2]) -> Result<Self, Failure> {
        let [first, second] = [cuda::describe(sides[0])?, cuda::describe(sides[1])?];
        let is_shared = sides[0] == sides[1];
        let mps = first.capabilities.mps.filter(|_| is_shared);
        Ok(GpusOfSides { sides, names: [first.name, second.name], is_shared, mps })
    }

    /// The GPU of this side, and that of one which was started by itself.
    pub(super) fn apart(own: u32, other: &RemoteGpu) -> Result<Self, Failure> {
        let names = [cuda::describe(own)?.name, other.name.clone()];
        Ok(GpusOfSides { sides: [own, other.number], names, is_shared: false, mps: None })
    }

    fn text(&self) -> String {
        let ([first, second], [name, other]) = (self.sides, &self.names);
        if self.is_shared {
            format!("{name} (GPU {first} for both sides)")
        } else {
            format!("GPU {first} ({name}) and GPU {second} ({other}), a side each")
        }
    }
}

/// The result, in the words of the JSON form.
#[derive(Debug, Serialize)]
pub(super) struct Report {
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
    /// Bytes of a message.
    size: u64,
    /// Exchanges measured; each is two messages.
    iterations: u64,
    /// The exchanges that were asked for, where the run was interrupted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted_of: Option<u64>,
    /// Half round trips in µs.
    min_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
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
    /// Half round trips in µs, and how many exchanges took so long.
    #[serde(skip)]
    times: Vec<(f64, u64)>,
}

impl Report {
    pub(super) fn new(options: &PingpongOptions, measured: Measured<'_>) -> Self {
        let timing = measured.timing;
        let us = |ns: u64| ns as f64 / 1000.0;
        let seconds = timing.elapsed().as_secs_f64();
        let iterations = measured.exchanges.saturating_sub(options.warmup);
        let messages = 2.0 * iterations as f64 / seconds.max(1e-9);
        Report {
            card: measured.card.to_owned(),
            server: measured.server.map(str::to_owned),
            transport: options.transport,
            op: options.op,
            procs: options.procs,
            trigger: options.trigger,
            gpu: measured.gpus.as_ref().map(GpusOfSides::text),
            gpus: measured.gpus.as_ref().map(|gpus| gpus.sides),
            mps: measured.gpus.and_then(|gpus| gpus.mps),
            doorbells: measured.doorbells,
            queues: options.queues,
            layout: options.layout,
            batch: options.batch,
            size: options.size,
            iterations,
            interrupted_of: (iterations < options.iters && options.duration.is_none())
                .then_some(options.iters),
            min_us: us(timing.shortest),
            p50_us: us(timing.quantile(0.5)),
            p90_us: us(timing.quantile(0.9)),
            p99_us: us(timing.quantile(0.99)),
            p999_us: us(timing.quantile(0.999)),
            max_us: us(timing.longest),
            messages_per_s: messages,
            bytes_per_s: messages * options.size as f64,
            wall_s: measured.usage.0.as_secs_f64(),
            cpu_s: measured.usage.1.as_secs_f64(),
            memory_operations_per_iteration: measured.operations as f64 / measured.exchanges as f64,
            verified: options.check,
            times: timing.recorded().map(|(ns, count)| (us(ns), count)).collect(),
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
        vec![
            crate::size::text(self.size),
            self.iterations.to_string(),
            format!("{:.2}", self.min_us),
            format!("{:.2}", self.p50_us),
            format!("{:.2}", self.p90_us),
            format!("{:.2}", self.p99_us),
            format!("{:.2}", self.p999_us),
            format!("{:.2}", self.max_us),
            text::rate(self.messages_per_s, "msg"),
            text::rate(self.bytes_per_s, "B"),
            format!("{:.0}%", 100.0 * self.cpu_s / self.wall_s.max(1e-9)),
            format!("{:.2}", self.memory_operations_per_iteration),
        ]
    }

    /// In the order of [`CSV`].
    fn values(&self) -> Vec<String> {
        let times = [self.min_us, self.p50_us, self.p90_us, self.p99_us, self.p999_us, self.max_us];
        let rates = [self.messages_per_s, self.bytes_per_s, self.cpu_s, self.wall_s];
        let counts = [self.size.to_string(), self.iterations.to_string()];
        let numbers = times.into_iter().chain(rates).chain([self.memory_operations_per_iteration]);
        counts.into_iter().chain(numbers.map(|number| format!("{number:.3}"))).collect()
    }
}

/// What was done with the bytes of messages.
fn checked(verified: bool) -> &'static str {
    if verified { "every byte verified" } else { "NOT verified" }
}

/// What a server says of the runs with its client.
#[derive(Debug, Serialize)]
pub(super) struct Verdict<'a> {
    client: &'a str,
    card: &'a str,
    transport: Service,
    op: Operation,
    /// Bytes of the messages of each run.
    sizes: Vec<u64>,
    /// Exchanges that were measured in all runs.
    iterations: u64,
    /// Every byte of every message was checked.
    verified: bool,
}

impl<'a> Verdict<'a> {
    /// `None` where there was no run.
    pub(super) fn new(client: &'a str, reports: &'a [Report]) -> Option<Self> {
        let first = reports.first()?;
        Some(Verdict {
            client,
            card: &first.card,
            transport: first.transport,
            op: first.op,
            sizes: reports.iter().map(|report| report.size).collect(),
            iterations: reports.iter().map(|report| report.iterations).sum(),
            verified: reports.iter().all(|report| report.verified),
        })
    }

    pub(super) fn text(&self) -> String {
        let sizes = match &self.sizes[..] {
            [size] => format!("{} each", crate::size::text(*size)),
            sizes => format!("{} sizes", sizes.len()),
        };
        format!(
            "{} {} with {} on {}: {} exchanges, {sizes}, {}\n",
            gdsync::verbs::Transport::from(self.transport),
            cli::word(&self.op),
            self.client,
            self.card,
            self.iterations,
            checked(self.verified),
        )
    }
}

/// The columns of comma-separated values, by their names in JSON.
const CSV: &str = "size,iterations,min_us,p50_us,p90_us,p99_us,p999_us,max_us,messages_per_s,bytes_per_s,cpu_s,wall_s,memory_operations_per_iteration";

/// A line of names, and a line for each run.
pub(super) fn csv(reports: &[Report]) -> String {
    let lines = reports.iter().map(|report| report.values().join(",") + "\n");
    std::iter::once(format!("{CSV}\n")).chain(lines).collect()
}

/// What the runs have in common, and a row for each. At the last of them an interrupted sweep has ended.
pub(super) fn table(reports: &[Report]) -> String {
    let header = [
        "SIZE",
        "ITERS",
        "MIN µs",
        "P50 µs",
        "P90 µs",
        "P99 µs",
        "P99.9 µs",
        "MAX µs",
        "MESSAGES",
        "BYTES",
        "CPU",
        "MEMOPS/ITER",
    ];
    let rows: Vec<_> = reports.iter().map(Report::row).collect();
    reports.last().map_or_else(String::new, Report::heading) + &text::table(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_each_and_one_gpu_for_both_are_told_apart() {
        let text = |sides, is_shared| {
            let names = ["H200".to_owned(), "H100".to_owned()];
            GpusOfSides { sides, names, is_shared, mps: None }.text()
        };
        assert_eq!(text([0, 0], true), "H200 (GPU 0 for both sides)");
        assert_eq!(text([0, 1], false), "GPU 0 (H200) and GPU 1 (H100), a side each");
        assert_eq!(text([0, 0], false), "GPU 0 (H200) and GPU 0 (H100), a side each", "of two hosts");
    }
}

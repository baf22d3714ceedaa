//! `gdsync pingpong`: two sides send a message back and forth; their streams ring doorbells and wait for completions.

mod side;

use crate::cli::{self, Operation, PingpongOptions, Process, Service};
use crate::failure::Failure;
use crate::plot::Chart;
use crate::sides::report::{self, Setting};
use crate::sides::side::play;
use crate::sides::timing::{self, Times};
use crate::sides::{Channel, Measurement, Peer};
use crate::size;
use gdsync::verbs::Transport;
use serde::Serialize;
use serde_json::{Value, json};
use side::Pingpong;

impl Measurement for PingpongOptions {
    const COMMAND: &'static str = "pingpong";
    const PEER: Process = Process::PingpongPeer;
    type Report = Report;

    fn play(&self, rank: u64, other: Peer, mut channel: Channel) -> Result<Report, Failure> {
        play(Pingpong::new(self, rank, other, &mut channel), channel)
    }
}

const LATENCY: &str = "Half round trip, µs";

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(super) setting: Setting,
    pub(super) transport: Service,
    pub(super) op: Operation,
    /// True if processes share the GPU by MPS. Without MPS, they run in turns, each for a time slice.
    pub(super) mps: Option<bool>,
    /// Measured exchanges of two messages each.
    pub(super) iterations: u64,
    /// Exchanges before the measured ones.
    pub(super) warmup: u64,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) messages_per_s: f64,
    pub(super) bytes_per_s: f64,
    /// Memory operations of this side's stream for each exchange.
    pub(super) memory_operations_per_iteration: f64,
}

impl report::Report for Report {
    const UNIT: &'static str = "exchanges";
    const TITLES: [&'static str; 4] = ["ITERS", "MESSAGES", "BYTES", "MEMOPS/ITER"];
    const NAMES: [&'static str; 4] =
        ["iterations", "messages_per_s", "bytes_per_s", "memory_operations_per_iteration"];

    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn kind(&self) -> (String, Value) {
        let words = format!("{} {}", Transport::from(self.transport), cli::word(&self.op));
        (words, json!({ "transport": self.transport, "op": self.op }))
    }

    fn heading(&self) -> String {
        let sharing = match self.mps.filter(|_| self.setting.procs == 2) {
            Some(true) => ", shared by MPS",
            Some(false) => ", shared WITHOUT MPS (half a round trip is that of time slices)",
            None => "",
        };
        let under_way = format!("{} exchanges enqueued at a time", self.setting.batch);
        self.setting.heading(&self.kind().0, sharing, &under_way, Self::UNIT)
    }

    /// For a sweep, latency and bandwidth by size; for a single run, a histogram.
    fn charts(reports: &[Self], is_sweep: bool) -> Vec<Chart> {
        let Some(first) = reports.first() else { return Vec::new() };
        let what = first.setting.what(&first.op);
        if let (false, [one]) = (is_sweep, reports) {
            let title = format!("Round trips of {}, {what}", size::text(one.setting.size_bytes));
            return vec![Chart { title, content: timing::histogram(LATENCY, &one.times) }];
        }
        let runs = reports.iter().map(|report| (report.setting.size_bytes, &report.times));
        let latency =
            Chart { title: format!("Latency by size, {what}"), content: timing::lines(LATENCY, runs) };
        let (title, y) = (format!("Bandwidth by size, {what}"), "Both directions together, MB/s");
        let pick = |report: &Self| report.bytes_per_s / 1e6;
        vec![latency, report::by_size(title, y, "both directions together", reports, pick)]
    }
}

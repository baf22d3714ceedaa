//! The common part of all measurements' reports, and their output formats.

use super::timing;
use crate::cli::{self, Layout, QueueChoice, Trigger};
use crate::failure::Failure;
use crate::plot::{Axis, Chart, Content, Scale, Series};
use crate::{size, table, text};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The conditions of a run, in their JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) card: String,
    /// The server's host, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    pub(crate) procs: u64,
    pub(crate) trigger: Trigger,
    /// The GPUs that drive the streams and hold the messages.
    pub(crate) gpu: Option<String>,
    pub(crate) gpus: Option<[u32; 2]>,
    #[serde(skip)]
    pub(crate) shared_by_mps: Option<bool>,
    /// How doorbells reach the card; `card` if the stream rings none.
    pub(crate) doorbells: String,
    pub(crate) queues: QueueChoice,
    #[serde(flatten)]
    pub(crate) layout: Layout,
    /// Exchanges or messages enqueued, or posted, at a time.
    pub(crate) batch: u64,
    pub(crate) size_bytes: u64,
    /// The requested number of exchanges or messages, if the run was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted_of: Option<u64>,
    /// Elapsed time of the measurement as the CPU sees it, from preparing the first message until seeing the last; and
    /// the CPU time of this process meanwhile, user and system, all threads.
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    /// True if every byte that arrived was checked.
    pub(crate) verified: bool,
}

impl Setting {
    /// Describes the subject of a picture in a few words.
    pub(crate) fn what(&self, operation: &impl ValueEnum) -> String {
        let on = self.gpu.as_deref().unwrap_or("host memory");
        format!("{}, {}, {on}", self.card, cli::word(operation))
    }

    /// `kind` names the measurement, `sharing` tells how two processes share a GPU, and `under_way` how many messages
    /// are under way.
    pub(crate) fn heading(&self, kind: &str, sharing: &str, under_way: &str, unit: &str) -> String {
        let between = match &self.server {
            Some(server) => format!("this side and {server}"),
            None if self.procs == 2 => "two processes".to_owned(),
            None => "two sides of one process".to_owned(),
        };
        let gpu = self.gpu.as_ref().map_or(String::new(), |gpu| format!(" of {gpu}, messages in GPU memory"));
        let interrupted = self.interrupted_of.map(|all| format!(", INTERRUPTED before {all} {unit}"));
        format!(
            "{kind} between {between} on {}, triggered by the {}{gpu}{sharing}, doorbells {}{}{}, {under_way}, {}{}\n",
            self.card,
            cli::word(&self.trigger),
            self.doorbells,
            if self.queues == QueueChoice::Devx { ", queues made by commands" } else { "" },
            self.layout,
            checked(self.verified),
            interrupted.unwrap_or_default(),
        )
    }
}

/// Tells whether the bytes of messages were checked.
fn checked(verified: bool) -> &'static str {
    if verified { "every byte verified" } else { "NOT verified" }
}

pub(crate) trait Report: Serialize + Send + Sized {
    /// The unit of the count.
    const UNIT: &'static str;
    /// Titles of the columns of the count, two rates and the memory operations; and their JSON keys.
    const TITLES: [&'static str; 4];
    const NAMES: [&'static str; 4];

    fn setting(&self) -> &Setting;
    /// Returns the kind of measurement, in words and as JSON of a server's report.
    fn kind(&self) -> (String, Value);
    /// Returns a line about what the runs of a sweep have in common.
    fn heading(&self) -> String;
    fn charts(reports: &[Self], is_sweep: bool) -> Vec<Chart>;
}

/// Returns the JSON of runs, and the keys of their times, if they have any.
fn figures<R: Report>(reports: &[R]) -> (Vec<Value>, &'static [&'static str]) {
    let all: Vec<Value> = reports.iter().map(|one| serde_json::to_value(one).unwrap_or_default()).collect();
    let has_times = all.iter().any(|one| one.get(timing::NAMES[0]).is_some());
    (all, if has_times { &timing::NAMES } else { &[] })
}

fn number(figures: &Value, key: &str) -> f64 {
    figures[key].as_f64().unwrap_or(f64::NAN)
}

/// Formats what the runs have in common, and a row for each. An interrupted sweep has ended at the last run, so that
/// one's heading is used.
pub(super) fn table<R: Report>(reports: &[R]) -> String {
    let (all, keys) = figures(reports);
    let [count, one, other, operations] = R::TITLES;
    let titles = &timing::TITLES[..keys.len()];
    let header = [&["SIZE", count][..], titles, &[one, other, "CPU", operations]].concat();
    let row = |figures: &Value| {
        let [count, one, other, operations] = R::NAMES;
        let counts =
            [size::text(figures["size_bytes"].as_u64().unwrap_or_default()), figures[count].to_string()];
        let times = keys.iter().map(|key| format!("{:.2}", number(figures, key)));
        let unit = |key: &str| if key == "bytes_per_s" { "B" } else { "msg" };
        let rates = [one, other].map(|key| text::rate(number(figures, key), unit(key)));
        let cpu = number(figures, "cpu_s") / number(figures, "wall_s").max(1e-9);
        let rest = [format!("{:.0}%", 100.0 * cpu), format!("{:.2}", number(figures, operations))];
        counts.into_iter().chain(times).chain(rates).chain(rest).collect()
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    reports.last().map_or_else(String::new, R::heading)
        + &table::of(&header, &rows, &[operations, count, "P99.9 µs", "CPU", "P90 µs"])
}

/// Formats a line of names, the JSON keys, and a line for each run.
pub(super) fn csv<R: Report>(reports: &[R]) -> String {
    let (all, keys) = figures(reports);
    let [count, one, other, operations] = R::NAMES;
    let counts = ["size_bytes", count];
    let numbers = [keys, &[one, other, "cpu_s", "wall_s", operations]].concat();
    let line = |figures: &Value| {
        let counts = counts.iter().map(|key| figures[key].to_string());
        let numbers = numbers.iter().map(|key| format!("{:.3}", number(figures, key)));
        counts.chain(numbers).collect::<Vec<_>>().join(",")
    };
    let names = [&counts[..], &numbers].concat().join(",");
    std::iter::once(names).chain(all.iter().map(line)).map(|line| line + "\n").collect()
}

/// Returns a server's report on the runs with its client: for programs, and for people.
pub(super) fn verdict<R: Report>(
    client: &str,
    reports: &[R],
) -> Result<(Map<String, Value>, String), Failure> {
    let first = reports.first().ok_or("there was no run")?;
    let (kind, said) = first.kind();
    let card = &first.setting().card;
    let count: u64 = figures(reports).0.iter().filter_map(|one| one[R::NAMES[0]].as_u64()).sum();
    let sizes: Vec<u64> = reports.iter().map(|report| report.setting().size_bytes).collect();
    let verified = reports.iter().all(|report| report.setting().verified);
    let (unit, each, checked) = (R::UNIT, size::each(&sizes), checked(verified));
    let text = format!("{kind} with {client} on {card}: {count} {unit}, {each}, {checked}\n");
    let mut all = Map::from_iter([
        ("client".to_owned(), json!(client)),
        ("card".to_owned(), json!(card)),
        ("sizes_bytes".to_owned(), json!(sizes)),
        (R::NAMES[0].to_owned(), json!(count)),
        ("verified".to_owned(), json!(verified)),
    ]);
    all.extend(said.as_object().cloned().unwrap_or_default());
    Ok((all, text))
}

/// Returns a chart of one quantity by message size. `y` is its axis, `name` the line's.
pub(crate) fn by_size<R: Report>(
    title: String,
    y: &str,
    name: &str,
    reports: &[R],
    pick: fn(&R) -> f64,
) -> Chart {
    let points = reports.iter().map(|report| (report.setting().size_bytes as f64, pick(report)));
    let (x, y) = (Axis::new("Message", Scale::Sizes), Axis::new(y, Scale::Log));
    Chart { title, content: Content::Lines { x, y, series: vec![Series::new(name, points)] } }
}

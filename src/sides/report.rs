//! What the reports of all measurements have in common, and how they are shown.

use super::times::{self, Times};
use crate::cli::{self, QueueChoice, Trigger};
use crate::failure::Failure;
use crate::placement::Layout;
use crate::plot::{Axis, Chart, Content, Scale, Series};
use crate::{size, text};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What a run was made with, in the words of the JSON form.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    pub(crate) card: String,
    /// The host of the server, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    pub(crate) procs: u64,
    pub(crate) trigger: Trigger,
    /// The GPUs that trigger, and that have the messages in their memory.
    pub(crate) gpu: Option<String>,
    /// Their numbers, one for each side.
    pub(crate) gpus: Option<[u32; 2]>,
    #[serde(skip)]
    pub(crate) shared_by_mps: Option<bool>,
    /// How doorbells reach the card; `card` where the stream rings none.
    pub(crate) doorbells: String,
    /// The interface that makes the queues.
    pub(crate) queues: QueueChoice,
    /// Whose memory the queues lie in.
    #[serde(flatten)]
    pub(crate) layout: Layout,
    /// Exchanges or messages that are enqueued, or posted, at a time.
    pub(crate) batch: u64,
    /// Of a message.
    pub(crate) size_bytes: u64,
    /// The exchanges or messages that were asked for, where the run was interrupted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted_of: Option<u64>,
    /// Elapsed time of the measurement, as the CPU sees it: from when it prepares the first message until it has seen the
    /// last. And CPU time of this process meanwhile: all threads, user and system.
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    /// Every byte that has arrived was checked.
    pub(crate) verified: bool,
}

impl Setting {
    /// What a picture is of, in a few words.
    pub(crate) fn what(&self, operation: &impl ValueEnum) -> String {
        let on = self.gpu.as_deref().unwrap_or("host memory");
        format!("{}, {}, {on}", self.card, cli::word(operation))
    }

    /// `kind` says what is measured, `sharing` how two processes share a GPU, and `under_way` how many messages are.
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

/// What was done with the bytes of messages.
fn checked(verified: bool) -> &'static str {
    if verified { "every byte verified" } else { "NOT verified" }
}

/// The numbers of a row.
pub(crate) struct Figures<'a> {
    /// Exchanges or messages that were measured.
    pub(crate) count: u64,
    pub(crate) times: Option<&'a Times>,
    /// Rates a second, and their units.
    pub(crate) rates: [(f64, &'static str); 2],
    /// Memory operations of this side's stream for one exchange, or for one message that it begins.
    pub(crate) operations: f64,
}

/// What one run has measured.
pub(crate) trait Report: Serialize + Send + Sized {
    /// What is counted.
    const UNIT: &'static str;
    /// Titles of the columns of [`Figures`], in their order without the times, and the keys in JSON.
    const TITLES: [&'static str; 4];
    const NAMES: [&'static str; 4];

    fn setting(&self) -> &Setting;
    fn figures(&self) -> Figures<'_>;
    /// What was measured in words, and as a server says it to programs.
    fn kind(&self) -> (String, Value);
    /// What the runs of a sweep have in common, in a line.
    fn heading(&self) -> String;
    fn charts(reports: &[Self], is_sweep: bool) -> Vec<Chart>;
}

fn has_times<R: Report>(reports: &[R]) -> bool {
    reports.iter().any(|report| report.figures().times.is_some())
}

/// What the runs have in common, and a row for each. At the last of them an interrupted sweep has ended.
pub(super) fn table<R: Report>(reports: &[R]) -> String {
    let times = if has_times(reports) { &times::TITLES[..] } else { &[] };
    let [count, one, other, operations] = R::TITLES;
    let header = [&["SIZE", count][..], times, &[one, other, "CPU", operations]].concat();
    let row = |report: &R| {
        let (Setting { size_bytes, wall_s, cpu_s, .. }, figures) = (report.setting(), report.figures());
        let counts = [size::text(*size_bytes), figures.count.to_string()];
        let rates = figures.rates.map(|(rate, unit)| text::rate(rate, unit));
        let rest =
            [format!("{:.0}%", 100.0 * cpu_s / wall_s.max(1e-9)), format!("{:.2}", figures.operations)];
        let times = figures.times.into_iter().flat_map(|times| times.values.map(|us| format!("{us:.2}")));
        counts.into_iter().chain(times).chain(rates).chain(rest).collect()
    };
    let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
    reports.last().map_or_else(String::new, R::heading) + &text::table(&header, &rows)
}

/// A line of names, which are those in JSON, and a line for each run.
pub(super) fn csv<R: Report>(reports: &[R]) -> String {
    let times = if has_times(reports) { &times::NAMES[..] } else { &[] };
    let [count, one, other, operations] = R::NAMES;
    let names = [&["size_bytes", count][..], times, &[one, other, "cpu_s", "wall_s", operations]].concat();
    let line = |report: &R| {
        let (Setting { size_bytes, wall_s, cpu_s, .. }, figures) = (report.setting(), report.figures());
        let [one, other] = figures.rates.map(|(rate, _)| rate);
        let times = figures.times.into_iter().flat_map(|times| times.values);
        let numbers = times.chain([one, other, *cpu_s, *wall_s, figures.operations]);
        let counts = [*size_bytes, figures.count].map(|count| count.to_string());
        counts.into_iter().chain(numbers.map(|number| format!("{number:.3}"))).collect::<Vec<_>>().join(",")
    };
    std::iter::once(names.join(",")).chain(reports.iter().map(line)).map(|line| line + "\n").collect()
}

/// What a server says of the runs with its client: for programs, and for people.
pub(super) fn verdict<R: Report>(
    client: &str,
    reports: &[R],
) -> Result<(Map<String, Value>, String), Failure> {
    let first = reports.first().ok_or("there was no run")?;
    let (kind, said) = first.kind();
    let card = &first.setting().card;
    let count: u64 = reports.iter().map(|report| report.figures().count).sum();
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

/// A picture of one quantity by the size of messages. `y`: its axis; `name`: of the line.
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

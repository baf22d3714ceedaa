//! Views as tables.

use crate::view::{Card, Process, QueuePair, Traffic, View, Wait};
use gdsync_cli::{table, text};

/// Duration from which a wait is an alarm.
const LONG_MS: f64 = 1000.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Process,
    /// Highest rate first, then most outstanding work.
    Rate,
    Wait,
}

impl Order {
    pub(crate) fn next(self) -> Self {
        match self {
            Order::Process => Order::Rate,
            Order::Rate => Order::Wait,
            Order::Wait => Order::Process,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Order::Process => "process",
            Order::Rate => "rate",
            Order::Wait => "wait",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineStyle {
    Header,
    Plain,
    /// A long wait, or an error.
    Alarm,
}

const CARDS: [&str; 10] =
    ["PID", "PROCESS", "CARD", "LINK", "SENT", "RECEIVED", "RNR", "NAK", "FAULTS", "FINDINGS"];
const QUEUE_PAIRS: [&str; 9] =
    ["PID", "QUEUE PAIR", "TYPE", "STATE", "OPEN", "RESENT", "PEER", "WAITED", "WAITS FOR"];
const STREAMS: [&str; 5] = ["PID", "STREAM", "WAITS", "WAITED", "WAITS FOR"];
/// Columns that a narrow terminal lacks, the first one first: what is waited for names its peer, too.
const OPTIONAL: [&str; 8] = ["PEER", "LINK", "CARD", "TYPE", "FINDINGS", "FAULTS", "NAK", "RESENT"];

struct Row {
    cells: Vec<String>,
    rate: f64,
    waited_ms: f64,
    is_alarm: bool,
}

pub(crate) fn to_text(view: &View) -> String {
    lines(view, Order::default(), table::columns()).into_iter().map(|(_, line)| line + "\n").collect()
}

/// Returns the lines for this width, if any.
pub(crate) fn lines(view: &View, order: Order, columns: Option<usize>) -> Vec<(LineStyle, String)> {
    if view.processes.is_empty() {
        let none =
            "no process of this user has a software card or uses the library, in this network namespace";
        return vec![(LineStyle::Plain, none.to_owned())];
    }
    let all = || view.processes.iter();
    let cards = all().flat_map(|process| process.cards.iter().map(move |card| card_row(process, card)));
    let pairs = all().flat_map(|process| {
        let pairs = process.cards.iter().flat_map(|card| &card.queue_pairs);
        pairs.map(move |pair| queue_pair_row(process, pair))
    });
    let streams = all().flat_map(|process| {
        process.streams.iter().map(move |stream| {
            let ids = [process.pid.to_string(), stream.number.to_string(), stream.waits.to_string()];
            waiting_row(ids.to_vec(), 0.0, Some(&stream.wait))
        })
    });
    let mut lines = Vec::new();
    add_table(&mut lines, &CARDS, cards.collect(), order, columns);
    add_table(&mut lines, &QUEUE_PAIRS, pairs.collect(), order, columns);
    add_table(&mut lines, &STREAMS, streams.collect(), order, columns);
    notes(view, &mut lines);
    lines
}

fn add_table(
    lines: &mut Vec<(LineStyle, String)>,
    header: &[&str],
    mut rows: Vec<Row>,
    order: Order,
    columns: Option<usize>,
) {
    if rows.is_empty() {
        return;
    }
    let by = |of: fn(&Row) -> f64| move |one: &Row, other: &Row| of(other).total_cmp(&of(one));
    match order {
        Order::Process => {}
        Order::Rate => rows.sort_by(by(|row| row.rate)),
        Order::Wait => rows.sort_by(by(|row| row.waited_ms)),
    }
    if !lines.is_empty() {
        lines.push((LineStyle::Plain, String::new()));
    }
    let looks: Vec<LineStyle> =
        rows.iter().map(|row| if row.is_alarm { LineStyle::Alarm } else { LineStyle::Plain }).collect();
    let cells: Vec<Vec<String>> = rows.into_iter().map(|row| row.cells).collect();
    let fitted = table::fit(header, &cells, &OPTIONAL, columns);
    lines.extend(fitted.header.into_iter().map(|line| (LineStyle::Header, line)));
    let looked = looks.into_iter().zip(fitted.rows);
    lines.extend(looked.flat_map(|(look, of_row)| of_row.into_iter().map(move |line| (look, line))));
}

/// Adds errors and omissions below the tables.
fn notes(view: &View, lines: &mut Vec<(LineStyle, String)>) {
    let mut notes = Vec::new();
    for process in &view.processes {
        let name = format!("{} {}", process.pid, process.name);
        notes.extend(process.error.as_ref().map(|error| (LineStyle::Alarm, format!("{name}: {error}"))));
        let mut left_out = |count: u32, what: &str| {
            if count > 0 {
                notes.push((LineStyle::Plain, format!("{name}: {} more", text::count(count, what))));
            }
        };
        left_out(process.cards_left_out, "card");
        left_out(process.streams_left_out, "waiting stream");
        left_out(process.cards.iter().map(|card| card.queue_pairs_left_out).sum(), "queue pair");
    }
    if !notes.is_empty() && !lines.is_empty() {
        lines.push((LineStyle::Plain, String::new()));
    }
    lines.extend(notes);
}

fn card_row(process: &Process, card: &Card) -> Row {
    let busy = || "busy".to_owned();
    let count = |count: u64| if card.is_busy { "-".to_owned() } else { count.to_string() };
    let cells = vec![
        process.pid.to_string(),
        process.name.clone(),
        card.address.clone(),
        card.link.to_owned(),
        if card.is_busy { busy() } else { traffic(&card.sent) },
        if card.is_busy { busy() } else { traffic(&card.received) },
        count(card.not_ready_refusals),
        count(card.sequence_refusals),
        count(card.faults_injected),
        count(card.findings.into()),
    ];
    let rate = [card.sent, card.received].iter().filter_map(|traffic| traffic.payload_bytes_per_s).sum();
    let waits = card.queue_pairs.iter().filter_map(|pair| pair.wait.as_ref());
    let waited_ms = waits.map(|wait| wait.waited_ms).fold(0.0, f64::max);
    Row { cells, rate, waited_ms, is_alarm: card.is_busy }
}

/// Formats rates, or counts if there is no rate yet.
fn traffic(traffic: &Traffic) -> String {
    match (traffic.packets_per_s, traffic.payload_bytes_per_s) {
        (Some(packets), Some(bytes)) => format!("{}, {}", text::rate(packets, "pkt"), text::rate(bytes, "B")),
        _ => format!("{} in all", text::count(traffic.packets, "packet")),
    }
}

fn queue_pair_row(process: &Process, pair: &QueuePair) -> Row {
    let cells = vec![
        process.pid.to_string(),
        format!("{:#x}", pair.number),
        pair.transport.to_uppercase(),
        pair.state.to_uppercase(),
        pair.outstanding_requests.to_string(),
        pair.resends.to_string(),
        pair.peer.as_ref().map_or_else(|| "-".to_owned(), |peer| peer.text.clone()),
    ];
    waiting_row(cells, pair.outstanding_blocks.into(), pair.wait.as_ref())
}

fn waiting_row(mut cells: Vec<String>, rate: f64, wait: Option<&Wait>) -> Row {
    cells.push(wait.map_or_else(String::new, waited));
    cells.push(wait.map_or_else(String::new, |wait| wait.description.clone()));
    let waited_ms = wait.map_or(0.0, |wait| wait.waited_ms);
    Row { cells, rate, waited_ms, is_alarm: waited_ms >= LONG_MS }
}

fn waited(wait: &Wait) -> String {
    let at_least = if wait.is_at_least { ">" } else { "" };
    match wait.waited_ms {
        ms if ms >= 60_000.0 => format!("{at_least}{:.0} min", ms / 60_000.0),
        ms if ms >= LONG_MS => format!("{at_least}{:.1} s", ms / 1e3),
        ms => format!("{at_least}{ms:.0} ms"),
    }
}

//! Conversion of parts to rows and arrows, in the order of time.

use crate::chrome::{Summary, Time, TraceWriter, Track, Value};
use crate::flows::{Flows, QueueDoorbell};
use crate::record::{EventKind, ReadPart, Record, unpadded};
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_sys::prm::wqe::Opcode;
use std::collections::HashMap;
use std::io::{self, Write};
use zerocopy::IntoBytes;

pub(crate) fn write(parts: Vec<ReadPart>, out: impl Write) -> io::Result<Summary> {
    let timeline = Timeline::new(parts);
    let mut chrome = TraceWriter::begin(out, timeline.begins_at())?;
    let summary = timeline.write(&mut chrome)?;
    chrome.end(&summary)?;
    Ok(summary)
}

/// First number of rows of cards and queue pairs: above all thread ids (`PID_MAX_LIMIT`, proc(5)).
const FIRST_ROW_ID: u32 = 10_000_000;

struct Process {
    pid: u32,
    name: String,
    rank: Option<u32>,
    /// Names by the low 16 bits of the node, which the library knows.
    cards: HashMap<u16, String>,
}

struct Timeline {
    processes: Vec<Process>,
    /// Records with the index of their process, by begin.
    records: Vec<(usize, Record)>,
    summary: Summary,
}

/// A row that is not a thread's, of the process with that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Row {
    Card(usize, u32),
    /// Queue pair by card's node and number.
    QueuePair(usize, u32, u32),
    Stream(usize, u64),
}

#[derive(Default)]
struct TimelineState {
    flows: Flows,
    rows: HashMap<Row, Track>,
    arrows: u64,
    open: HashMap<Track, u64>,
    /// Doorbells of submissions, by process index and submission number.
    submitted: HashMap<(usize, u64), Vec<QueueDoorbell>>,
    /// End of a GPU stream's last submission.
    performed: HashMap<Track, u64>,
    ends_at: u64,
}

impl Timeline {
    fn new(parts: Vec<ReadPart>) -> Timeline {
        let mut timeline =
            Timeline { processes: Vec::new(), records: Vec::new(), summary: Summary::default() };
        for part in parts {
            timeline.summary.dropped += part.dropped;
            timeline.summary.cut_off += u64::from(!part.is_whole);
            let known = timeline.processes.iter().position(|process| process.pid == part.pid);
            let place = known.unwrap_or(timeline.processes.len());
            if known.is_none() {
                let ReadPart { pid, rank, ref name, .. } = part;
                timeline.processes.push(Process { pid, name: name.clone(), rank, cards: HashMap::new() });
            }
            timeline.records.extend(part.records.into_iter().map(|record| (place, record)));
        }
        timeline.records.sort_by_key(|(_, record)| record.at);
        timeline.summary.processes = timeline.processes.len() as u64;
        timeline
    }

    fn begins_at(&self) -> u64 {
        self.records.first().map_or(0, |(_, record)| record.at)
    }

    fn write<W: Write>(mut self, chrome: &mut TraceWriter<W>) -> io::Result<Summary> {
        self.name(chrome)?;
        let mut state = TimelineState::default();
        for (place, record) in &self.records {
            let Some(kind) = EventKind::of(record.kind) else { continue };
            if !matches!(kind, EventKind::ThreadName | EventKind::CardName | EventKind::End) {
                self.summary.events += 1;
            }
            let process = &self.processes[*place];
            let thread = Track { pid: process.pid, tid: record.thread };
            state.ends_at = state.ends_at.max(record.until);
            state.write((*place, process), thread, kind, record, chrome)?;
        }
        for (track, count) in &state.open {
            for _ in 0..*count {
                let arguments = [("unfinished", Value::Flag(true))];
                let at = Time::End(state.ends_at);
                chrome.event(*track, at, ("waited", EventKind::WaitEnd.name()), &arguments)?;
            }
        }
        self.summary.messages = state.arrows;
        Ok(self.summary)
    }

    /// Writes the names of processes and threads, and collects those of cards.
    fn name<W: Write>(&mut self, chrome: &mut TraceWriter<W>) -> io::Result<()> {
        for (position, process) in self.processes.iter().enumerate() {
            let name = match process.rank {
                Some(rank) => format!("rank {rank}: {}", process.name),
                None => process.name.clone(),
            };
            chrome.name_process(process.pid, &name, process.rank.unwrap_or(position as u32))?;
        }
        // The last name that the program gave to a thread, otherwise its last name.
        let mut threads: HashMap<Track, (bool, String)> = HashMap::new();
        for (place, record) in &self.records {
            let process = &mut self.processes[*place];
            match EventKind::of(record.kind) {
                Some(EventKind::ThreadName) => {
                    let track = Track { pid: process.pid, tid: record.thread };
                    let [name @ .., given] = record.words;
                    let name = (given != 0, unpadded(name.as_bytes()));
                    let before = threads.entry(track).or_default();
                    if name.0 >= before.0 {
                        *before = name;
                    }
                }
                Some(EventKind::CardName) => {
                    let [node, ref name @ ..] = record.words;
                    process.cards.insert(node as u16, unpadded(name.as_bytes()));
                }
                _ => {}
            }
        }
        threads.into_iter().try_for_each(|(track, (_, name))| chrome.name_track(track, &name))
    }
}

impl TimelineState {
    fn write<W: Write>(
        &mut self,
        (place, process): (usize, &Process),
        thread: Track,
        kind: EventKind,
        record: &Record,
        chrome: &mut TraceWriter<W>,
    ) -> io::Result<()> {
        use Value::{Flag, Hex, Number, Text};
        let Record { at, until, words: [first, second, third], .. } = *record;
        let lasts = Time::Slice(at, until);
        // The first word of events of queues is `node << 32 | number`.
        let (node, number) = ((first >> 32) as u32, first & 0xffff_ffff);
        let wqe =
            |of: QueueDoorbell| [("queue_pair", Hex(of.queue.2.into())), ("wqe", Number(of.index.into()))];
        let word = [("address", Hex(first)), ("value", Hex(second)), ("bits", Number(third))];
        match kind {
            EventKind::ThreadName | EventKind::CardName | EventKind::End => Ok(()),
            EventKind::QueuePair => {
                self.flows.created(place, first, second);
                let number = ("queue_pair", Hex(second & 0xffff_ffff));
                chrome.event(thread, Time::Moment(at), ("prepared", kind.name()), &[number])
            }
            EventKind::PreparedSend => {
                let Some(known) = self.flows.doorbell(place, first, second) else { return Ok(()) };
                chrome.event(thread, Time::Moment(at), ("prepared", kind.name()), &wqe(known))
            }
            EventKind::PreparedWait => {
                let arguments = [("completion_queue", Hex(first)), ("entry", Number(second))];
                chrome.event(thread, Time::Moment(at), ("prepared", kind.name()), &arguments)
            }
            EventKind::PostedReceive => {
                let arguments = [("queue_pair", Hex(number)), ("wr_id", Number(second))];
                chrome.event(thread, Time::Moment(at), ("prepared", kind.name()), &arguments)
            }
            EventKind::Posted => {
                let arguments = [
                    ("stream", Number(first)),
                    ("operations", Number(second)),
                    ("submission", Number(third)),
                ];
                chrome.event(thread, lasts, ("posted", kind.name()), &arguments)
            }
            EventKind::PostedDoorbell => {
                if let Some(known) = self.flows.doorbell_in_batch(place, first, second) {
                    self.flows.posted(known, (thread, at));
                    self.submitted.entry((place, third)).or_default().push(known);
                }
                Ok(())
            }
            EventKind::Performed => {
                let row = self.row(Row::Stream(place, first), process, chrome)?;
                // The relation of the clocks may change between two submissions, which follow each other.
                let last = self.performed.entry(row).or_default();
                let at = at.max(*last);
                *last = until.max(at);
                let until = *last;
                // The doorbells of the operations are known, but not their times.
                for known in self.submitted.remove(&(place, third)).unwrap_or_default() {
                    self.flows.rung(known, (row, until));
                }
                let arguments = [("operations", Number(second)), ("submission", Number(third))];
                chrome.event(row, Time::Slice(at, until), ("performed", kind.name()), &arguments)
            }
            EventKind::Rung => {
                let Some(known) = self.flows.doorbell(place, first, second) else { return Ok(()) };
                self.flows.posted(known, (thread, at));
                chrome.event(thread, lasts, ("rung", kind.name()), &wqe(known))
            }
            EventKind::WaitBegin => {
                *self.open.entry(thread).or_default() += 1;
                chrome.event(thread, Time::Begin(at), ("waited", kind.name()), &word)
            }
            EventKind::WaitEnd => {
                let Some(open) = self.open.get_mut(&thread).filter(|open| **open > 0) else { return Ok(()) };
                *open -= 1;
                chrome.event(thread, Time::End(at), ("waited", kind.name()), &[])
            }
            EventKind::Stored => match self.flows.doorbell(place, first, second).filter(|_| third == 64) {
                Some(known) => {
                    self.flows.rung(known, (thread, at));
                    chrome.event(thread, lasts, ("rung", "ring"), &wqe(known))
                }
                None => chrome.event(thread, lasts, ("stored", kind.name()), &word),
            },
            EventKind::Kernel => chrome.event(thread, lasts, ("kernel", kind.name()), &[]),
            EventKind::Synchronize => chrome.event(thread, lasts, ("waited", kind.name()), &[]),
            EventKind::Polled => {
                let arguments = [("queue_pair", Hex(first)), ("wr_id", Number(second))];
                chrome.event(thread, lasts, ("polled", kind.name()), &arguments)
            }
            EventKind::DoorbellSeen => {
                let card = self.row(Row::Card(place, node), process, chrome)?;
                let arguments = [("queue_pair", Hex(number)), ("wqe", Number(second))];
                chrome.event(card, Time::Moment(at), ("rung", kind.name()), &arguments)
            }
            EventKind::Sent => {
                let row = self.row(Row::QueuePair(place, node, number as u32), process, chrome)?;
                let (psn, bytes) = (second >> 32, second & 0xffff_ffff);
                let (to, index) = (third >> 32, third as u16);
                let opcode = Opcode::try_from((third >> 16) as u8).map(|opcode| format!("{opcode:?}"));
                let opcode = opcode.unwrap_or_default();
                self.flows.sent(place, first, index, psn as u32, (row, at));
                let arguments = [
                    ("opcode", Text(&opcode)),
                    ("wqe", Number(index.into())),
                    ("psn", Number(psn)),
                    ("bytes", Number(bytes)),
                    ("to_node", Number(to)),
                ];
                chrome.event(row, lasts, ("sent", kind.name()), &arguments)
            }
            EventKind::Arrived => {
                let row = self.row(Row::QueuePair(place, node, number as u32), process, chrome)?;
                let (psn, bytes) = (second >> 32, second & 0xffff_ffff);
                let points = self.flows.arrived(third, psn as u32, (row, at));
                let arguments = [
                    ("psn", Number(psn)),
                    ("bytes", Number(bytes)),
                    ("from_node", Number(third >> 32)),
                    ("from_queue_pair", Hex(third & 0xffff_ffff)),
                    ("post_is_known", Flag(points.is_some())),
                ];
                chrome.event(row, lasts, ("arrived", kind.name()), &arguments)?;
                let Some(points) = points else { return Ok(()) };
                self.arrows += 1;
                chrome.arrow(self.arrows, &points)
            }
            EventKind::Completed => {
                let row = self.row(Row::QueuePair(place, node, number as u32), process, chrome)?;
                let opcode = CqeOpcode::try_from((third >> 16) as u8).map(|opcode| format!("{opcode:?}"));
                let opcode = opcode.unwrap_or_default();
                let arguments = [
                    ("completion_queue", Hex(second)),
                    ("opcode", Text(&opcode)),
                    ("wqe", Number(third & 0xffff)),
                ];
                chrome.event(row, Time::Moment(at), ("completed", kind.name()), &arguments)
            }
        }
    }

    /// Returns the track of a row that is not a thread's; names it at its first use.
    fn row<W: Write>(
        &mut self,
        row: Row,
        process: &Process,
        chrome: &mut TraceWriter<W>,
    ) -> io::Result<Track> {
        if let Some(track) = self.rows.get(&row) {
            return Ok(*track);
        }
        let track = Track { pid: process.pid, tid: FIRST_ROW_ID + self.rows.len() as u32 };
        self.rows.insert(row, track);
        let card = |node: u32| match process.cards.get(&(node as u16)) {
            Some(name) => format!("{name} (node {node})"),
            None => format!("node {node}"),
        };
        let name = match row {
            Row::Card(_, node) => format!("card {}", card(node)),
            Row::QueuePair(_, node, number) => format!("queue pair {number:#x} of {}", card(node)),
            Row::Stream(_, stream) => format!("CUDA stream {stream}"),
        };
        chrome.name_track(track, &name)?;
        Ok(track)
    }
}

#[cfg(test)]
mod tests;

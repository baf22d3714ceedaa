//! Writing of Chrome traces: the JSON object format of the "Trace Event Format".

use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, Write};

/// Counts of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Events, without names.
    pub events: u64,
    /// Messages with an arrow.
    pub messages: u64,
    /// Processes.
    pub processes: u64,
    /// Dropped records: their part was full or could not be written, or this version does not know their kind.
    pub dropped: u64,
    /// Parts without an end record: the process was killed, or the file truncated.
    pub cut_off: u64,
}

/// A row of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Track {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

/// Time of an event, and its representation.
#[derive(Clone, Copy)]
pub(crate) enum Time {
    /// A span, from one time to another. A moment lasts 1 ns here, the clock's unit, because arrows begin and end at
    /// spans.
    Slice(u64, u64),
    /// The begin of a span whose end is a separate event.
    Begin(u64),
    /// The end of the row's newest open span.
    End(u64),
    /// A moment without arrows.
    Moment(u64),
}

/// A value of an event's arguments.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// A number shown in hexadecimal.
    Hex(u64),
    Text(&'a str),
    Flag(bool),
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Hex(number) => write!(f, "\"{number:#x}\""),
            Value::Text(text) => write!(f, "{}", Quoted(text)),
            Value::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// Names and values of an event.
pub(crate) type Arguments<'a> = &'a [(&'a str, Value<'a>)];

/// A JSON string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

/// Nanoseconds, printed as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A trace while it is written.
pub(crate) struct TraceWriter<W: Write> {
    out: BufWriter<W>,
    /// The time of the trace's origin.
    base: u64,
    is_empty: bool,
}

impl<W: Write> TraceWriter<W> {
    pub(crate) fn begin(out: W, base: u64) -> io::Result<Self> {
        let mut out = BufWriter::new(out);
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(TraceWriter { out, base, is_empty: true })
    }

    pub(crate) fn end(mut self, summary: &Summary) -> io::Result<()> {
        let Summary { events, processes, dropped, cut_off, .. } = summary;
        write!(
            self.out,
            "\n],\"otherData\":{{\"clock\":\"CLOCK_MONOTONIC\",\"begins_at_ns\":{},\"events\":{events},\
             \"processes\":{processes},\"dropped\":{dropped},\"cut_off\":{cut_off}}}}}\n",
            self.base,
        )?;
        self.out.flush()
    }

    fn write_item(&mut self, track: Track, phase: char, rest: fmt::Arguments<'_>) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_empty) { "" } else { "," };
        let Track { pid, tid } = track;
        write!(self.out, "{comma}\n{{\"ph\":\"{phase}\",\"pid\":{pid},\"tid\":{tid},{rest}}}")
    }

    fn write(
        &mut self,
        (track, phase, at): (Track, char, u64),
        (category, name): (&str, &str),
        more: fmt::Arguments<'_>,
        arguments: Arguments<'_>,
    ) -> io::Result<()> {
        let mut list = String::new();
        for (position, (name, value)) in arguments.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(list, "{comma}{}:{value}", Quoted(name));
        }
        let ts = Micros(at.saturating_sub(self.base));
        let (name, category) = (Quoted(name), Quoted(category));
        let rest = format_args!("\"ts\":{ts},\"cat\":{category},\"name\":{name}{more},\"args\":{{{list}}}");
        self.write_item(track, phase, rest)
    }

    /// Writes an event of a row.
    pub(crate) fn event(
        &mut self,
        track: Track,
        time: Time,
        what: (&str, &str),
        arguments: Arguments<'_>,
    ) -> io::Result<()> {
        match time {
            Time::Slice(at, until) => {
                let lasted = Micros(until.saturating_sub(at).max(1));
                self.write((track, 'X', at), what, format_args!(",\"dur\":{lasted}"), arguments)
            }
            Time::Begin(at) => self.write((track, 'B', at), what, format_args!(""), arguments),
            Time::End(at) => self.write((track, 'E', at), what, format_args!(""), arguments),
            Time::Moment(at) => self.write((track, 'i', at), what, format_args!(",\"s\":\"t\""), arguments),
        }
    }

    /// Writes an arrow through points in the order of time, each inside a span.
    pub(crate) fn arrow(&mut self, id: u64, points: &[(Track, u64)]) -> io::Result<()> {
        let last = points.len().saturating_sub(1);
        for (position, (track, at)) in points.iter().enumerate() {
            let (phase, binding) = match position {
                0 => ('s', ""),
                _ if position == last => ('f', ",\"bp\":\"e\""),
                _ => ('t', ",\"bp\":\"e\""),
            };
            let more = format_args!(",\"id\":{id}{binding}");
            self.write((*track, phase, *at), ("message", "message"), more, &[])?;
        }
        Ok(())
    }

    /// Writes the name of a process, and its position among the others.
    pub(crate) fn name_process(&mut self, pid: u32, name: &str, position: u32) -> io::Result<()> {
        let track = Track { pid, tid: pid };
        let name = Quoted(name);
        self.write_item(track, 'M', format_args!("\"name\":\"process_name\",\"args\":{{\"name\":{name}}}"))?;
        let place = format_args!("\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{position}}}");
        self.write_item(track, 'M', place)
    }

    /// Writes the name of a row.
    pub(crate) fn name_track(&mut self, track: Track, name: &str) -> io::Result<()> {
        let name = Quoted(name);
        self.write_item(track, 'M', format_args!("\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_and_times_are_microseconds() {
        assert_eq!(Quoted("a \"b\" \\ \n µ").to_string(), r#""a \"b\" \\ \u000a µ""#);
        assert_eq!([0, 999, 1_000_001].map(|ns| Micros(ns).to_string()), ["0.000", "0.999", "1000.001"]);
    }

    #[test]
    fn what_is_written_is_json() {
        let (mut bytes, track) = (Vec::new(), Track { pid: 1, tid: 2 });
        let mut chrome = TraceWriter::begin(&mut bytes, 1000).unwrap();
        chrome.name_process(1, "a \"program\"\t", 0).unwrap();
        let arguments = [("queue", Value::Hex(0x41)), ("bytes", Value::Number(8)), ("x", Value::Text("\\"))];
        chrome.event(track, Time::Slice(1500, 1500), ("posted", "post"), &arguments).unwrap();
        chrome.arrow(7, &[(track, 1500), (track, 1600), (track, 1700)]).unwrap();
        chrome.end(&Summary { events: 1, ..Summary::default() }).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events[0]["args"]["name"], "a \"program\"\t");
        let slice = &events[2];
        assert_eq!((slice["ts"].as_f64(), slice["dur"].as_f64()), (Some(0.5), Some(0.001)));
        assert_eq!((&slice["args"]["queue"], &slice["args"]["x"]), (&"0x41".into(), &"\\".into()));
        let phases: Vec<_> = events[3..].iter().map(|event| event["ph"].as_str().unwrap()).collect();
        assert_eq!((phases, &trace["otherData"]["events"]), (vec!["s", "t", "f"], &1.into()));
    }
}

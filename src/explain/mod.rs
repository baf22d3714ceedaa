//! `gdsync explain`: the memory operations of a batch, and their cost on a GPU.

mod mechanism;
mod parse;

use crate::cli::{Example, ExplainOptions};
use crate::failure::Failure;
use crate::failure::WRONG_USAGE;
use crate::{json, table, text};
use gdsync::Trigger;
use gdsync::memop::{MemOp, MemOpCaps};
use gdsync::outline::{self, Program, Target};
use mechanism::Mechanism;
use parse::{Text, sign};
use serde::Serialize;
use std::io::{self, Read};
use std::process::ExitCode;

/// GPU time of one more operation in a batch, in µs, measured on an H200 with driver 580 (`gdsync bench memops`,
/// `docs/results.md`): a write to host memory; a satisfied wait for host memory; a barrier. That GPU has no flush,
/// which counts as a barrier.
const WRITE_US: f64 = 0.63;
const WAIT_US: f64 = 1.0;
const BARRIER_US: f64 = 0.6;

const MAX_TEXT: u64 = 16 << 20;

#[derive(Debug, Serialize)]
struct Explanation {
    /// Number of queues from which on a collector waits instead of the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    collect_from: Option<u32>,
    descriptors: Vec<Descriptor>,
    plain: Compiled,
    #[serde(skip_serializing_if = "Option::is_none")]
    merged: Option<Compiled>,
}

#[derive(Debug, Serialize)]
struct Descriptor {
    text: String,
    /// Operations that the card's protocol needs.
    peer_operations: Vec<&'static str>,
    /// True if another descriptor covers this one in the merged batch, where it has no operations.
    covered: bool,
    /// The mechanism of a send, or of a wait for a completion.
    #[serde(skip_serializing_if = "Option::is_none")]
    way: Option<Mechanism>,
}

#[derive(Debug, Serialize)]
struct Compiled {
    operations: Vec<Operation>,
    submissions: usize,
    /// Excludes the time until waits are satisfied.
    gpu_us: f64,
}

#[derive(Debug, Serialize)]
struct Operation {
    submission: usize,
    /// Number of its descriptor, from 1; none for a point.
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<usize>,
    text: String,
    gpu_us: f64,
}

pub(crate) fn run(options: &ExplainOptions) -> Result<ExitCode, Failure> {
    let source = match (options.example, &options.file) {
        (Some(example), _) => example_text(example),
        (None, Some(file)) if file.as_os_str() != "-" => {
            let opened = std::fs::File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
            read(opened)?
        }
        _ => read(io::stdin().lock())?,
    };
    let batch = match Text::parse(&source) {
        Ok(batch) => batch,
        Err(mistake) => {
            if options.json {
                json::print_error(&mistake)?;
            }
            text::complain(mistake);
            return Ok(ExitCode::from(WRONG_USAGE));
        }
    };
    let collect_from = match options.example {
        Some(Example::Card) => options.collect_from.or(Some(2)),
        _ => options.collect_from,
    };
    let explanation = explain(&batch, options.plain, collect_from)?;
    text::print(options.json, &explanation, || explanation.tables())?;
    Ok(ExitCode::SUCCESS)
}

fn read(from: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    from.take(MAX_TEXT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_TEXT {
        return Err(format!("the text is longer than the {MAX_TEXT} bytes that are read").into());
    }
    Ok(text)
}

fn example_text(example: Example) -> String {
    let of_64 = || (0..64).map(|peer| format!("peer{peer}")).collect::<Vec<_>>();
    let both = [("send", ""), ("wait", ".sent"), ("wait", ".received")];
    let (peers, steps) = match example {
        Example::Halo => (["north", "south", "west", "east"].map(str::to_owned).to_vec(), both.to_vec()),
        Example::Pingpong => (vec!["peer".to_owned()], both.to_vec()),
        Example::Alltoall => (of_64(), vec![both[0], both[2]]),
        Example::Card => (of_64(), vec![("send", " by step"), both[1], both[2]]),
    };
    let line = |(descriptor, side): (&str, &str), peer: &String| format!("{descriptor} {peer}{side}\n");
    steps.into_iter().flat_map(|step| peers.iter().map(move |peer| line(step, peer))).collect()
}

fn explain(batch: &Text, plain_only: bool, collect_from: Option<u32>) -> Result<Explanation, Failure> {
    let compile = |merged| {
        let mut program = match collect_from {
            Some(queues) => Program::new().collect_from(queues),
            None => Program::new(),
        };
        program.compile(&batch.descriptors, &MemOpCaps::FULL, merged).map(|()| program)
    };
    let (plain, merged) = (compile(false)?, compile(true)?);
    let shown = if plain_only { &plain } else { &merged };
    let mechanisms = mechanism::mechanisms(batch, shown, !plain_only, collect_from);
    let descriptors = batch.descriptors.iter().zip(shown.covered()).zip(mechanisms);
    let descriptors = descriptors.map(|((one, covered), way)| Descriptor {
        text: describe(batch, one),
        peer_operations: one.peer_operations(),
        covered: *covered,
        way,
    });
    Ok(Explanation {
        collect_from,
        descriptors: descriptors.collect(),
        plain: Compiled::new(batch, &plain),
        merged: (!plain_only).then(|| Compiled::new(batch, &merged)),
    })
}

fn describe(batch: &Text, descriptor: &outline::Descriptor) -> String {
    use outline::Descriptor as D;
    let word = |word| batch.words.name(word);
    match *descriptor {
        D::Send(send) => format!("send {} of {}", send.index, batch.queue_pairs.name(send.queue_pair)),
        D::WaitCq(wait) => {
            let checked = if wait.checked { ", checked," } else { "" };
            format!("wait{checked} for completion {} of {}", wait.index, batch.queues.name(wait.queue))
        }
        D::Wait32(at, condition, value) => format!("wait until {} {} {value:#x}", word(at), sign(condition)),
        D::Wait64(at, condition, value) => format!("wait until {} {} {value:#x}", word(at), sign(condition)),
        D::Write32(at, value) => format!("write {value:#x} to {}", word(at)),
        D::Write64(at, value) => format!("write {value:#x} to {}", word(at)),
        D::Bytes(never) | D::Receives(never) | D::Ticket(never) => match never {},
        D::Barrier => "barrier".to_owned(),
        D::Flush => "flush".to_owned(),
    }
}

fn place(batch: &Text, target: Target) -> String {
    match target {
        Target::Record(number) => format!("doorbell record of {}", batch.queue_pairs.name(number)),
        Target::Register(number) => format!("doorbell of {}", batch.queue_pairs.name(number)),
        Target::Entry(number, index) => format!("entry {index} of {}", batch.queues.name(number)),
        Target::Status(number, index) => {
            format!("status of completion {index} of {}", batch.queues.name(number))
        }
        Target::Word(number) => batch.words.name(number).to_owned(),
        Target::Trigger(number) => format!("trigger {}", batch.triggers.name(number)),
        Target::Arrival => "arrival".to_owned(),
        Target::Progress => "progress".to_owned(),
        _ => "?".to_owned(),
    }
}

impl Compiled {
    fn new(batch: &Text, program: &Program) -> Self {
        let mut operations = Vec::new();
        for (submission, range) in program.submissions().enumerate() {
            for i in range {
                let op = program.operations()[i];
                let target = Target::of(&op);
                let at = target.map_or_else(String::new, |target| place(batch, target));
                let (text, gpu_us) = match op {
                    // The word holds the ticket in the card's byte order.
                    MemOp::Write64 { value, .. } if matches!(target, Some(Target::Trigger(_))) => {
                        (format!("Write64 {at} = ticket {}", Trigger::word_of(value)), WRITE_US)
                    }
                    MemOp::Write32 { value, .. } => (format!("Write32 {at} = {value:#x}"), WRITE_US),
                    MemOp::Write64 { value, .. } => (format!("Write64 {at} = {value:#x}"), WRITE_US),
                    MemOp::Wait32 { condition, value, .. } => {
                        (format!("Wait32  {at} {} {value:#x}", sign(condition)), WAIT_US)
                    }
                    MemOp::Wait64 { condition, value, .. } => {
                        (format!("Wait64  {at} {} {value:#x}", sign(condition)), WAIT_US)
                    }
                    MemOp::Barrier => ("Barrier".to_owned(), BARRIER_US),
                    MemOp::FlushRemote => ("FlushRemote".to_owned(), BARRIER_US),
                    other => (format!("{other:?}"), 0.0),
                };
                let descriptor =
                    (target != Some(Target::Progress)).then(|| program.descriptors()[i] as usize + 1);
                operations.push(Operation { submission: submission + 1, descriptor, text, gpu_us });
            }
        }
        let gpu_us = operations.iter().map(|operation| operation.gpu_us).sum();
        Compiled { operations, submissions: program.submissions().count(), gpu_us }
    }

    fn table(&self, title: &str) -> String {
        let rows: Vec<_> = self
            .operations
            .iter()
            .map(|operation| {
                let descriptor =
                    operation.descriptor.map_or_else(|| "point".to_owned(), |number| number.to_string());
                vec![operation.submission.to_string(), descriptor, operation.text.clone()]
            })
            .collect();
        table::of(&["SUBMISSION", "DESCRIPTOR", title], &rows, &[])
    }

    fn summary(&self, name: &str) -> String {
        let (operations, submissions) = (self.operations.len() as u64, self.submissions as u64);
        format!(
            "{name}: {}, {}, {:.2} µs of a GPU\n",
            text::count(operations, "memory operation"),
            text::count(submissions, "submission"),
            self.gpu_us
        )
    }
}

impl Explanation {
    fn tables(&self) -> String {
        let rows: Vec<_> = self
            .descriptors
            .iter()
            .enumerate()
            .map(|(i, descriptor)| {
                let fate = if descriptor.covered { "covered" } else { "" };
                let peer = descriptor.peer_operations.join(" ");
                let way = descriptor.way.as_ref().map_or_else(String::new, Mechanism::to_string);
                vec![(i + 1).to_string(), descriptor.text.clone(), peer, fate.to_owned(), way]
            })
            .collect();
        let mut text =
            table::of(&["", "DESCRIPTOR", "PEER OPERATIONS", "MERGED", "WAY"], &rows, &["PEER OPERATIONS"]);
        text.push('\n');
        text += &self.plain.table("PLAIN");
        if let Some(merged) = &self.merged {
            text.push('\n');
            text += &merged.table("MERGED");
        }
        text.push('\n');
        text += &self.plain.summary("plain");
        text += &self.merged.as_ref().map_or_else(String::new, |merged| merged.summary("merged"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Explanation {
        explain(&Text::parse(text).unwrap(), false, None).unwrap()
    }

    #[test]
    fn the_issue_in_figures() {
        let many = of("send a x64\nwait a x64");
        let merged = many.merged.unwrap();
        assert_eq!((many.plain.operations.len(), merged.operations.len()), (256, 4));
        assert!(many.plain.gpu_us / merged.gpu_us >= 15.0, "{} and {}", many.plain.gpu_us, merged.gpu_us);
        let step = of(&example_text(Example::Alltoall)).merged.unwrap().operations.len();
        assert!(step as f64 / 64.0 <= 3.1, "{step}");
        let shared = of(&example_text(Example::Alltoall).replace(|c: char| c.is_ascii_digit(), ""));
        // All peers in one queue pair: a step, and a wait.
        assert_eq!(shared.merged.unwrap().operations.len(), 4);
    }

    #[test]
    fn every_example_is_a_batch() {
        for (example, plain, merged) in
            [(Example::Halo, 24, 17), (Example::Pingpong, 6, 5), (Example::Alltoall, 257, 193)]
        {
            let explanation = of(&example_text(example));
            // A batch beyond one submission has an additional point.
            let count = explanation.plain.operations.len();
            assert!((plain - 1..=plain).contains(&count), "{example:?}: {count}");
            assert_eq!(explanation.merged.unwrap().operations.len(), merged, "{example:?}");
        }
    }

    #[test]
    fn the_card_takes_a_step_of_64_peers_in_three_operations() {
        let batch = Text::parse(&example_text(Example::Card)).unwrap();
        let step = explain(&batch, false, Some(2)).unwrap();
        let merged = step.merged.as_ref().unwrap();
        let found: Vec<_> = merged.operations.iter().map(|op| (op.descriptor, op.text.as_str())).collect();
        let expected = [
            (Some(64), "Write64 trigger step = ticket 64"),
            (Some(192), "Wait64  arrival >= 0x1"),
            (None, "Write32 progress = 0x1"),
        ];
        assert_eq!(found, expected);
        let json = serde_json::to_value(&step).unwrap();
        let expected = serde_json::json!({ "by": "trigger", "trigger": "step", "ticket": 1, "sends": 64 });
        assert_eq!(json["descriptors"][0]["way"], expected);
        let expected = serde_json::json!({ "by": "collector", "number": 1, "queues": 128 });
        assert_eq!(json["descriptors"][191]["way"], expected);
        let few = explain(&batch, false, Some(200)).unwrap();
        assert_eq!(few.merged.as_ref().unwrap().operations.len(), 1 + 128 + 1);
        let few = serde_json::to_value(&few).unwrap();
        let why = serde_json::json!({ "not_collected": "few-queues", "queues": 128, "collect_from": 200 });
        let mut expected = serde_json::json!({ "by": "stream" });
        expected.as_object_mut().unwrap().extend(why.as_object().unwrap().clone());
        assert_eq!(few["descriptors"][64]["way"], expected);
    }

    #[test]
    fn tables_say_which_way_sends_and_waits_go() {
        let text = "send a\nsend b by go\nsend c by go\nwait a.sent\nwait b.sent\nwait-checked c.sent";
        let batch = Text::parse(text).unwrap();
        let tables = explain(&batch, false, Some(2)).unwrap().tables();
        let rows: Vec<_> = tables
            .lines()
            .take(7)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let expected = [
            "DESCRIPTOR PEER OPERATIONS MERGED WAY",
            "1 send 0 of a Fence StoreDword Fence StoreQword doorbell",
            "2 send 0 of b Fence StoreQword covered ticket 1 of go (one write releases 2 sends)",
            "3 send 0 of c Fence StoreQword ticket 2 of go (one write releases 2 sends)",
            "4 wait for completion 0 of a.sent PollNor collected (2 queues, one word)",
            "5 wait for completion 0 of b.sent PollNor collected (2 queues, one word)",
            "6 wait, checked, for completion 0 of c.sent PollAnd not collected (checked)",
        ];
        assert_eq!(rows, expected);
        let plain = explain(&batch, true, Some(2)).unwrap().tables();
        assert!(plain.contains("not collected (unmerged)"), "{plain}");
    }

    #[test]
    fn tables_name_what_the_text_names() {
        let text = of("write32 flag 5\nsend left x2\nwait left.sent").tables();
        for said in [
            "send 0 of left",
            "Fence StoreDword Fence StoreQword",
            "covered",
            "Write32 doorbell record of left",
            "Wait32  entry 0 of left.sent nor",
            "Write32 flag = 0x5",
            "point",
            "merged: 5 memory operations, 1 submission, 3.52 µs",
        ] {
            assert!(text.contains(said), "{said}:\n{text}");
        }
    }
}

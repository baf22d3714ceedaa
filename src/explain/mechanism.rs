//! The mechanisms by which sends are started and completions are waited for, and why.

use super::parse::Text;
use gdsync::outline::{Descriptor, PaperSend, PaperWait, Program};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

/// The mechanism of a send, or of a wait for a completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub(super) enum Mechanism {
    /// A doorbell that rings for `sends` sends.
    Doorbell { sends: usize },
    /// A ticket of a trigger. The write that releases it releases `sends` sends.
    Trigger { trigger: String, ticket: u64, sends: usize },
    /// The card waits for `queues` queues and then writes `number`, for which the stream waits.
    Collector { number: u64, queues: usize },
    Stream {
        /// Why the card does not wait, if it was asked to.
        #[serde(flatten)]
        why: Option<Why>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "not_collected", rename_all = "kebab-case")]
pub(super) enum Why {
    Unmerged,
    /// The stream waits for a status word, which no card writes.
    Checked,
    /// The run waits for fewer queues.
    FewQueues {
        queues: usize,
        collect_from: u32,
    },
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mechanism::Doorbell { sends: 1 } => f.write_str("doorbell"),
            Mechanism::Doorbell { sends } => write!(f, "doorbell (one rings for {sends} sends)"),
            Mechanism::Trigger { trigger, ticket, sends } => {
                let plural = if *sends == 1 { "" } else { "s" };
                write!(f, "ticket {ticket} of {trigger} (one write releases {sends} send{plural})")
            }
            Mechanism::Collector { queues, .. } => write!(f, "collected ({queues} queues, one word)"),
            Mechanism::Stream { why: None } => f.write_str("the stream waits"),
            Mechanism::Stream { why: Some(why) } => match why {
                Why::Unmerged => f.write_str("not collected (unmerged)"),
                Why::Checked => f.write_str("not collected (checked)"),
                Why::FewQueues { queues, collect_from } => {
                    write!(f, "not collected ({queues} of {collect_from} queues)")
                }
            },
        }
    }
}

/// The doorbell or trigger of a send: sends with equal keys can be merged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Doorbell(u32),
    Trigger(u32),
}

/// Returns the mechanism of each descriptor of a program; none if it is neither a send nor a wait for a completion.
pub(super) fn mechanisms(
    batch: &Text,
    program: &Program,
    merged: bool,
    collect_from: Option<u32>,
) -> Vec<Option<Mechanism>> {
    let mut mechanisms = vec![None; batch.descriptors.len()];
    sends(batch, program, &mut mechanisms);
    let mut start = 0;
    for submission in program.submissions() {
        let last = submission.last().and_then(|last| program.descriptors().get(last));
        let end = last.map_or(start, |last| *last as usize + 1);
        for run in runs(&batch.descriptors, start..end) {
            waits(&batch.descriptors, program, run, collect_from.map(|from| (merged, from)), &mut mechanisms);
        }
        start = end;
    }
    mechanisms
}

fn sends(batch: &Text, program: &Program, mechanisms: &mut [Option<Mechanism>]) {
    // Sends whose doorbell or ticket is covered by a later send.
    let mut covered: HashMap<Key, Vec<(usize, PaperSend)>> = HashMap::new();
    for (at, (descriptor, is_covered)) in batch.descriptors.iter().zip(program.covered()).enumerate() {
        let Descriptor::Send(send) = *descriptor else { continue };
        let key = send.trigger.map_or(Key::Doorbell(send.queue_pair), |(trigger, _)| Key::Trigger(trigger));
        let group = covered.entry(key).or_default();
        group.push((at, send));
        if *is_covered {
            continue;
        }
        let sends = group.len();
        for (at, send) in group.drain(..) {
            mechanisms[at] = Some(match send.trigger {
                None => Mechanism::Doorbell { sends },
                Some((trigger, ticket)) => {
                    Mechanism::Trigger { trigger: batch.triggers.name(trigger).to_owned(), ticket, sends }
                }
            });
        }
    }
}

/// Returns the runs of waits for completions among a submission's descriptors.
fn runs(descriptors: &[Descriptor], submission: Range<usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in submission {
        if !matches!(descriptors[at], Descriptor::WaitCq(_)) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Notes the waits of one run. `asked`: whether batches are merged, and from how many queues on a collector waits.
fn waits(
    descriptors: &[Descriptor],
    program: &Program,
    run: Range<usize>,
    asked: Option<(bool, u32)>,
    mechanisms: &mut [Option<Mechanism>],
) {
    let waits = || {
        run.clone().filter_map(|at| match descriptors[at] {
            Descriptor::WaitCq(wait) => Some((at, wait)),
            _ => None,
        })
    };
    let queues = waits().filter(|(_, wait)| !wait.checked).map(|(_, wait)| wait.queue);
    let queues = queues.collect::<HashSet<_>>().len();
    let number = run.clone().find_map(|at| program.arrivals()[at]);
    for (at, PaperWait { checked, .. }) in waits() {
        let why = asked.map(|(merged, collect_from)| match (merged, checked) {
            (false, _) => Why::Unmerged,
            (true, true) => Why::Checked,
            (true, false) => Why::FewQueues { queues, collect_from },
        });
        mechanisms[at] = Some(match number {
            Some(number) if !checked => Mechanism::Collector { number, queues },
            _ => Mechanism::Stream { why },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::memop::MemOpCaps;

    fn of(text: &str, merged: bool, collect_from: Option<u32>) -> Vec<String> {
        let batch = Text::parse(text).unwrap();
        let mut program = Program::new();
        if let Some(queues) = collect_from {
            program = program.collect_from(queues);
        }
        program.compile(&batch.descriptors, &MemOpCaps::FULL, merged).unwrap();
        let mechanisms = mechanisms(&batch, &program, merged, collect_from);
        mechanisms.iter().map(|way| way.as_ref().map_or_else(String::new, Mechanism::to_string)).collect()
    }

    #[test]
    fn sends_go_by_doorbells_and_tickets() {
        let text = "send a x2\nsend b by go\nwrite32 flag 1\nsend c by go\nbarrier\nsend b by go";
        let (two, one) = ("(one write releases 2 sends)", "(one write releases 1 send)");
        let doorbell = "doorbell (one rings for 2 sends)";
        let tickets = [
            format!("ticket 1 of go {two}"),
            format!("ticket 2 of go {two}"),
            format!("ticket 3 of go {one}"),
        ];
        let merged = [doorbell, doorbell, &tickets[0], "", &tickets[1], "", &tickets[2]];
        assert_eq!(of(text, true, None), merged);
        let tickets = [1, 2, 3].map(|ticket| format!("ticket {ticket} of go {one}"));
        let plain = ["doorbell", "doorbell", &tickets[0], "", &tickets[1], "", &tickets[2]];
        assert_eq!(of(text, false, None), plain);
    }

    #[test]
    fn waits_are_collected_or_not_and_why() {
        let text = "wait a\nwait b\nwait a\nwait-checked c\nwait c\nbarrier\nwait a\nwait b";
        let (all, few) = ("collected (3 queues, one word)", "not collected (2 of 3 queues)");
        let checked = "not collected (checked)";
        assert_eq!(of(text, true, Some(3)), [all, all, all, checked, all, "", few, few]);
        let stream = "the stream waits";
        assert_eq!(of(text, true, None), [stream, stream, stream, stream, stream, "", stream, stream]);
        assert!(of(text, false, Some(2)).iter().all(|way| way.is_empty() || way.contains("unmerged")));
    }

    #[test]
    fn a_run_over_two_submissions_is_two() {
        let text: String = (0..300).map(|queue| format!("wait q{queue}\n")).collect();
        let mechanisms = of(&text, true, Some(270));
        let few = |queues| format!("not collected ({queues} of 270 queues)");
        assert_eq!((&mechanisms[0], &mechanisms[299]), (&few(254), &few(46)));
    }
}

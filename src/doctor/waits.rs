//! What cards wait for by themselves.

use super::check::{Check, Question};
use super::libraries::{Answer, Features, Verbs, Waits};
use super::machine::Machine;

/// One check for each card that the libraries or the buses show.
pub(super) fn checks(machine: &Machine<'_>) -> Vec<Check> {
    let verbs = machine.libraries.verbs.says();
    let mut names: Vec<&str> = machine.cards.iter().map(|card| card.name.as_str()).collect();
    let listed = verbs.iter().flat_map(|verbs| verbs.waits.keys().map(String::as_str));
    names.extend(listed.filter(|name| machine.cards.iter().all(|card| card.name != *name)));
    names.into_iter().map(|name| check(name, verbs)).collect()
}

fn check(name: &str, verbs: Option<&Verbs>) -> Check {
    let question = Question::new(
        format!("{name} waits"),
        "one word of a stream releases sends to any number of peers, and one tells of their completions; without it the stream rings and waits for each, which takes a GPU longer with each peer, and registers have to be mapped for that",
    );
    let answer = verbs.and_then(|verbs| verbs.waits.get(name));
    let Some(verbs) = verbs else { return question.skip("libibverbs does not say") };
    let waits = match answer {
        Some(Answer::Says(waits)) => waits,
        Some(Answer::Absent(reason) | Answer::Broken(reason)) => return question.skip(reason),
        Some(Answer::NotAsked) | None => return question.skip("libibverbs does not say"),
    };
    let firmware = verbs.ports.iter().find(|port| port.device == name).map(|port| &port.firmware);
    let firmware = firmware.map_or_else(String::new, |version| format!(", firmware {version}"));
    let more = waits.more.as_ref().map_or_else(String::new, features);
    let seen = format!("{}{firmware}{more}", describe(waits));
    if waits.data && waits.queues {
        return question.pass(seen);
    }
    let ways = match waits.data {
        false => {
            "doorbells work: map the card's registers (root, or PeerMappingOverride=1), else a thread of the CPU rings"
        }
        true => "sends need nothing (`--doorbells card`); the stream waits for each completion queue itself",
    };
    question.warn(seen, format!("a ConnectX-7 or newer, with the newest firmware, can; {ways}"))
}

fn has(has: bool) -> &'static str {
    if has { "yes" } else { "no" }
}

/// What else the firmware has.
fn features(more: &Features) -> String {
    let recordless = match more.recordless {
        0 => "none".to_owned(),
        most => format!("up to {most}"),
    };
    format!(
        "; for a time (wait_on_time) {}, queues that ignore overruns (cq_oi) {}, queue pairs without doorbell records {recordless}",
        has(more.time),
        has(more.ignore_overrun)
    )
}

fn describe(waits: &Waits) -> String {
    format!("for words (wait_on_data) {}, for completion queues (cd) {}", has(waits.data), has(waits.queues))
}

//! The schedules that a search tries: from the coarsest to the finest, and then the coarse ones again with other seeds.

use super::census::{Census, Group};
use crate::liberties::{Decision, LibertyKinds, Rule, Schedule};
use std::time::Duration;

/// Sum of the times for which cards hold something back in a run, at most: the hold of a schedule is shorter where many
/// decisions are taken.
const TOTAL_HOLD: Duration = Duration::from_secs(10);
/// Shortest and longest hold.
const HOLDS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));
/// Maximum number of single decisions of a queue pair and kind that are tried alone.
const SINGLES: usize = 16;

/// Kinds in the order in which they are tried: those that programs rely on most come first.
const ORDER: [LibertyKinds; 9] = [
    LibertyKinds::RELAXED,
    LibertyKinds::PIECES,
    LibertyKinds::FETCH,
    LibertyKinds::TRANSMIT,
    LibertyKinds::COMPLETIONS,
    LibertyKinds::ATOMICS,
    LibertyKinds::ACKNOWLEDGEMENTS,
    LibertyKinds::DOORBELLS,
    LibertyKinds::UNORDERED,
];

/// A schedule of the plan, and its description for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) schedule: Schedule,
    pub(super) what: String,
}

/// Returns the hold of a schedule that takes up to `count` decisions.
fn hold(count: usize) -> Duration {
    (TOTAL_HOLD / count.max(1) as u32).clamp(HOLDS.0, HOLDS.1)
}

/// Returns the schedules to try, without end if there are decisions.
pub(super) fn attempts(census: &Census) -> impl Iterator<Item = Attempt> + '_ {
    let rounds = if census.total() > 0 { 0..u64::MAX } else { 0..0 };
    rounds.flat_map(move |round| {
        let groups = move |kind| census.groups.iter().filter(move |((of, ..), _)| *of == kind);
        ORDER.into_iter().flat_map(move |kind| of_kind(round, kind, groups(kind).collect()))
    })
}

/// Returns the attempts of a round with a kind. Even rounds take half of the decisions; odd ones go into detail.
fn of_kind(round: u64, kind: LibertyKinds, groups: Vec<(&Group, &Vec<Decision>)>) -> Vec<Attempt> {
    let total: usize = groups.iter().map(|(_, all)| all.len()).sum();
    if total == 0 {
        return Vec::new();
    }
    let attempt = |rule: Rule, count, what: &str| Attempt {
        schedule: Schedule { seed: round, hold: Some(hold(count)), rules: vec![rule] },
        what: format!("{what} {}", kind.words()),
    };
    let half =
        |of: &Group| Rule { half: true, process: Some(of.1.clone()), qp: Some(of.2), ..Rule::all(kind) };
    match round {
        0 => vec![attempt(Rule::all(kind), total, "all")],
        1 | 2 => vec![attempt(Rule { half: true, ..Rule::all(kind) }, total, "half of all")],
        round if round % 4 == 3 => {
            let groups = groups
                .iter()
                .map(|(of, all)| attempt(half(of), all.len(), &format!("half of qp {} of {}:", of.2, of.1)));
            groups.collect()
        }
        round if round % 4 == 0 => {
            let singles = groups.iter().flat_map(|(of, all)| some_of(all, round).map(|one| (&of.1, one)));
            singles.map(|(card, one)| attempt(Rule::single(card, one), 1, "a single")).collect()
        }
        _ => vec![attempt(Rule { half: true, ..Rule::all(kind) }, total, "half of all")],
    }
}

/// Returns some of the decisions, other ones in other rounds.
fn some_of(all: &[Decision], round: u64) -> impl Iterator<Item = Decision> {
    let stride = all.len().div_ceil(SINGLES);
    let start = (round / 4) as usize % stride.max(1);
    all.iter().copied().skip(start).step_by(stride.max(1))
}

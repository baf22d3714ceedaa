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
const ORDER: [LibertyKinds; 13] = [
    LibertyKinds::RELAXED,
    LibertyKinds::PIECES,
    LibertyKinds::FETCH,
    LibertyKinds::TRANSMIT,
    LibertyKinds::COMPLETIONS,
    LibertyKinds::ATOMICS,
    LibertyKinds::ACKNOWLEDGEMENTS,
    LibertyKinds::DOORBELLS,
    LibertyKinds::UNORDERED,
    LibertyKinds::DELAY,
    LibertyKinds::DUPLICATE,
    LibertyKinds::DROP,
    LibertyKinds::RNR,
];
/// Kinds of which each decision costs the run a time-out or a pause.
const COSTLY: LibertyKinds = LibertyKinds::DROP.union(LibertyKinds::RNR);
/// Maximum number of decisions of costly kinds in a run.
const FEW: usize = 8;

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
    let attempt_all = |rules: Vec<Rule>, count, what: &str| Attempt {
        schedule: Schedule { seed: round, hold: Some(hold(count)), rules, ..Schedule::default() },
        what: format!("{what} {}", kind.words()),
    };
    let attempt = |rule, count, what: &str| attempt_all(vec![rule], count, what);
    if COSTLY.contains(kind) && !round.is_multiple_of(4) {
        return few(round, &groups).into_iter().map(|rules| attempt_all(rules, FEW, "a few")).collect();
    }
    let half =
        |of: &Group| Rule { half: true, process: Some(of.1.clone()), qp: Some(of.2), ..Rule::all(kind) };
    match round {
        0 if COSTLY.contains(kind) => Vec::new(),
        0 => vec![attempt(Rule::all(kind), total, "all")],
        1 | 2 => vec![attempt(Rule { half: true, ..Rule::all(kind) }, total, "half of all")],
        round if round % 4 == 3 => {
            let groups = groups
                .iter()
                .map(|(of, all)| attempt(half(of), all.len(), &format!("half of qp {} of {}:", of.2, of.1)));
            groups.collect()
        }
        round if round % 4 == 0 => {
            let singles =
                groups.iter().flat_map(|(of, all)| some_of(all, round, SINGLES).map(|one| (&of.1, one)));
            singles.map(|(card, one)| attempt(Rule::single(card, one), 1, "a single")).collect()
        }
        _ => vec![attempt(Rule { half: true, ..Rule::all(kind) }, total, "half of all")],
    }
}

/// Returns rules for a few decisions of all groups together, or in some rounds of each.
fn few(round: u64, groups: &[(&Group, &Vec<Decision>)]) -> Vec<Vec<Rule>> {
    let rules = groups.iter().map(|(of, all)| all.iter().map(|one| Rule::single(&of.1, *one)).collect());
    let rules: Vec<Vec<Rule>> = rules.collect();
    let sets = if round % 4 == 3 { rules } else { vec![rules.concat()] };
    sets.iter().map(|all| some_of(all, round, FEW).collect()).collect()
}

/// Returns some of them, other ones in other rounds.
fn some_of<T: Clone>(all: &[T], round: u64, most: usize) -> impl Iterator<Item = T> {
    let stride = all.len().div_ceil(most).max(1);
    let start = (round / 4) as usize % stride;
    all.iter().skip(start).step_by(stride).cloned()
}

#[cfg(test)]
mod tests {
    use super::super::census::Journal;
    use super::*;
    use crate::liberties::journal::Entry;
    use crate::liberties::{Subject, Work};
    use std::collections::HashSet;

    #[test]
    fn a_run_loses_a_few_packets_only() {
        let entries = (0..80).map(|number| {
            let work = Work { qp: number % 2, subject: Subject::Request(number), packet: 0 };
            Entry::Decided { decision: Decision { kind: LibertyKinds::DROP, work }, taken: false }
        });
        let journal = Journal { card: "a".to_owned(), entries: entries.collect() };
        let census = Census::of(&[journal], LibertyKinds::all());
        let tried: Vec<Vec<Rule>> = attempts(&census).take(100).map(|tried| tried.schedule.rules).collect();
        let counts: HashSet<usize> = tried.iter().map(Vec::len).collect();
        assert_eq!(counts, HashSet::from([1, FEW]));
        let decisions: HashSet<Decision> = tried.iter().flatten().filter_map(Rule::decision).collect();
        assert_eq!(decisions.len(), 80, "all of them are tried");
    }
}

use super::*;
use crate::liberties::journal::CardJournal;
use crate::liberties::{Decisions, Subject, Work};
use std::collections::BTreeSet;
use std::convert::Infallible;

/// A job without a card, whose two processes decide about messages of two queue pairs each.
struct Model<F> {
    runs: usize,
    /// True for the messages with which it fails, as (process, queue pair, message, kind).
    fails: F,
}

type Taken = BTreeSet<(&'static str, u32, u32, LibertyKinds)>;

const PROCESSES: [&str; 2] = ["a", "b"];
const KINDS: [LibertyKinds; 2] = [LibertyKinds::RELAXED, LibertyKinds::PIECES];

impl<F: FnMut(usize, &Taken) -> bool> Job for Model<F> {
    type Error = Infallible;

    fn run(&mut self, schedule: &Schedule, _: Duration) -> Result<Run, Infallible> {
        self.runs += 1;
        let (mut all, mut journals) = (Taken::new(), Vec::new());
        for process in PROCESSES {
            let (journal, text) = CardJournal::in_memory();
            let mut decisions = Decisions::of(Some(schedule), (Some(process.to_owned()), 0), Some(journal));
            for (qp, message) in (0..2).flat_map(|qp| (0..40).map(move |message| (qp, message))) {
                let work = Work { qp, subject: Subject::Message(message), packet: 0 };
                let taken = KINDS.into_iter().filter(|kind| decisions.take(*kind, work).is_some());
                all.extend(taken.map(|kind| (process, qp, message, kind)).collect::<Vec<_>>());
            }
            journals.push(Journal::parse(process.to_owned(), &text.lock()));
        }
        let failure = (self.fails)(self.runs, &all).then(|| "wrong".to_owned());
        Ok(Run { failure, journals })
    }
}

fn explore(fails: impl FnMut(usize, &Taken) -> bool) -> Result<Outcome, Refusal<Infallible>> {
    let limits = Limits { runs: Some(200), time: None, ..Limits::default() };
    search(&mut Model { runs: 0, fails }, limits, |_| true)
}

const NEEDED: (&str, u32, u32, LibertyKinds) = ("b", 1, 17, LibertyKinds::PIECES);

fn names_what_is_needed(finding: &Finding) {
    assert_eq!(finding.schedule.to_string().lines().last(), Some("pieces in b qp 1 message 17 packet 0"));
    assert_eq!((finding.schedule.rules.len(), finding.causes.len()), (1, 1));
    assert_eq!(finding.failure, "wrong");
}

#[test]
fn a_single_decision_is_found_and_named() {
    let finding = explore(|_, taken| taken.contains(&NEEDED)).unwrap().finding.unwrap();
    names_what_is_needed(&finding);
    assert_eq!(finding.confirmed, (10, 10));
}

/// It needs one decision taken and a neighbour not taken: all of a kind hide it.
#[test]
fn half_of_the_decisions_find_what_all_hide() {
    let (process, qp, message, kind) = NEEDED;
    let next = (process, qp, message + 1, kind);
    let outcome = explore(|_, taken| taken.contains(&NEEDED) && !taken.contains(&next)).unwrap();
    assert!(outcome.runs > 1);
    names_what_is_needed(&outcome.finding.unwrap());
}

#[test]
fn two_decisions_of_two_processes_that_are_needed_remain() {
    let both = [("a", 0, 3, LibertyKinds::RELAXED), ("b", 0, 30, LibertyKinds::RELAXED)];
    let finding = explore(|_, taken| both.iter().all(|one| taken.contains(one))).unwrap().finding.unwrap();
    let rules: Vec<_> = finding.schedule.rules.iter().map(Rule::to_string).collect();
    assert_eq!(rules, ["relaxed in a qp 0 message 3 packet 0", "relaxed in b qp 0 message 30 packet 0"]);
}

/// Of three runs that should fail, two do.
#[test]
fn a_job_that_fails_now_and_then_is_shrunk_too() {
    let mut count = 0;
    let finding = explore(|_, taken| {
        count += usize::from(taken.contains(&NEEDED));
        taken.contains(&NEEDED) && count % 3 != 0
    });
    let finding = finding.unwrap().finding.unwrap();
    names_what_is_needed(&finding);
    assert!((6..=7).contains(&finding.confirmed.0), "{:?}", finding.confirmed);
}

/// Every message has other names in every run, so that single decisions mean nothing.
#[test]
fn rules_remain_as_they_are_where_names_change() {
    let finding = explore(|run, taken| run > 3 && taken.len() > 50).unwrap().finding.unwrap();
    assert!(finding.schedule.rules.len() < 160, "{}", finding.schedule.rules.len());
}

#[test]
fn nothing_is_found_in_a_right_job_within_the_limit() {
    let mut runs = 0;
    let outcome = explore(|run, _| {
        runs = run;
        false
    });
    let outcome = outcome.unwrap();
    assert!(outcome.finding.is_none() && outcome.covered);
    assert_eq!((outcome.runs, runs), (200, 200 + ORDERLY));
    let counts = [(LibertyKinds::PIECES, 160), (LibertyKinds::RELAXED, 160)];
    assert_eq!(outcome.census.counts(), counts);
}

/// The machine fails some runs, whatever the schedule.
#[test]
fn a_failure_that_does_not_come_again_is_no_finding() {
    let outcome = explore(|run, _| [10, 40].contains(&run)).unwrap();
    assert!(outcome.finding.is_none(), "{:?}", outcome.finding);
    assert_eq!(outcome.unrepeated, ["wrong", "wrong"]);
}

#[test]
fn kinds_that_are_not_wanted_are_not_taken() {
    let limits = Limits { runs: Some(30), time: None, kinds: LibertyKinds::RELAXED };
    let fails = |_, taken: &Taken| taken.iter().any(|(.., kind)| *kind != LibertyKinds::RELAXED);
    let outcome = search(&mut Model { runs: 0, fails }, limits, |_| true).unwrap();
    assert!(outcome.finding.is_none());
}

#[test]
fn a_job_that_fails_in_order_or_decides_nothing_is_refused() {
    let refused = explore(|_, _| true).unwrap_err();
    assert!(refused.to_string().contains("on a prompt and orderly card, too: wrong"), "{refused}");
    struct Idle;
    impl Job for Idle {
        type Error = Infallible;
        fn run(&mut self, _: &Schedule, _: Duration) -> Result<Run, Infallible> {
            Ok(Run::default())
        }
    }
    let refused = search(&mut Idle, Limits::default(), |_| true).unwrap_err();
    assert!(matches!(refused, Refusal::NothingToDecide), "{refused}");
    let others = Limits { kinds: LibertyKinds::ATOMICS, ..Limits::default() };
    let refused = search(&mut Model { runs: 0, fails: |_, _: &Taken| false }, others, |_| true).unwrap_err();
    assert!(refused.to_string().contains("no choice of the kinds atomics"), "{refused}");
}

/// From the end on, runs are cut off, so that they do not fail.
#[test]
fn what_has_failed_is_told_though_the_search_is_ended() {
    for when in [Progress::Failed(160), Progress::Shrinks(160), Progress::Shrinks(10), Progress::Confirms] {
        let has_ended = std::cell::Cell::new(false);
        let fails = |_, taken: &Taken| !has_ended.get() && taken.contains(&NEEDED);
        let tell = |what| {
            has_ended.set(has_ended.get() || what == when);
            !has_ended.get()
        };
        let limits = Limits { runs: Some(1), time: None, kinds: LibertyKinds::PIECES };
        let outcome = search(&mut Model { runs: 0, fails }, limits, tell).unwrap();
        let finding = outcome.finding.unwrap_or_else(|| panic!("{when:?}"));
        assert!(finding.schedule.to_string().contains("pieces in b qp 1 message 17 packet 0"), "{when:?}");
        assert_eq!((finding.confirmed, finding.failure.as_str()), ((0, 0), "wrong"), "{when:?}");
    }
}

#[test]
fn it_ends_when_it_is_told() {
    let limits = Limits { runs: None, time: None, ..Limits::default() };
    let tell = |what| !matches!(what, Progress::Tries(5, _));
    let outcome = search(&mut Model { runs: 0, fails: |_, _: &Taken| false }, limits, tell).unwrap();
    assert_eq!((outcome.runs, outcome.finding.is_none()), (5, true));
    let at_once = search(&mut Model { runs: 0, fails: |_, _: &Taken| false }, limits, |_| false).unwrap();
    assert_eq!((at_once.runs, at_once.census.total()), (0, 0));
}

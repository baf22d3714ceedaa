//! The counts of a soak.

use gdsync::queue::WorkError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of problems described in words.
const PROBLEMS: usize = 5;

macro_rules! tally {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// Counts of one process, or of all.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub(super) struct Tally {
            $($(#[$meta])* pub(super) $name: u64,)*
            /// Work requests that completed with an error, by error.
            pub(super) errors: BTreeMap<String, u64>,
            /// How often each rule of the plan applied. Empty if the cards do not report it.
            pub(super) rules: Vec<RuleTally>,
            /// The first problems, in words.
            pub(super) problems: Vec<String>,
        }

        impl Tally {
            fn add_counts(&mut self, other: &Tally) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

tally! {
    /// Posted work requests, sends and receives.
    posted,
    /// Work requests that completed successfully.
    operations,
    /// Work requests that completed with an error.
    flushed,
    /// Unsignaled work requests without a completion when their queue pair failed.
    silent,
    bytes,
    /// Messages of reliable links sent, including those resent after a failure, and received.
    sent,
    received,
    reads,
    atomics,
    /// Atomic operations that failed, and those of them that were executed nevertheless.
    atomics_failed,
    atomics_executed,
    /// Messages of unreliable links sent, received, and lost, which is allowed.
    loose_sent,
    loose_received,
    dropped,
    /// Work requests posted by streams of a GPU, and by its kernels or their stand-ins.
    #[serde(default, skip_serializing_if = "is_zero")]
    by_cuda,
    #[serde(default, skip_serializing_if = "is_zero")]
    by_kernels,
    /// Work requests released by a word of a stream, and waits collected by the card.
    triggered,
    collected,
    /// Waits whose status was compared with the completion.
    checked,
    /// Queue pair failures noticed by an end, and queue pairs aborted at random.
    failures,
    aborted,
    /// Ends that resumed with the same queue pair, and with a new one.
    reset,
    replaced,
    events,
    lost,
    duplicated,
    wrong,
    /// Completions of nothing posted, out of order, or missing.
    unaccounted,
    hung,
}

/// Skips counts of runs with a GPU in the output of others.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How often a rule of the plan applied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RuleTally {
    pub(super) rule: String,
    pub(super) matched: u64,
    pub(super) injected: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        self.add_counts(other);
        for (error, count) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
        if self.rules.is_empty() {
            self.rules.clone_from(&other.rules);
        } else {
            for (sum, rule) in self.rules.iter_mut().zip(&other.rules) {
                sum.matched += rule.matched;
                sum.injected += rule.injected;
            }
        }
        other.problems.iter().for_each(|problem| self.problem(|| problem.clone()));
    }

    pub(super) fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(text());
        }
    }

    /// Counts data that arrived, or was left behind, with a wrong value.
    pub(super) fn wrong(&mut self, text: impl FnOnce() -> String) {
        self.wrong += 1;
        self.problem(text);
    }

    pub(super) fn error(&mut self, error: WorkError) {
        self.flushed += 1;
        let name = error.kind().map_or_else(|| format!("{:#x}", error.syndrome), |kind| format!("{kind:?}"));
        *self.errors.entry(name).or_default() += 1;
    }

    /// Checks at the end that everything posted has completed once.
    pub(super) fn balance(&mut self) {
        let (posted, completed) = (self.posted, self.operations + self.flushed + self.silent);
        if posted != completed {
            self.unaccounted += posted.abs_diff(completed);
            self.problem(|| format!("{posted} work requests were posted, {completed} completed"));
        }
    }

    /// Returns the number of injected faults, if the cards report it.
    pub(super) fn injected(&self) -> Option<u64> {
        (!self.rules.is_empty()).then(|| self.rules.iter().map(|rule| rule.injected).sum())
    }

    /// Returns whether no error was counted that must not occur.
    pub(super) fn is_clean(&self) -> bool {
        [self.lost, self.duplicated, self.wrong, self.unaccounted, self.hung] == [0; 5]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_posted_has_to_complete_once() {
        for (operations, missing) in [(7, 0), (6, 1), (9, 2)] {
            let mut tally = Tally { posted: 10, operations, ..Tally::default() };
            (0..3).for_each(|_| tally.error(WorkError::new(5, 0)));
            tally.balance();
            assert_eq!((tally.unaccounted, tally.is_clean()), (missing, missing == 0), "{tally:?}");
            assert_eq!(tally.errors["WrFlush"], 3);
        }
    }

    #[test]
    fn sums_are_by_count_error_and_rule() {
        let rule = |injected| RuleTally { rule: "drop".to_owned(), matched: 9, injected };
        let mut one = Tally { lost: 1, rules: vec![rule(2)], ..Tally::default() };
        one.error(WorkError::new(0x13, 0));
        let mut sum = Tally::default();
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.lost, sum.flushed, sum.errors["RemoteAccess"], sum.rules[0].injected), (2, 2, 2, 4));
    }
}

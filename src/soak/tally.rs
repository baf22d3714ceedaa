//! What is counted.

use serde::{Deserialize, Serialize};

/// Problems that are told in words.
const PROBLEMS: usize = 5;

/// Counts of one process, or of all.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Work requests that completed with success, on both sides.
    pub(super) operations: u64,
    pub(super) bytes: u64,
    /// Messages sent, those that were sent again after a failure included, and received.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Failures of queue pairs, seen by the end that failed first; each was got over.
    pub(super) failures: u64,
    /// Work requests that completed with an error.
    pub(super) flushed: u64,
    /// Faults that the software cards injected.
    pub(super) injected: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) wrong: u64,
    /// Completions of nothing that was posted, or not in order.
    pub(super) unaccounted: u64,
    pub(super) hung: u64,
    /// The first things that were wrong, in words.
    pub(super) problems: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        for (sum, value) in [
            (&mut self.operations, other.operations),
            (&mut self.bytes, other.bytes),
            (&mut self.sent, other.sent),
            (&mut self.received, other.received),
            (&mut self.failures, other.failures),
            (&mut self.flushed, other.flushed),
            (&mut self.injected, other.injected),
            (&mut self.lost, other.lost),
            (&mut self.duplicated, other.duplicated),
            (&mut self.wrong, other.wrong),
            (&mut self.unaccounted, other.unaccounted),
            (&mut self.hung, other.hung),
        ] {
            *sum += value;
        }
        other.problems.iter().for_each(|problem| self.problem(|| problem.clone()));
    }

    pub(super) fn problem(&mut self, text: impl FnOnce() -> String) {
        if self.problems.len() < PROBLEMS {
            self.problems.push(text());
        }
    }

    /// Nothing went wrong that must not.
    pub(super) fn is_clean(&self) -> bool {
        [self.lost, self.duplicated, self.wrong, self.unaccounted, self.hung] == [0; 5]
    }
}

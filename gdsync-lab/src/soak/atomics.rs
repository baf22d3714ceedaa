//! What atomic operations must find, and what a failure may leave.
//!
//! They are executed in order and at most once, so each finds what those before it have left, and
//! after a failure the remote words are what some of the outstanding ones have left, from the
//! oldest on.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The two words that the operations of one end change: one counts, the other is swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Words {
    pub(super) counter: u64,
    pub(super) swapped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Atomic {
    /// To the counter.
    Add(u64),
    /// Of the other word.
    Swap { compare: u64, swap: u64 },
}

impl Words {
    /// Performs an operation. Returns what it finds.
    pub(super) fn perform(&mut self, operation: Atomic) -> u64 {
        match operation {
            Atomic::Add(value) => {
                let sum = self.counter.wrapping_add(value);
                std::mem::replace(&mut self.counter, sum)
            }
            Atomic::Swap { compare, swap } if self.swapped == compare => {
                std::mem::replace(&mut self.swapped, swap)
            }
            Atomic::Swap { .. } => self.swapped,
        }
    }
}

/// The remote words as far as an end can know them.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    /// What those that are complete have left.
    settled: Words,
    outstanding: VecDeque<Atomic>,
    /// What the outstanding ones will leave.
    ahead: Words,
}

impl Atomics {
    /// What the words will be for the next one.
    pub(super) fn ahead(&self) -> Words {
        self.ahead
    }

    /// An operation is posted. Returns what it must find.
    pub(super) fn post(&mut self, operation: Atomic) -> u64 {
        self.outstanding.push_back(operation);
        self.ahead.perform(operation)
    }

    /// The oldest one is complete.
    pub(super) fn complete(&mut self) {
        if let Some(operation) = self.outstanding.pop_front() {
            self.settled.perform(operation);
        }
    }

    /// After a failure: the words are `there`. Returns how many operations failed, and how many of
    /// them were executed; nothing where no number of them leaves such words.
    pub(super) fn resume(&mut self, there: Words) -> Option<(u64, u64)> {
        let mut words = self.settled;
        let mut executed = (words == there).then_some(0);
        for (done, operation) in (1..).zip(&self.outstanding) {
            words.perform(*operation);
            if words == there {
                executed = Some(done);
            }
        }
        let failed = self.outstanding.len() as u64;
        (self.settled, self.ahead) = (there, there);
        self.outstanding.clear();
        executed.map(|executed| (failed, executed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted() -> Atomics {
        let mut atomics = Atomics::default();
        assert_eq!(atomics.post(Atomic::Add(3)), 0);
        assert_eq!(atomics.post(Atomic::Swap { compare: 0, swap: 9 }), 0);
        assert_eq!(atomics.post(Atomic::Swap { compare: 0, swap: 5 }), 9);
        assert_eq!(atomics.post(Atomic::Add(1)), 3);
        assert_eq!(atomics.ahead(), Words { counter: 4, swapped: 9 });
        atomics
    }

    #[test]
    fn a_failure_leaves_what_some_of_them_have_done() {
        for (counter, swapped, executed) in [(0, 0, 0), (3, 0, 1), (3, 9, 3), (4, 9, 4)] {
            assert_eq!(posted().resume(Words { counter, swapped }), Some((4, executed)));
        }
        let mut atomics = posted();
        atomics.complete();
        assert_eq!(atomics.resume(Words { counter: 3, swapped: 9 }), Some((3, 2)));
        assert_eq!(atomics.resume(Words { counter: 3, swapped: 9 }), Some((0, 0)));
        assert_eq!(atomics.post(Atomic::Add(1)), 3);
    }

    #[test]
    fn a_lost_and_a_repeated_one_are_noticed() {
        let mut lost = posted();
        lost.complete();
        assert_eq!(lost.resume(Words { counter: 0, swapped: 0 }), None, "a completed one is not there");
        assert_eq!(posted().resume(Words { counter: 6, swapped: 0 }), None, "one was done twice");
        assert_eq!(posted().resume(Words { counter: 0, swapped: 9 }), None, "one was left out");
    }
}

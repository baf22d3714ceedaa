//! Expected results of atomic operations, and their possible states after a failure.
//!
//! Operations are executed in order and at most once. So each returns the result of those before it, and after a
//! failure the remote words show that some of the outstanding operations have been executed, oldest first.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The two words that the operations of one end change: a counter, and a word that is swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Words {
    pub(super) counter: u64,
    pub(super) swapped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

impl Words {
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

/// The remote words, as far as an end can know them.
#[derive(Debug, Default)]
pub(super) struct Atomics {
    /// The state after the completed operations.
    settled: Words,
    outstanding: VecDeque<Atomic>,
    /// The state after the outstanding operations.
    expected: Words,
}

impl Atomics {
    /// Returns the words that the next operation will see.
    pub(super) fn expected(&self) -> Words {
        self.expected
    }

    /// Notes a posted operation. Returns its expected result.
    pub(super) fn post(&mut self, operation: Atomic) -> u64 {
        self.outstanding.push_back(operation);
        self.expected.perform(operation)
    }

    pub(super) fn complete(&mut self) {
        if let Some(operation) = self.outstanding.pop_front() {
            self.settled.perform(operation);
        }
    }

    /// Resumes after a failure with the actual words `there`. Returns how many operations failed, and how many of these
    /// were executed; none if no number of executed operations explains the words.
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
        (self.settled, self.expected) = (there, there);
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
        assert_eq!(atomics.expected(), Words { counter: 4, swapped: 9 });
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

//! The common part of reliable and unreliable links: their interface, and message numbers, which continue across
//! failures, so that a lost or repeated message shows in them.

use super::atomics::Words;
use super::ledger::Ended;
use super::tally::Tally;
use super::wire::Wire;
use gdsync::{Completion, Endpoint};
use gdsync_cli::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The data that ends exchange before they connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) expected: u64,
    /// Memory that the other end may write to, and read from.
    pub(super) window: String,
    pub(super) fixed: String,
    pub(super) control: String,
    /// The result of the other end's atomic operations.
    pub(super) words: Words,
}

/// The traffic of an end's queue pair, and its checks.
pub(super) trait Traffic: fmt::Display {
    fn offer(&self) -> Offer;

    /// Resumes with nothing outstanding.
    fn resume(
        &mut self,
        wire: &Wire,
        there: &Endpoint,
        offer: &Offer,
        tally: &mut Tally,
    ) -> Result<(), Failure>;

    fn receive(&mut self, wire: &Wire, completion: &Completion, tally: &mut Tally) -> Result<(), Failure>;

    /// Handles the end of a send. `completion` is its own, if it has one.
    fn end(
        &mut self,
        ended: &Ended,
        completion: Option<&Completion>,
        tally: &mut Tally,
    ) -> Result<(), Failure>;

    /// Posts a request, if there is one to post.
    fn post(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure>;

    fn stop(&mut self);

    /// Returns the total of messages sent, once all have ended.
    fn sent(&self, wire: &Wire) -> Option<u64>;

    /// Returns whether everything that the other end has sent is here.
    fn has_all(&self, peer_sent: u64) -> bool;

    /// Accounts for missing messages: no more completions arrive.
    fn close(&self, peer_sent: u64, tally: &mut Tally);
}

/// The message numbers of one end of a reliable link.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Next message to send; messages before `acknowledged` have been acknowledged.
    pub(super) next: u64,
    pub(super) acknowledged: u64,
    pub(super) expected: u64,
    /// The last credit written to the other end.
    pub(super) credited: u64,
    /// The number at which sending ends.
    pub(super) last: Option<u64>,
}

impl Numbers {
    /// Resumes at the message that the other end expects next. Acknowledged messages must have arrived, and no more
    /// messages than were sent; missing ones are sent again.
    pub(super) fn resume(&mut self, expected_there: u64, tally: &mut Tally) {
        tally.lost += self.acknowledged.saturating_sub(expected_there);
        tally.duplicated += expected_there.saturating_sub(self.next);
        (self.next, self.acknowledged) = (expected_there, expected_there);
        // The other end's credit is the same.
        self.credited = self.expected;
    }

    /// Returns whether everything is sent and acknowledged.
    pub(super) fn is_through(&self) -> bool {
        self.last == Some(self.acknowledged)
    }
}

const WORDS: usize = 16;

/// The numbers that have arrived, of which some may be missing and none may repeat.
#[derive(Debug, Default)]
pub(super) struct Window {
    end: u64,
    /// The most recent numbers: `n` is bit `n % (64 * WORDS)`.
    bits: [u64; WORDS],
    pub(super) count: u64,
}

impl Window {
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Records a number. False if it was recorded before, or is too old to decide.
    pub(super) fn take(&mut self, number: u64) -> bool {
        let width = 64 * WORDS as u64;
        if number + width < self.end {
            return false;
        }
        let place = |number: u64| ((number / 64) as usize % WORDS, 1u64 << (number % 64));
        if number >= self.end + width {
            self.bits = [0; WORDS];
        } else {
            for passed in self.end..=number {
                let (word, bit) = place(passed);
                self.bits[word] &= !bit;
            }
        }
        self.end = self.end.max(number + 1);
        let (word, bit) = place(number);
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_and_has_not_come_is_lost() {
        let sent = || Numbers { next: 10, acknowledged: 6, ..Numbers::default() };
        for (there, lost, duplicated) in [(6, 0, 0), (8, 0, 0), (10, 0, 0), (4, 2, 0), (11, 0, 1)] {
            let (mut numbers, mut tally) = (sent(), Tally::default());
            numbers.resume(there, &mut tally);
            assert_eq!((tally.lost, tally.duplicated), (lost, duplicated), "{there}");
            assert_eq!(tally.is_clean(), lost + duplicated == 0);
            assert_eq!((numbers.next, numbers.acknowledged), (there, there));
        }
        let mut numbers = sent();
        numbers.last = Some(10);
        assert!(!numbers.is_through());
        numbers.acknowledged = 10;
        assert!(numbers.is_through());
    }

    #[test]
    fn numbers_may_be_missing_and_come_once() {
        let mut window = Window::default();
        assert!([0, 1, 5, 3].into_iter().all(|number| window.take(number)));
        assert!([0, 1, 5, 3].into_iter().all(|number| !window.take(number)));
        assert!(window.take(4) && window.take(1028) && !window.take(4 + 1024));
        assert!(window.take(5 + 1024) && !window.take(2), "too old to decide");
        assert!(window.take(100_000) && window.take(99_999) && !window.take(100_000));
        assert_eq!((window.end(), window.count), (100_001, 9));
    }
}

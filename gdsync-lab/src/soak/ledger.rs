//! Outstanding send work requests: each completes once, in order.

use super::atomics::Atomic;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Message(u64),
    Credit,
    Read { landing: usize, from: usize, length: usize },
    Atomic { result: usize, operation: Atomic, original: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended<W = Work> {
    pub(crate) work: W,
    pub(crate) is_good: bool,
    /// True if the completion is its own; an unsignaled work request ends with a later completion.
    pub(crate) is_own: bool,
}

#[derive(Debug)]
struct Posted<W> {
    serial: u64,
    work: W,
    signaled: bool,
}

/// The send work requests of one queue pair.
#[derive(Debug)]
pub(crate) struct Ledger<W = Work> {
    serial: u64,
    outstanding: VecDeque<Posted<W>>,
}

impl<W> Default for Ledger<W> {
    fn default() -> Self {
        Ledger { serial: 0, outstanding: VecDeque::new() }
    }
}

impl<W> Ledger<W> {
    /// Returns the serial number of the next work request.
    pub(crate) fn next(&self) -> u64 {
        self.serial
    }

    pub(crate) fn post(&mut self, work: W, signaled: bool) {
        self.outstanding.push_back(Posted { serial: self.serial, work, signaled });
        self.serial += 1;
    }

    /// Returns the serial number of the oldest outstanding one.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.outstanding.front().map(|posted| posted.serial)
    }

    pub(crate) fn len(&self) -> usize {
        self.outstanding.len()
    }

    /// True if the newest one is unsignaled, so that nothing would report its end.
    pub(crate) fn ends_silently(&self) -> bool {
        self.outstanding.back().is_some_and(|newest| !newest.signaled)
    }

    /// True if all outstanding ones are unsignaled: after a failure they may have no completion.
    pub(crate) fn is_silent(&self) -> bool {
        self.outstanding.iter().all(|posted| !posted.signaled)
    }

    /// Discards all, as no more completions arrive. Returns the work requests that had none.
    pub(crate) fn forget(&mut self) -> impl ExactSizeIterator<Item = W> + use<W> {
        std::mem::take(&mut self.outstanding).into_iter().map(|posted| posted.work)
    }

    /// Returns the work requests that a completion ends. Unsignaled ones before it succeeded, even if it failed: a card
    /// completes in order.
    ///
    /// # Errors
    /// In words, for an impossible completion: of nothing posted, out of order, or a success of an unsignaled request.
    pub(crate) fn complete(&mut self, serial: u64, is_good: bool) -> Result<Vec<Ended<W>>, String> {
        let Some(position) = self.outstanding.iter().position(|posted| posted.serial == serial) else {
            return Err(format!("completion {serial} is of nothing that was posted"));
        };
        if let Some(missed) = self.outstanding.iter().take(position).find(|posted| posted.signaled) {
            return Err(format!("completion {serial} has come before {}", missed.serial));
        }
        if is_good && !self.outstanding[position].signaled {
            return Err(format!("completion {serial} was not asked for"));
        }
        let ended = self.outstanding.drain(..=position).map(|posted| {
            let is_own = posted.serial == serial;
            Ended { work: posted.work, is_good: is_good || !is_own, is_own }
        });
        Ok(ended.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(signaled: &[bool]) -> Ledger {
        let mut ledger = Ledger::default();
        (0..).zip(signaled).for_each(|(number, signaled)| ledger.post(Work::Message(number), *signaled));
        ledger
    }

    fn ended(number: u64, is_good: bool, is_own: bool) -> Ended {
        Ended { work: Work::Message(number), is_good, is_own }
    }

    #[test]
    fn a_completion_tells_of_those_before_it_that_asked_for_none() {
        let mut ledger = ledger(&[false, false, true, false]);
        let told = ledger.complete(2, true).unwrap();
        assert_eq!(told, [ended(0, true, false), ended(1, true, false), ended(2, true, true)]);
        assert!(ledger.ends_silently() && ledger.len() == 1);
        assert_eq!(ledger.complete(3, false).unwrap(), [ended(3, false, true)]);
        assert!(!ledger.ends_silently() && ledger.len() == 0);
    }

    #[test]
    fn an_error_is_of_one_and_what_stood_silently_before_it_is_good() {
        let mut ledger = ledger(&[false, true, true]);
        assert_eq!(ledger.complete(1, false).unwrap(), [ended(0, true, false), ended(1, false, true)]);
        assert_eq!(ledger.complete(2, false).unwrap(), [ended(2, false, true)]);
    }

    #[test]
    fn what_asked_for_none_may_never_complete() {
        assert!(!ledger(&[false, true, false]).is_silent());
        let mut ledger = ledger(&[true, false, false]);
        ledger.complete(0, true).unwrap();
        assert!(ledger.is_silent());
        assert_eq!((ledger.forget().len(), ledger.len()), (2, 0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(ledger(&[true]).complete(1, true).unwrap_err().contains("nothing that was posted"));
        assert!(ledger(&[true, true]).complete(1, true).unwrap_err().contains("before 0"));
        assert!(ledger(&[true, true]).complete(1, false).unwrap_err().contains("before 0"));
        assert!(ledger(&[false]).complete(0, true).unwrap_err().contains("not asked for"));
        let mut ledger = ledger(&[true]);
        ledger.complete(0, true).unwrap();
        assert!(ledger.complete(0, true).is_err(), "twice");
    }
}

//! A requester's status: the event that it waits for, as text.

use super::state::Requester;
use crate::card::queue::wait::Wait;
use crate::os::clock;
use crate::packet::PSN_MASK;
use std::time::{Duration, Instant};

/// The event that a requester waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) what: String,
    /// Distinguishes it from a later one with the same text.
    pub(crate) mark: u64,
    /// Known for a WAIT only.
    pub(crate) time: Option<Duration>,
    /// The completion queue of a WAIT for one.
    pub(crate) cqn: Option<u32>,
}

impl Requester {
    /// Returns the number of work requests that were read and are not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.iter().filter(|request| !request.done).count()
    }

    /// Returns what it waits for now, if anything: a WAIT first, as it blocks everything after it.
    pub(crate) fn pending(&self, now: Instant) -> Option<Pending> {
        self.held_by(now).or_else(|| self.answer())
    }

    fn held_by(&self, now: Instant) -> Option<Pending> {
        let request = self.requests.get(self.cursor).filter(|_| self.waits.held)?;
        let wait = request.work.as_ref().ok()?.wait?;
        let (what, cqn) = match wait {
            Wait::Completions { cqn, index } => {
                (format!("WAIT for entry {index} of completion queue {cqn:#x}"), Some(cqn))
            }
            Wait::Data(segment) => (format!("WAIT for a word: {segment}"), None),
            Wait::Time(segment) => {
                let left = segment.value().saturating_sub(clock::nanoseconds());
                (format!("WAIT for a time, {} ms from now", left / 1_000_000), None)
            }
            // It is executed at once.
            Wait::SendEnable { .. } => return None,
        };
        let time = self.waits.since.map(|since| now.saturating_duration_since(since));
        Some(Pending { what, mark: request.first.into(), time, cqn })
    }

    fn answer(&self) -> Option<Pending> {
        let oldest = self.requests.iter().find(|request| !request.done && request.packets > 0)?;
        let what = if self.rnr_until.is_some() {
            "a receive of the peer (RNR)"
        } else if oldest.sent <= oldest.acked && !oldest.awaits_result() || oldest.sent == 0 {
            return None;
        } else if oldest.awaits_result() {
            "the result of a read or an atomic"
        } else {
            "an acknowledgement"
        };
        let psn = oldest.first_psn.wrapping_add(oldest.acked) & PSN_MASK;
        Some(Pending { what: what.to_owned(), mark: psn.into(), time: None, cqn: None })
    }
}

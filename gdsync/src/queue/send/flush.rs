//! Handing everything to a card that flushes it.

use super::{Handover, SendState, State};
use crate::queue::Doorbell;

impl SendState {
    /// Everything was handed to the card after the queue pair failed: nothing older may follow.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// In the error state: hands everything prepared to the card, which flushes it, so that no wait
    /// stays unsatisfied.
    ///
    /// Returns the doorbell to ring, or none where streams still have earlier sends to post (theirs
    /// would then run backwards), or nothing is left to hand over.
    pub(crate) fn flush(&mut self) -> Option<Doorbell> {
        let is_released = self.handover == Handover::Master;
        // No stream rings for what a master releases.
        if self.has_unpassed_posts() && !is_released {
            return None;
        }
        let newest = self.doorbell_of(self.entries.back()?);
        // A stream that failed may not have rung what it was given. A master may have failed itself,
        // and a card that has its SEND_EN may not flush for it.
        let perhaps_not_rung = is_released || self.unsettled().is_some_and(|last| last.timeline.is_dead());
        let all_posted = self.entries.iter().all(|entry| entry.state == State::Posted);
        if self.flushed || (all_posted && !perhaps_not_rung) {
            return None;
        }
        (self.flushed, self.guarded) = (true, true);
        for entry in &mut self.entries {
            if entry.state == State::Prepared {
                entry.state = State::Withheld;
            }
        }
        self.skip_unprepared();
        Some(newest)
    }
}

//! Restarting a send queue when its queue pair is reset.

use super::{Entry, SendState, State};
use crate::queue::ResetBlocker;

impl SendState {
    /// What prevents a restart of the queue.
    ///
    /// `failed`: the card takes no more work, and completes what it has. Waiting is then useless
    /// for sends that asked for no completion, if that is all there is: it was done before the
    /// failure. Completions of WAITs and of dropped sends matter only where a wait may be for them
    /// (`awaited`): the program does not see them, and cannot know when they have come.
    pub(crate) fn blocker(&self, failed: bool, awaited: bool) -> Option<ResetBlocker> {
        if self.attached {
            return Some(ResetBlocker::Kernel);
        }
        match self.unsettled() {
            Some(last) if !last.timeline.has_passed(last.point) => {
                return Some(ResetBlocker::Stream(last.timeline.blocked_on(last.point)));
            }
            _ if self.proxied > 0 => return Some(ResetBlocker::Doorbells(self.proxied)),
            _ => {}
        }
        let is_silent = |entry: &Entry| match entry.state {
            State::Prepared => false,
            State::Posted | State::Withheld => failed && !entry.signaled,
            State::Hidden => failed && !(entry.signaled && awaited),
        };
        let is_drained = self.entries.iter().all(is_silent);
        (!is_drained).then_some(ResetBlocker::Sends(self.entries.len() as u32))
    }

    /// Restarts the queue after the card was reset: block 0 is next. Serial numbers continue, so
    /// that a send prepared before is known as such.
    pub(crate) fn reset(&mut self) {
        self.first_serial += self.entries.len() as u64;
        let kept = self.entries.drain(..).filter(Entry::is_kept).count();
        self.next_to_post = self.next_to_post.max(self.first_serial);
        (self.head, self.tail) = (0, 0);
        self.keeper.retire(kept as u64);
        self.last_post = None;
        (self.flushed, self.guarded, self.is_released) = (false, false, false);
        self.ring.publish(0);
    }
}

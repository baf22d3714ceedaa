//! Receives of shared queues, which may complete in any of several completion queues: each has room
//! for all of them.

use super::{CompletionState, RawCompletion, Slot};
use crate::queue::QueueError;
use crate::queue::shared::Credits;
use gdsync_sys::prm::cqe::{CqeOpcode, LAST_DWORD};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The receives of a shared queue, and the queue pairs that take from it and complete here.
#[derive(Debug)]
pub(super) struct Shared {
    credits: Arc<Credits>,
    queue_pairs: u32,
}

impl CompletionState {
    /// A queue pair that takes from a shared queue completes here. False where there is no room for the
    /// receives that are posted.
    pub(crate) fn add_credits(&mut self, credits: &Arc<Credits>) -> bool {
        match self.shared.iter_mut().find(|known| Arc::ptr_eq(&known.credits, credits)) {
            Some(known) => known.queue_pairs += 1,
            None => self.shared.push(Shared { credits: credits.clone(), queue_pairs: 1 }),
        }
        self.certain = 0;
        self.take_released_back();
        self.check_not_overbooked().is_ok()
    }

    /// The counterpart of [`Self::add_credits`].
    pub(crate) fn remove_credits(&mut self, credits: &Arc<Credits>) {
        if let Some(known) = self.shared.iter_mut().find(|known| Arc::ptr_eq(&known.credits, credits)) {
            known.queue_pairs -= 1;
        }
        self.shared.retain(|known| known.queue_pairs > 0);
        if self.shared.is_empty() {
            self.certain = self.entries();
        }
    }

    /// Receives of shared queues that may complete here.
    pub(super) fn shared_receives(&self) -> u32 {
        self.shared.iter().map(|shared| shared.credits.posted()).sum()
    }

    /// Whether everything that may complete here has room, a receive that was just counted, too.
    pub(crate) fn check_not_overbooked(&mut self) -> Result<(), QueueError> {
        if self.taken() > self.entries() { self.make_room(0) } else { Ok(()) }
    }

    /// Entries of a queue pair that were not polled.
    pub(crate) fn unpolled_of(&self, qpn: u32) -> u32 {
        let written = (0..self.entries()).map_while(|i| self.read(self.polled.wrapping_add(i)));
        written.filter(|entry| self.is_live_of(entry, qpn)).count() as u32
    }

    pub(super) fn is_live_of(&self, entry: &RawCompletion, qpn: u32) -> bool {
        entry.cqe.qpn() == qpn && !self.left_behind.contains(&entry.index)
    }

    /// Whether an entry is a receive's of one of these queue pairs.
    pub(super) fn is_receive_of(&self, queue_pairs: &[u32], entry: &RawCompletion) -> bool {
        let is_send = matches!(entry.cqe.opcode(), Ok(CqeOpcode::Requester | CqeOpcode::RequesterError));
        !is_send && queue_pairs.iter().any(|qpn| self.is_live_of(entry, *qpn))
    }

    /// A queue pair completes here again, where waits were ended because all had failed: the entries of
    /// the newest, which streams have passed and the card has not written, are the next to be waited for.
    /// Returns whether streams have still to pass some.
    pub(crate) fn take_released_back(&mut self) -> bool {
        while self.waits_ahead() > 0 {
            let last = self.next_wait().wrapping_sub(1);
            if !self.is_released(last) {
                return false;
            }
            if matches!(self.slots.back(), Some(Slot::Posted(timeline, point)) if !timeline.has_passed(*point))
            {
                return true;
            }
            let word = self.ring.word(last, LAST_DWORD);
            let before = word.load(Ordering::Relaxed);
            let [low, high, signature, op_own] = before.to_ne_bytes();
            let after = u32::from_ne_bytes([low, high, signature, op_own ^ 1]);
            if word.compare_exchange(before, after, Ordering::Release, Ordering::Relaxed).is_err() {
                // The card has just written it.
                return false;
            }
            self.slots.pop_back();
        }
        false
    }
}

//! A completion queue in which the card writes nothing any more.

use super::{CompletionState, Slot};
use crate::queue::ENTRY_WORDS;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl CompletionState {
    /// The card has reported that it writes nothing here any more: the CPU writes what streams wait
    /// for, now and for waits that are posted later, so that the streams continue. Polling does not
    /// return these entries.
    pub(crate) fn lose(&mut self) {
        if self.lost_from.is_some() {
            return;
        }
        let mut first = self.polled;
        while self.is_written(first) && first.wrapping_sub(self.polled) < self.entries() {
            first = first.wrapping_add(1);
        }
        self.lost_from = Some(first);
        for position in 0..self.slots.len() {
            if matches!(self.slots[position], Slot::Posted(..)) {
                self.wake_lost(self.recycled.wrapping_add(position as u32));
            }
        }
    }

    /// True once [`Self::lose`] was called.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost_from.is_some()
    }

    /// True for entries that the card did not write and will not.
    pub(super) fn is_beyond(&self, index: u32) -> bool {
        self.lost_from.is_some_and(|first| index.wrapping_sub(first) <= i32::MAX as u32)
    }

    pub(super) fn wake_lost(&mut self, index: u32) {
        if self.is_beyond(index) {
            let cqe = Cqe64::error(CqeOpcode::RequesterError, 0, 0, 0, Syndrome::WrFlush, 0);
            let cqe = cqe.with_owner(self.owner_of(index));
            // The last word last: a stream may be looking at it.
            for (i, word) in cqe.as_bytes().chunks_exact(4).enumerate() {
                if i == ENTRY_WORDS - 1 {
                    self.ring.drain();
                }
                let word = word.try_into().map_or(0, u32::from_ne_bytes);
                self.ring.word(index, i * 4).store(word, Ordering::Release);
            }
            self.ring.drain();
        }
    }
}

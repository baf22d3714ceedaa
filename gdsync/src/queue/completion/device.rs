//! A completion queue that a kernel reads for a while.

use super::{CompletionState, RawCompletion};
use crate::memory::HostAddr;
use gdsync_sys::prm::doorbell;

/// Where a completion queue is in memory, and how far it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedCompletions {
    pub(crate) ring: HostAddr,
    pub(crate) entries: u32,
    pub(crate) record: HostAddr,
    /// The next entry.
    pub(crate) next: u32,
}

/// What keeps a completion queue from being attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Completions that are to come, or were not polled.
    Completions(u32),
    /// Waits that streams have not passed, or that are only prepared.
    Waits(u32),
}

impl CompletionState {
    /// Attaches the queue to a kernel that posts to queue pair `qpn`: until [`Self::give_back`] only the kernel takes entries out of it,
    /// and nothing else can complete here.
    pub(crate) fn attach(&mut self, qpn: u32) -> Result<BorrowedCompletions, Unread> {
        self.recycle();
        if self.reserved > 0 {
            return Err(Unread::Completions(self.reserved));
        }
        if self.held() > 0 || !self.slots.is_empty() {
            return Err(Unread::Waits(self.slots.len() as u32));
        }
        self.attached = Some(qpn);
        // All places are taken: posting to other queue pairs is refused with the reason.
        self.reserved = self.entries();
        self.ring.drain();
        Ok(BorrowedCompletions {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            entries: self.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            next: self.polled,
        })
    }

    /// The entry `index` of a queue that is attached, where the card has written it.
    pub(crate) fn read_attached(&self, index: u32) -> Option<RawCompletion> {
        if self.is_beyond(index) { None } else { self.read(index) }
    }

    /// Entries before `index` were read.
    pub(crate) fn recycle_attached(&self, index: u32) {
        self.ring.publish(doorbell::ci_record(index));
    }

    /// The kernel is done: entry `next` is the first that was not read.
    pub(crate) fn give_back(&mut self, next: u32) {
        (self.polled, self.recycled, self.reserved, self.attached) = (next, next, 0, None);
    }
}

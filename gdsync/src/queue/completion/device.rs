//! A completion queue that is attached to a device.

use super::{CompletionState, RawCompletion};
use crate::memory::HostAddr;
use gdsync_sys::prm::doorbell;

/// The addresses of a completion queue, and its next entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedCompletions {
    pub(crate) ring: HostAddr,
    pub(crate) entries: u32,
    pub(crate) record: HostAddr,
    /// The next entry.
    pub(crate) next: u32,
}

/// Why a completion queue cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Completions that are to come, or were not polled.
    Completions(u32),
    /// Waits that streams have not passed, or that are only prepared.
    Waits(u32),
}

impl CompletionState {
    /// Attaches the queue, for kernels that post to queue pair `qpn`: until [`Self::detach`], only
    /// they take entries out of it, and no other queue pair can complete here.
    pub(crate) fn attach(&mut self, qpn: u32) -> Result<BorrowedCompletions, Unread> {
        self.recycle();
        if self.reserved > 0 {
            return Err(Unread::Completions(self.reserved));
        }
        if self.held() > 0 || !self.slots.is_empty() {
            return Err(Unread::Waits(self.slots.len() as u32));
        }
        self.attached = Some(qpn);
        // With all places taken, a caller that reserves one gets an error that says why.
        self.reserved = self.entries();
        self.ring.drain();
        Ok(BorrowedCompletions {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            entries: self.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            next: self.polled,
        })
    }

    /// The entry `index` of a queue that is attached, if the card has written it.
    pub(crate) fn read_attached(&self, index: u32) -> Option<RawCompletion> {
        if self.is_beyond(index) { None } else { self.read(index) }
    }

    /// Gives the entries before `index` back to the card.
    pub(crate) fn recycle_attached(&self, index: u32) {
        self.ring.publish(doorbell::ci_record(index));
    }

    /// Detaches the queue: entry `next` is the first that was not read.
    pub(crate) fn detach(&mut self, next: u32) {
        (self.polled, self.recycled, self.reserved, self.attached) = (next, next, 0, None);
    }
}

//! A send queue that a kernel drives for a while.

use super::SendState;
use crate::memory::HostAddr;
use crate::queue::doorbell::Doorbell;
use gdsync_sys::prm::doorbell;

/// Where a send queue is in memory, and how far it is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedSends {
    pub(crate) ring: HostAddr,
    /// 64-byte blocks of the ring.
    pub(crate) blocks: u32,
    pub(crate) record: HostAddr,
    pub(crate) register: HostAddr,
    /// The next block.
    pub(crate) head: u32,
}

impl SendState {
    /// Attaches the queue to a kernel: until [`Self::give_back`] only the kernel writes to it.
    ///
    /// # Errors
    /// How many sends are prepared or have not completed.
    pub(crate) fn attach(&mut self) -> Result<BorrowedSends, u32> {
        // If all sends have completed, all their doorbells were rung.
        if !self.entries.is_empty() {
            return Err(self.entries.len() as u32);
        }
        self.attached = true;
        // Stores of requests that were taken back must not arrive after the kernel's.
        self.ring.drain();
        Ok(BorrowedSends {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            blocks: self.ring.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            register: self.register,
            head: self.head,
        })
    }

    /// The kernel is done, and the card with all that it has posted: block `head` is next.
    pub(crate) fn give_back(&mut self, head: u32) {
        (self.head, self.tail, self.attached) = (head, head, false);
    }

    /// The doorbell for the blocks before `end` that a kernel has written, each of them a request of its own; none, where the
    /// queue is not attached.
    pub(crate) fn lent_doorbell(&self, end: u32) -> Option<Doorbell> {
        let value = self.ring.first_bytes(end.wrapping_sub(1));
        self.attached.then(|| self.doorbell(doorbell::record(end), value))
    }
}

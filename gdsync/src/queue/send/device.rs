//! A send queue that is attached to a device.

use super::SendState;
use crate::memory::HostAddr;
use crate::queue::doorbell::Doorbell;
use gdsync_sys::prm::doorbell;

/// The addresses of a send queue, and its next block.
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
    /// Attaches the queue: until [`Self::detach`], only kernels post to it.
    ///
    /// # Errors
    /// How many sends are prepared or have not completed.
    pub(crate) fn attach(&mut self) -> Result<BorrowedSends, u32> {
        // If all have completed, all doorbells for them have rung.
        if !self.entries.is_empty() {
            return Err(self.entries.len() as u32);
        }
        self.attached = true;
        // The blocks of withdrawn sends must not reach memory after what the kernel writes.
        self.ring.drain();
        Ok(BorrowedSends {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            blocks: self.ring.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            register: self.register,
            head: self.head,
        })
    }

    /// Detaches the queue, in which everything has completed: block `head` is next.
    pub(crate) fn detach(&mut self, head: u32) {
        (self.head, self.tail, self.attached) = (head, head, false);
    }

    /// The doorbell for the blocks before `end` that a kernel has written, each of them a request;
    /// `None` if the queue is not attached.
    pub(crate) fn attached_doorbell(&self, end: u32) -> Option<Doorbell> {
        let value = self.ring.first_bytes(end.wrapping_sub(1));
        self.attached.then(|| self.doorbell(doorbell::record(end), value))
    }
}

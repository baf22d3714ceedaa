//! Doorbells of kernels that cannot reach the card's register: the kernel writes how far it has
//! posted into a word of pinned memory, and a thread of the process rings.
//!
//! This thread is not that of `stream/proxy.rs`, which knows how many doorbells are to come, and
//! sleeps once all of them have rung. A kernel may ring at any time, so this thread polls as long
//! as a queue pair with a mailbox is attached to a device.

use super::error::DeviceQpError;
use crate::memory::{HostAddr, PinnedMemory};
use crate::qp::QueuePairInner;
use crate::util::poller::{Polled, Poller, Task};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

static FORWARDER: Poller = Poller::new("gdsync-mailboxes");

/// The mailbox of one queue pair.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// The first word is the index of the first block that the kernel has not posted.
    memory: PinnedMemory,
    queue_pair: Arc<QueuePairInner>,
    /// The index up to which the card was rung; `None` once the mailbox is closed. Locked before
    /// the send queue.
    forwarded: Mutex<Option<u64>>,
}

impl Mailbox {
    /// Opens a mailbox of a queue pair whose blocks before `head` are posted.
    pub(super) fn open(queue_pair: &Arc<QueuePairInner>, head: u64) -> Result<Arc<Self>, DeviceQpError> {
        FORWARDER.start().map_err(DeviceQpError::Thread)?;
        let memory = PinnedMemory::allocate(8).map_err(DeviceQpError::Memory)?;
        memory.words64()[0].store(head, Ordering::Relaxed);
        let forwarded = Mutex::new(Some(head));
        let mailbox = Arc::new(Mailbox { memory, queue_pair: queue_pair.clone(), forwarded });
        FORWARDER.add(mailbox.clone());
        Ok(mailbox)
    }

    pub(super) fn addr(&self) -> HostAddr {
        self.memory.addr()
    }

    /// Closes the mailbox: once this returns, the card is not rung for it any more.
    pub(super) fn close(&self) {
        *self.forwarded.lock() = None;
    }
}

impl Task for Mailbox {
    /// Rings the card if the kernel has posted more.
    fn poll(&self) -> Polled {
        let mut forwarded = self.forwarded.lock();
        // Acquire: the kernel wrote the blocks before.
        let posted = self.memory.words64()[0].load(Ordering::Acquire);
        match *forwarded {
            None => Polled::Done,
            Some(before) if before == posted => Polled::Nothing,
            Some(_) => {
                self.queue_pair.ring_attached(posted as u32);
                *forwarded = Some(posted);
                Polled::Progress
            }
        }
    }
}

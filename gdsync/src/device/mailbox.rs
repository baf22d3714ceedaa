//! Doorbells of kernels that cannot reach the card's register: the kernel writes how far it has posted into a word of pinned memory, and
//! a thread of the process rings.
//!
//! Not the thread that serves streams (`stream/proxy.rs`): that knows how many doorbells are to come, and sleeps when there are none. A
//! kernel may ring at any time, so this one looks as long as any queue is handed over, ever more rarely where nothing comes.

use super::error::DeviceQpError;
use crate::memory::{HostAddr, PinnedMemory};
use crate::qp::QueuePairInner;
use crate::util::pause::{Pause, use_fine_timers};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// The mailbox of one queue pair.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// The first word says before which block everything is posted.
    memory: PinnedMemory,
    queue_pair: Arc<QueuePairInner>,
    /// What was forwarded; none, once the mailbox is closed.
    forwarded: Mutex<Option<u64>>,
}

impl Mailbox {
    /// Opens one where everything before block `head` is posted.
    pub(super) fn open(queue_pair: &Arc<QueuePairInner>, head: u64) -> Result<Arc<Self>, DeviceQpError> {
        let memory = PinnedMemory::allocate(8).map_err(DeviceQpError::Memory)?;
        memory.words64()[0].store(head, Ordering::Relaxed);
        let forwarded = Mutex::new(Some(head));
        let mailbox = Arc::new(Mailbox { memory, queue_pair: queue_pair.clone(), forwarded });
        FORWARDER.add(&mailbox)?;
        Ok(mailbox)
    }

    pub(super) fn addr(&self) -> HostAddr {
        self.memory.addr()
    }

    /// Rings if the kernel has posted more. Returns whether it has.
    pub(super) fn forward(&self) -> bool {
        let mut forwarded = lock(&self.forwarded);
        // Acquire: the blocks that it speaks of are seen.
        let posted = self.memory.words64()[0].load(Ordering::Acquire);
        if forwarded.is_none_or(|before| before == posted) {
            return false;
        }
        self.queue_pair.ring_attached(posted as u32);
        *forwarded = Some(posted);
        true
    }

    /// From here on nobody rings for it.
    pub(super) fn close(&self) {
        *lock(&self.forwarded) = None;
        lock(&FORWARDER.open).retain(|known| !std::ptr::eq(Arc::as_ptr(known), self));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread, and what it looks at. Lock order: this list, never with another; a mailbox, then a send queue.
#[derive(Default)]
struct Forwarder {
    open: Mutex<Vec<Arc<Mailbox>>>,
    started: Mutex<bool>,
    /// Signalled when a mailbox is opened.
    opened: Condvar,
}

static FORWARDER: LazyLock<Forwarder> = LazyLock::new(Forwarder::default);

impl Forwarder {
    fn add(&self, mailbox: &Arc<Mailbox>) -> Result<(), DeviceQpError> {
        let mut started = lock(&self.started);
        if !*started {
            std::thread::Builder::new()
                .name("gdsync-mailboxes".to_owned())
                .spawn(|| FORWARDER.run())
                .map_err(DeviceQpError::Thread)?;
            *started = true;
        }
        drop(started);
        lock(&self.open).push(mailbox.clone());
        self.opened.notify_one();
        Ok(())
    }

    fn run(&self) {
        use_fine_timers();
        let mut pause = Pause::new();
        let mut mailboxes: Vec<Arc<Mailbox>> = Vec::new();
        loop {
            // They may hold the last handles of queue pairs, whose drop takes other locks.
            mailboxes.clear();
            let mut open = lock(&self.open);
            while open.is_empty() {
                open = self.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
                pause = Pause::new();
            }
            mailboxes.clone_from(&open);
            drop(open);
            // Every one of them, also where the first has rung.
            let rang = mailboxes.iter().filter(|mailbox| mailbox.forward()).count();
            if rang > 0 {
                pause = Pause::new();
            } else {
                pause.pause();
            }
        }
    }
}

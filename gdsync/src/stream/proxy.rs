//! The doorbell proxy, which rings the card for streams that cannot reach its registers.
//!
//! Instead of the doorbell record and the register, such a stream writes the same two values into a mailbox in
//! pinned memory, one for each doorbell. One thread of the process polls the oldest mailbox of each stream, and
//! writes the values to the card once they are there. So a stream's doorbells ring in the stream's order.
//!
//! The thread starts with the first stream made for it ([`DoorbellPath::Proxy`]), with the first doorbell that
//! needs it, or when a program calls [`Stream::doorbells`](super::Stream::doorbells) for such a stream. Most
//! programs need no thread, and whether a stream reaches a card's registers is known only when both exist.

use crate::memop::StreamError;
use crate::memory::Timeline;
use crate::memory::arena::Block;
use crate::qp::QueuePairInner;
use crate::queue::Doorbell;
use crate::stream::DoorbellPath;
use crate::util::poller::{Polled, Poller, Task};
use crate::verbs::Error;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

static PROXY: Poller = Poller::new("gdsync-doorbells");

/// A doorbell that a stream will write into its mailbox.
#[derive(Debug)]
pub(super) struct ProxiedDoorbell {
    /// The first word is the record, the 64-bit word after it the register's value, which is 0 until the stream has
    /// written it. A value is never 0, as it contains a queue pair's number.
    mailbox: Block,
    queue_pair: Arc<QueuePairInner>,
    timeline: Arc<Timeline>,
}

impl ProxiedDoorbell {
    pub(super) fn new(
        queue_pair: &Arc<QueuePairInner>,
        timeline: &Arc<Timeline>,
    ) -> Result<Self, StreamError> {
        let mailbox = Block::new().map_err(|error| StreamError::NoMemory { reason: error.to_string() })?;
        queue_pair.send().count_proxied(true);
        Ok(ProxiedDoorbell { mailbox, queue_pair: queue_pair.clone(), timeline: timeline.clone() })
    }

    /// Replaces the record and the register by the mailbox.
    pub(super) fn to_mailbox(&self, doorbell: Doorbell) -> Doorbell {
        Doorbell { record_at: self.mailbox.addr(0), register: self.mailbox.addr(8), ..doorbell }
    }

    /// Rings if the stream has written the mailbox. Returns whether the mailbox is done with, also because the
    /// stream has failed.
    fn forward(&self) -> bool {
        // Acquire: the stream has written the record before.
        let doorbell = self.mailbox.word64().load(Ordering::Acquire);
        if doorbell == 0 {
            return self.timeline.is_dead();
        }
        self.queue_pair.ring_proxied(self.mailbox.word32().load(Ordering::Relaxed), doorbell);
        true
    }
}

impl Drop for ProxiedDoorbell {
    fn drop(&mut self) {
        self.queue_pair.send().count_proxied(false);
    }
}

/// The doorbells of one stream that have not rung yet.
///
/// Lock order: a queue, then a send queue.
#[derive(Default)]
pub(super) struct ProxyQueue {
    state: Mutex<ProxyState>,
}

#[derive(Default)]
struct ProxyState {
    /// Oldest first.
    rings: VecDeque<ProxiedDoorbell>,
    /// True if the queue is a task of the proxy.
    polled: bool,
}

impl fmt::Debug for ProxyQueue {
    /// Formats the number of doorbells, and the content of the oldest mailbox.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let mut tuple = f.debug_tuple("Doorbells");
        tuple.field(&state.rings.len());
        if let Some(ProxiedDoorbell { mailbox, .. }) = state.rings.front() {
            let (record, doorbell) = (mailbox.word32(), mailbox.word64());
            tuple.field(&(record.load(Ordering::Relaxed), doorbell.load(Ordering::Relaxed)));
        }
        tuple.finish()
    }
}

impl ProxyQueue {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock()
    }
}

impl Task for ProxyQueue {
    fn poll(&self) -> Polled {
        let mut polled = Polled::Nothing;
        loop {
            let mut state = self.lock();
            match state.rings.front() {
                None => {
                    state.polled = false;
                    return Polled::Done;
                }
                Some(oldest) if !oldest.forward() => return polled,
                Some(_) => polled = Polled::Progress,
            }
            let rung = state.rings.pop_front();
            drop(state);
            // It may hold the last handle of a queue pair, whose drop takes other locks.
            drop(rung);
        }
    }
}

/// Starts the proxy's thread for a stream made to use it, unless it runs.
pub(super) fn start_if_asked_for(path: DoorbellPath) -> Result<(), Error> {
    match path {
        DoorbellPath::Proxy => PROXY.start().map_err(|source| Error::Thread { name: PROXY.name, source }),
        DoorbellPath::Auto | DoorbellPath::Direct => Ok(()),
    }
}

pub(super) fn start() -> Result<(), StreamError> {
    PROXY.start().map_err(|error| StreamError::NoThread { reason: error.to_string() })
}

/// Submits with the proxy ready to ring, as a backend may perform operations before it returns.
pub(super) fn ringing<E>(
    proxied: &Arc<ProxyQueue>,
    rings: Vec<ProxiedDoorbell>,
    submit: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let count = rings.len();
    if count > 0 {
        add(proxied, rings);
    }
    let result = submit();
    if result.is_err() && count > 0 {
        withdraw(proxied, count);
    }
    result
}

/// Adds doorbells, before the operations that write their mailboxes are submitted.
fn add(queue: &Arc<ProxyQueue>, rings: Vec<ProxiedDoorbell>) {
    let mut state = queue.lock();
    state.rings.extend(rings);
    let polled = std::mem::replace(&mut state.polled, true);
    drop(state);
    if !polled {
        PROXY.add(queue.clone());
    }
}

/// Removes the newest `count` doorbells: the stream has refused the operations, or failed at them.
fn withdraw(queue: &ProxyQueue, count: usize) {
    let mut state = queue.lock();
    // Doorbells ring in order: if one of these has rung, all earlier ones have.
    let first = state.rings.len() - count.min(state.rings.len());
    let withdrawn = state.rings.split_off(first);
    drop(state);
    // As in `poll`.
    drop(withdrawn);
}

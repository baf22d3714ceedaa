//! The doorbell proxy: rings the card for streams that cannot reach its registers.
//!
//! Instead of the doorbell record and the register, such a stream writes the same two values into a mailbox in pinned
//! memory. Each doorbell has a mailbox of its own; one thread of the process looks at the oldest of each stream and performs
//! it on the card, so that the doorbells of a stream are rung in its order. The thread sleeps while no stream has any
//! outstanding.

use crate::memop::StreamError;
use crate::memory::arena::Line;
use crate::memory::timeline::Timeline;
use crate::qp::QueuePairInner;
use crate::queue::doorbell::Doorbell;
use crate::util::pause::{Pause, use_fine_timers};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A doorbell that a stream will write into its mailbox.
#[derive(Debug)]
pub(super) struct Ring {
    /// The record is the first word, the register's value the 64-bit word after it; 0 until the stream has written it, and
    /// never 0 then, as it names a queue pair.
    mailbox: Line,
    queue_pair: Arc<QueuePairInner>,
    timeline: Arc<Timeline>,
}

impl Ring {
    pub(super) fn new(
        queue_pair: &Arc<QueuePairInner>,
        timeline: &Arc<Timeline>,
    ) -> Result<Self, StreamError> {
        let mailbox = Line::new().map_err(|error| StreamError::NoMemory { reason: error.to_string() })?;
        queue_pair.send().count_proxied(true);
        Ok(Ring { mailbox, queue_pair: queue_pair.clone(), timeline: timeline.clone() })
    }

    /// A doorbell, with the mailbox in the place of record and register.
    pub(super) fn to_mailbox(&self, doorbell: Doorbell) -> Doorbell {
        Doorbell { record_at: self.mailbox.addr(0), register: self.mailbox.addr(8), ..doorbell }
    }

    /// Rings if the stream has come here; false while it has not.
    fn forward(&self) -> bool {
        // Acquire: the stream wrote the record before.
        let doorbell = self.mailbox.word64().load(Ordering::Acquire);
        if doorbell == 0 {
            return self.timeline.is_dead();
        }
        self.queue_pair.ring_proxied(self.mailbox.word32().load(Ordering::Relaxed), doorbell);
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.queue_pair.send().count_proxied(false);
    }
}

/// The doorbells of one stream that are not rung yet, oldest first.
#[derive(Default)]
pub(super) struct Queue {
    rings: Mutex<VecDeque<Ring>>,
}

impl fmt::Debug for Queue {
    /// How many, and what the mailbox of the oldest says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rings = self.lock();
        let mut tuple = f.debug_tuple("Doorbells");
        tuple.field(&rings.len());
        if let Some(Ring { mailbox, .. }) = rings.front() {
            let (record, doorbell) = (mailbox.word32(), mailbox.word64());
            tuple.field(&(record.load(Ordering::Relaxed), doorbell.load(Ordering::Relaxed)));
        }
        tuple.finish()
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Ring>> {
        self.rings.lock()
    }

    /// Rings the oldest if the stream has come there.
    fn forward_oldest(&self) -> bool {
        let mut rings = self.lock();
        if !rings.front().is_some_and(Ring::forward) {
            return false;
        }
        let done = rings.pop_front();
        drop(rings);
        // It may hold the last handle of a queue pair, whose drop takes other locks.
        drop(done);
        true
    }
}

/// The thread, and what it looks at. Lock order: this list, then a queue, then a send queue.
struct Proxy {
    state: Mutex<State>,
    /// Signalled when a queue gets something to look at.
    work: Condvar,
}

struct State {
    started: bool,
    /// Queues that are not empty.
    active: Vec<Arc<Queue>>,
}

static PROXY: Proxy =
    Proxy { state: Mutex::new(State { started: false, active: Vec::new() }), work: Condvar::new() };

/// Starts the thread, where it does not run yet.
pub(super) fn start() -> Result<(), StreamError> {
    let mut state = PROXY.lock();
    if !state.started {
        std::thread::Builder::new()
            .name("gdsync-doorbells".to_owned())
            .spawn(|| PROXY.run())
            .map_err(|error| StreamError::NoThread { reason: error.to_string() })?;
        state.started = true;
    }
    Ok(())
}

/// Hands doorbells over that the stream is about to be told of.
pub(super) fn submit(queue: &Arc<Queue>, rings: Vec<Ring>) {
    queue.lock().extend(rings);
    let mut state = PROXY.lock();
    if !state.active.iter().any(|known| Arc::ptr_eq(known, queue)) {
        state.active.push(queue.clone());
    }
    drop(state);
    PROXY.work.notify_one();
}

/// Takes the newest `count` back, which the stream was not told of after all (or told, and then failed).
pub(super) fn withdraw(queue: &Queue, count: usize) {
    let mut rings = queue.lock();
    // Doorbells are rung in order: if some of these are rung, all before them are.
    let first = rings.len() - count.min(rings.len());
    let withdrawn = rings.split_off(first);
    drop(rings);
    drop(withdrawn);
}

impl Proxy {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn run(&self) {
        use_fine_timers();
        let mut pause = Pause::new();
        let mut queues: Vec<Arc<Queue>> = Vec::new();
        loop {
            let mut state = self.lock();
            // A queue that was filled after this look is put on the list again by who filled it.
            state.active.retain(|queue| !queue.lock().is_empty());
            if state.active.is_empty() {
                queues.clear();
                self.work.wait(&mut state);
                pause = Pause::new();
                continue;
            }
            queues.clone_from(&state.active);
            drop(state);
            let mut rang = false;
            for queue in &queues {
                while queue.forward_oldest() {
                    rang = true;
                }
            }
            if rang {
                pause = Pause::new();
            } else {
                pause.pause();
            }
        }
    }
}

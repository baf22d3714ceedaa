//! Masters: a queue pair of the library's, connected to itself, that waits for the word of a trigger
//! in the place of the queue pairs that the trigger releases (its *slaves*), and then releases their
//! sends (SEND_EN).
//!
//! # Invariants
//! - Its requests stand in the order of their tickets: a ticket is taken and its WAIT is written under
//!   one lock.
//! - A release names a slave by number, and its blocks by an index that a reset starts anew. So none
//!   is left, in the ring or in the card, when a slave is reset or destroyed: one of its old life would
//!   have the card execute blocks of the new one that nothing has released, or those of another queue
//!   pair of that number. A NOP in its place would not do for a card that has fetched the release
//!   already, behind a WAIT that is not met. [`Master::cancel_releases`] therefore *stops* the queue: the queue
//!   pair goes to ERR, and its completion queue tells which release was the last that the card has
//!   executed; it is reset, which takes from the card whatever that has fetched; and what is left, but
//!   for that slave's, is written anew.
//! - `pending` has every release that the card may still execute. Requests are not signaled: from time to
//!   time a NOP that is, a *marker*, follows them, and its completion says that all before it are past.
//! - A master that has failed releases nothing. A thread of the library, which looks at it as long as
//!   anything is pending, fails the slaves whose sends it pending, and starts it again.

#[deny(unsafe_code)]
mod pending;
mod queue;
#[cfg(test)]
mod tests;

use self::pending::{PendingSend, PendingSends};
use crate::qp::card::trigger::TriggerInner;
use crate::qp::{QueuePair, QueuePairInner};
use crate::queue::completion::CompletionState;
use crate::queue::send::SendState;
use crate::queue::{QueueError, QueueFull, StateError, WorkRequest};
use crate::util::options::options;
use crate::verbs::{DeviceInner, Error, OutOfRange, ProtectionDomain, QueuePairError};
use gdsync_sys::api::Provider;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Most sends that a master may be asked to hold. With markers less than 8192 blocks: devices have
/// rings of so many requests, and completions name blocks by 16 bits.
const MOST_SENDS: u32 = 3072;

options! {
    /// How the master of a trigger is made ([`crate::Trigger::with_master`]).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct MasterConfig
    /// 512 sends.
    default {
        /// Sends of all its queue pairs, from 1 to 3072, that may at least be prepared and not
        /// released. More are refused sooner or later
        /// ([`QueueFull::Master`](crate::queue::QueueFull::Master)). Each takes two blocks of 64 bytes
        /// in the master's queue, and places in its completion queue.
        sends: u32 = 512,
    }
}

/// What a master has capacity for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capacity {
    /// A marker follows so many sends.
    interval: u32,
    /// Sends that are pending: those asked for, and those that were released, but are not known to be
    /// before the marker behind them completes, which may stand behind one that is not released.
    pending: u32,
    /// Blocks of the ring.
    blocks: u32,
}

impl Capacity {
    fn new(sends: u32) -> Capacity {
        let interval = (sends / 16).max(1);
        let pending = sends + interval - 1;
        // Two for each send; the markers behind them; one by the thread that looks, and one that
        // stops the queue.
        Capacity { interval, pending, blocks: 2 * pending + pending.div_ceil(interval) + 2 }
    }
}

/// The master of a trigger.
#[derive(Debug)]
pub(crate) struct Master {
    capacity: Capacity,
    state: Mutex<MasterState>,
}

#[derive(Debug)]
struct MasterState {
    /// None before the first slave is made, and while no new one can be.
    queue_pair: Option<QueuePair>,
    port: u8,
    pending: PendingSends,
    /// Markers that have not completed.
    markers: u32,
    /// Sends behind the newest marker.
    unmarked: u32,
    /// The queue has failed or was stopped, or is not there, and releases nothing.
    is_broken: bool,
    /// The queue is being stopped: what is flushed is no failure.
    is_stopping: bool,
    /// How often the queue was started.
    starts: u64,
    /// The library's thread looks at it.
    is_watched: bool,
    slaves: Vec<(u32, Weak<QueuePairInner>)>,
}

impl Master {
    /// A master whose queue is not made yet.
    pub(crate) fn new(device: &DeviceInner, config: MasterConfig) -> Result<Self, Error> {
        let MasterConfig { sends } = config;
        if sends == 0 || sends > MOST_SENDS {
            let limit = format!("a master holds from 1 to {MOST_SENDS}");
            let (what, value, remedy) = ("sends of a master", sends.into(), "ask for another number");
            return Err(Error::OutOfRange(OutOfRange { what, value, limit, remedy }));
        }
        let refuse = |reason| {
            Err(Error::QueuePair(QueuePairError::NoMasters { device: device.name.to_owned(), reason }))
        };
        if !device.card_waits()?.queues {
            return refuse("its card has no SEND_EN, capability `cd`");
        }
        if device.api.provider != Provider::Software && device.api.devx.is_none() {
            return refuse("its libmlx5 takes no commands: it is older than rdma-core 21");
        }
        let state = MasterState {
            queue_pair: None,
            port: 0,
            pending: PendingSends::default(),
            markers: 0,
            unmarked: 0,
            is_broken: false,
            is_stopping: false,
            starts: 0,
            is_watched: false,
            slaves: Vec::new(),
        };
        Ok(Master { capacity: Capacity::new(sends), state: Mutex::new(state) })
    }

    /// Makes the queue, where it is not there.
    pub(crate) fn ensure_queue(&self, pd: &ProtectionDomain, port: u8) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.queue_pair.is_none() && !state.is_broken {
            state.port = port;
            state.queue_pair = Some(self.make(&pd.inner, port)?);
        }
        Ok(())
    }

    /// A slave was made.
    pub(crate) fn add_slave(&self, slave: &Arc<QueuePairInner>) {
        self.state.lock().slaves.push((slave.number, Arc::downgrade(slave)));
    }

    /// Writes a request into the ring of a slave, whose queues are locked, and has the card release it
    /// when the trigger's next ticket is written. Where that fails, nothing has changed.
    ///
    /// Returns its serial number, and the ticket.
    pub(crate) fn prepare(
        &self,
        trigger: &Arc<TriggerInner>,
        slave: &QueuePairInner,
        send: &mut SendState,
        completions: &mut CompletionState,
        request: &WorkRequest<'_>,
    ) -> Result<(u64, u64), QueueError> {
        let mut state = self.state.lock();
        state.collect();
        let failed = || QueueError::State(StateError::MasterFailed { qpn: slave.number });
        if state.is_broken {
            // With sends that it pending, the thread that looks has slaves to fail first.
            if !state.pending.is_empty() {
                return Err(failed());
            }
            self.start(&mut state, trigger).map_err(|error| {
                tracing::warn!(%error, "the master of a trigger has no queue");
                failed()
            })?;
        }
        let full = || QueueError::Full(QueueFull::Master { sends: self.capacity.pending });
        if state.pending.len() >= self.capacity.pending as usize {
            return Err(full());
        }
        let (serial, _) = send.prepare([], request, slave, completions)?;
        let until = send.end();
        let (ticket, _) = trigger.take_ticket();
        let pending = PendingSend { ticket, slave: slave.number, until: until as u16, block: 0 };
        if let Err(error) = state.release(trigger, pending) {
            send.unprepare_newest(completions);
            trigger.cancel(ticket);
            return Err(match error {
                QueueError::Full(_) => full(),
                // Its own number means nothing to the program.
                _ => failed(),
            });
        }
        send.publish_record();
        if state.unmarked >= self.capacity.interval {
            state.mark();
        }
        state.watch(trigger);
        Ok((serial, ticket))
    }

    /// A slave is reset: after this, the card executes no release that was prepared for it.
    pub(crate) fn cancel_releases(&self, trigger: &TriggerInner, slave: u32) {
        let mut state = self.state.lock();
        state.collect();
        if !state.pending.has(slave) {
            return;
        }
        // One that has failed by itself is in ERR, where the card executes nothing; the thread that
        // looks goes on from there.
        let stopped = state.is_broken || state.stop();
        state.pending.remove(&[slave]);
        if !stopped {
            // Nor where it does not answer, once it is destroyed.
            tracing::error!("the master of a trigger does not stop: its queue pair is destroyed");
            (state.queue_pair, state.is_broken) = (None, true);
        } else if state.pending.is_empty() {
            // The next send starts it, if one comes.
            state.is_broken = true;
        } else if !state.is_broken
            && let Err(error) = self.start(&mut state, trigger)
        {
            tracing::warn!(%error, "the master of a trigger has no queue");
        }
    }

    /// A slave is being destroyed: as [`Self::cancel_releases`].
    pub(crate) fn remove_slave(&self, trigger: &TriggerInner, slave: u32) {
        self.cancel_releases(trigger, slave);
        self.state.lock().slaves.retain(|(number, _)| *number != slave);
    }
}

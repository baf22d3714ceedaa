//! Masters: a queue pair of the library, connected to itself, waits for the word of a trigger instead of the queue
//! pairs that the trigger releases (its *slaves*), and then releases their sends (SEND_EN).
//!
//! # Invariants
//! - Its requests are in the order of their tickets: a ticket is taken and its WAIT is written under one lock.
//! - A release names a slave by number, and blocks by an index that a reset restarts. So none may remain, in the ring
//!   or in the card, when a slave is reset or destroyed: an old one would make the card execute blocks that nothing has
//!   released, or blocks of another queue pair with that number. Overwriting it with a NOP is not enough, as the card
//!   may have fetched it behind an unmet WAIT. [`Master::cancel_releases`] therefore *stops* the queue. The queue pair
//!   goes to ERR, and its completion queue shows the last release that the card has executed. A reset discards what the
//!   card has fetched. The remaining releases, without that slave's, are written again.
//! - `pending` has every release that the card may still execute. Requests are not signaled. From time to time, a
//!   signaled NOP follows them, a *marker*, whose completion shows that all requests before it have executed.
//! - A failed master releases nothing. A library thread, which polls it while releases are pending, fails the
//!   slaves with pending sends and restarts it.

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

/// Most sends that a master may be configured for. With markers, they take less than 8192 blocks: devices have
/// rings of that size, and completions name blocks by 16 bits.
const MOST_SENDS: u32 = 3072;

options! {
    /// Configuration of a trigger's master ([`crate::Trigger::with_master`]).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct MasterConfig
    /// 512 sends.
    default {
        /// Unreleased sends of all its queue pairs for which there is always room, from 1 to 3072. More are
        /// eventually refused ([`QueueFull::Master`](crate::queue::QueueFull::Master)). Each takes two 64-byte
        /// blocks in the master's queue, and places in its completion queue.
        sends: u32 = 512,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capacity {
    interval: u32,
    /// Pending sends: those configured, and released ones, which stay until the next marker completes. That marker
    /// may be behind an unreleased send.
    pending: u32,
    blocks: u32,
}

impl Capacity {
    fn new(sends: u32) -> Capacity {
        let interval = (sends / 16).max(1);
        let pending = sends + interval - 1;
        // Two for each send; their markers; one marker by the polling thread, and one that stops the queue.
        Capacity { interval, pending, blocks: 2 * pending + pending.div_ceil(interval) + 2 }
    }
}

#[derive(Debug)]
pub(crate) struct Master {
    capacity: Capacity,
    state: Mutex<MasterState>,
}

#[derive(Debug)]
struct MasterState {
    /// None before the first slave is made, and while no new queue pair can be made.
    queue_pair: Option<QueuePair>,
    port: u8,
    pending: PendingSends,
    markers: u32,
    unmarked: u32,
    /// True if the queue has failed, was stopped or does not exist: it releases nothing.
    is_broken: bool,
    /// True while the queue is being stopped: a flush is not a failure then.
    is_stopping: bool,
    starts: u64,
    is_watched: bool,
    slaves: Vec<(u32, Weak<QueuePairInner>)>,
}

impl Master {
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

    /// Makes the queue, unless it exists.
    pub(crate) fn ensure_queue(&self, pd: &ProtectionDomain, port: u8) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.queue_pair.is_none() && !state.is_broken {
            state.port = port;
            state.queue_pair = Some(self.make(&pd.inner, port)?);
        }
        Ok(())
    }

    pub(crate) fn add_slave(&self, slave: &Arc<QueuePairInner>) {
        self.state.lock().slaves.push((slave.number, Arc::downgrade(slave)));
    }

    /// Writes a request into the ring of a slave, whose queues are locked, and has the card release it with the
    /// trigger's next ticket. Returns its serial number and the ticket. On an error, nothing has changed.
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
            // With pending sends, the polling thread first has to fail their slaves.
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
                // The error's queue pair is the master's, which means nothing to the program.
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

    /// Cancels a slave's releases before its reset: the card executes none of them afterwards.
    pub(crate) fn cancel_releases(&self, trigger: &TriggerInner, slave: u32) {
        let mut state = self.state.lock();
        state.collect();
        if !state.pending.has(slave) {
            return;
        }
        // A failed master is in ERR, where the card executes nothing; the polling thread continues from there.
        let stopped = state.is_broken || state.stop();
        state.pending.remove(&[slave]);
        if !stopped {
            // Destroying the queue pair of a card that does not answer has the same effect.
            tracing::error!("the master of a trigger does not stop: its queue pair is destroyed");
            (state.queue_pair, state.is_broken) = (None, true);
        } else if state.pending.is_empty() {
            // The next send restarts it.
            state.is_broken = true;
        } else if !state.is_broken
            && let Err(error) = self.start(&mut state, trigger)
        {
            tracing::warn!(%error, "the master of a trigger has no queue");
        }
    }

    /// Cancels the releases of a slave that is being destroyed.
    pub(crate) fn remove_slave(&self, trigger: &TriggerInner, slave: u32) {
        self.cancel_releases(trigger, slave);
        self.state.lock().slaves.retain(|(number, _)| *number != slave);
    }
}

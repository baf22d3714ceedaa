//! The queue of a master: its requests and completions, stopping and starting it, and polling while sends are pending.

use crate::qp::card::trigger::TriggerInner;
use crate::qp::card::trigger::master::{Master, MasterState, PendingSend};
use crate::qp::complete::wait::{CHECKER, start_checker};
use crate::qp::{QueuePair, QueuePairConfig, QueuePairInner};
use crate::queue::outcome::outcome;
use crate::queue::send::{Enable, PostMode};
use crate::queue::{FailureCause, QueueError, StateError, WorkRequest};
use crate::util::poller::{CallWait, Polled, Task};
use crate::verbs::{Access, ConnectOptions, Error, ProtectionDomain, ProtectionDomainInner};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time after which a card that has not flushed a queue counts as dead.
const FLUSH: Duration = Duration::from_secs(1);

impl Master {
    /// Makes a queue pair that is connected to itself, so that it may execute requests. It sends nothing.
    pub(super) fn make(&self, pd: &Arc<ProtectionDomainInner>, port: u8) -> Result<QueuePair, Error> {
        start_checker()?;
        let pd = ProtectionDomain { inner: pd.clone() };
        // Its receive queue is not used.
        let config = QueuePairConfig::default()
            .send_depth(self.capacity.blocks)
            .send_segments(1)
            .inline(0)
            .recv_depth(1)
            .access(Access::empty())
            .port(port);
        let queue_pair = QueuePair::of_master(&pd, config)?.started()?;
        queue_pair.connect(&queue_pair.endpoint()?, ConnectOptions::default())?;
        Ok(queue_pair)
    }

    /// Restarts a queue that has stopped or failed, or makes a new one, with the pending sends.
    pub(super) fn start(&self, state: &mut MasterState, trigger: &TriggerInner) -> Result<(), Error> {
        state.is_broken = true;
        if !state.reconnect() {
            // Destroys what the card may still have of it.
            state.queue_pair = None;
            state.queue_pair = Some(self.make(&trigger.pd, state.port)?);
        }
        (state.markers, state.unmarked, state.is_broken) = (0, 0, false);
        state.starts += 1;
        for pending in state.pending.take() {
            if state.release(trigger, pending).is_err() {
                // It failed again; the polling thread will fail all pending sends.
                state.pending.push(pending);
            }
        }
        Ok(())
    }

    fn look(&self, trigger: &TriggerInner) -> Polled {
        let mut state = self.state.lock();
        let progress = state.collect();
        if state.pending.is_empty() {
            state.is_watched = false;
            return Polled::Done;
        }
        if state.is_broken {
            drop(state);
            self.fail_slaves(trigger);
            return Polled::Progress;
        }
        // Behind the last send, so that the thread learns of its release, and sleeps.
        if state.markers == 0 {
            state.mark();
        }
        if progress { Polled::Progress } else { Polled::Nothing }
    }

    /// Fails the slaves with pending sends, which nothing releases any more, and restarts the queue. The slaves'
    /// locks precede this one, so it is not held meanwhile; with pending sends, a broken queue is left alone.
    fn fail_slaves(&self, trigger: &TriggerInner) {
        let state = self.state.lock();
        let (starts, numbers, victims) = (state.starts, state.pending.slaves(), state.victims());
        drop(state);
        for victim in &victims {
            if let Err(error) = victim.abort_for(FailureCause::Master) {
                tracing::error!(%error, qpn = victim.number, "a queue pair whose master has failed could not be aborted");
            }
        }
        // These may be the last handles, whose drop takes the lock.
        drop(victims);
        let mut state = self.state.lock();
        // Otherwise, all of them were reset meanwhile, and the queue was restarted for others.
        if state.starts == starts && state.is_broken {
            state.pending.remove(&numbers);
            if let Err(error) = self.start(&mut state, trigger) {
                tracing::warn!(%error, "the master of a trigger has no queue");
            }
        }
    }
}

impl MasterState {
    /// Makes the card wait for a ticket and then release a send.
    pub(super) fn release(&mut self, trigger: &TriggerInner, pending: PendingSend) -> Result<(), QueueError> {
        let Some(queue_pair) = &self.queue_pair else {
            return Err(QueueError::State(StateError::MasterFailed { qpn: pending.slave }));
        };
        let own = &*queue_pair.inner;
        let mut completions = own.send_cq.lock();
        let mut send = own.send();
        own.life.check_connected()?;
        let enable = Enable { qpn: pending.slave, until: pending.until };
        // SAFETY: the register belongs to this queue pair, which is alive.
        let block = unsafe { send.post_enable(trigger.wait_for(pending.ticket), enable, &mut completions) }?;
        self.pending.push(PendingSend { block, ..pending });
        self.unmarked += 1;
        Ok(())
    }

    /// Posts a marker. If that fails, the next marker serves.
    pub(super) fn mark(&mut self) -> bool {
        let Some(queue_pair) = &self.queue_pair else { return false };
        let posted = queue_pair.inner.enqueue(&WorkRequest::nop(), PostMode::NOW);
        match &posted {
            Ok(_) => {
                self.markers += 1;
                self.unmarked = 0;
            }
            Err(error) => tracing::debug!(%error, "no marker in the queue of a master"),
        }
        posted.is_ok()
    }

    /// Reads completions, which frees their places. Returns whether there were any.
    pub(super) fn collect(&mut self) -> bool {
        let Some(queue_pair) = &self.queue_pair else { return false };
        let own = &*queue_pair.inner;
        let mut any = false;
        loop {
            let mut completions = own.send_cq.lock();
            let Some(raw) = completions.peek() else { break };
            any = true;
            completions.advance();
            if completions.take_orphaned(raw.index) {
                continue;
            }
            let counter = raw.cqe.wqe_counter();
            if let Some(retired) = own.send().retire(counter) {
                (0..retired.entries).for_each(|i| completions.unreserve(i < retired.signaled));
            }
            drop(completions);
            let outcome = outcome(&raw.cqe);
            self.pending.completed(counter, outcome.is_err());
            match outcome {
                // Only markers are signaled.
                Ok(()) => self.markers = self.markers.saturating_sub(1),
                Err(error) if self.is_stopping && error.is_flush() => {}
                Err(error) => {
                    own.fail_with_work(own.life.psn.load(Ordering::Relaxed), error);
                    self.is_broken = true;
                }
            }
        }
        self.is_broken |= !self.is_stopping && own.life.failure().is_some();
        any
    }

    /// Stops the card: it executes none of the pending sends. Returns false if the card does not answer. If the
    /// queue has failed meanwhile, it is broken.
    pub(super) fn stop(&mut self) -> bool {
        // The queue's last request, which completes in any case.
        if !self.mark() {
            self.is_broken = true;
            return self.halt();
        }
        self.is_stopping = true;
        let stopped = self.halt() && self.settle();
        self.is_stopping = false;
        stopped
    }

    fn halt(&self) -> bool {
        let Some(queue_pair) = &self.queue_pair else { return true };
        let halted = queue_pair.inner.abort();
        if let Err(error) = &halted {
            tracing::error!(%error, "the master of a trigger cannot be stopped");
        }
        halted.is_ok()
    }

    /// Waits until every marker has completed or was flushed.
    fn settle(&mut self) -> bool {
        let mut wait = CallWait::new();
        loop {
            self.collect();
            let Some(queue_pair) = &self.queue_pair else { return false };
            if queue_pair.inner.send().outstanding().signaled == 0 {
                return true;
            }
            if !wait.goes_on(FLUSH) {
                return false;
            }
        }
    }

    /// Resets the queue pair, which is in the error state, and connects it again. Its number stays.
    fn reconnect(&mut self) -> bool {
        if self.queue_pair.is_none() || !self.halt() || !self.settle() {
            return false;
        }
        let Some(queue_pair) = &self.queue_pair else { return false };
        if let Err(error) = queue_pair.reset() {
            tracing::debug!(%error, "the queue pair of a master cannot be reset");
            return false;
        }
        let connected = queue_pair
            .endpoint()
            .and_then(|endpoint| queue_pair.connect(&endpoint, ConnectOptions::default()));
        connected.inspect_err(|error| tracing::debug!(%error, "a master cannot be connected")).is_ok()
    }

    pub(super) fn watch(&mut self, trigger: &Arc<TriggerInner>) {
        if !std::mem::replace(&mut self.is_watched, true) {
            CHECKER.add(Arc::new(Watch(trigger.clone())));
        }
    }

    fn victims(&self) -> Vec<Arc<QueuePairInner>> {
        let numbers = self.pending.slaves();
        let slaves = self.slaves.iter().filter(|(number, _)| numbers.binary_search(number).is_ok());
        slaves.filter_map(|(_, slave)| slave.upgrade()).collect()
    }
}

struct Watch(Arc<TriggerInner>);

impl Task for Watch {
    fn poll(&self) -> Polled {
        self.0.master.as_ref().map_or(Polled::Done, |master| master.look(&self.0))
    }
}

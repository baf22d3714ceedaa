//! The state of an engine, and the operations that its steps and commands are built on.

use super::doorbells::Doorbells;
use super::peer_batch::PeerBatch;
use super::schedule::Schedule;
use crate::card::config::WaitRules;
use crate::card::context::{Context, Resources};
use crate::card::delayed::DelayedPackets;
use crate::card::memory::clock::Clock;
use crate::card::memory::ring::Entry;
use crate::card::port::Port;
use crate::card::reports::Event;
use crate::card::transport::qp::Qp;
use crate::fabric::Fabric;
use crate::faults::Faults;
use crate::liberties::Decisions;
use crate::liberties::journal;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct XrcDomain {
    /// Device and inode of the file that names it.
    pub(crate) file: Option<(u64, u64)>,
    pub(crate) openers: u32,
    /// Queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}

/// All state of a card.
pub(crate) struct Engine {
    pub(crate) fabric: Fabric,
    /// Protection domains, each with the number of objects in it.
    pub(crate) pds: HashMap<u32, u32>,
    pub(crate) xrcds: HashMap<u32, XrcDomain>,
    pub(crate) doorbells: Doorbells,
    pub(crate) qps: HashMap<u32, Qp>,
    /// Number of queue pairs that were made.
    qps_made: u32,
    pub(crate) resources: Resources,
    pub(super) schedule: Schedule,
    pub(super) batch: PeerBatch,
    pub(crate) delayed: DelayedPackets,
    pub(crate) workers: Workers,
}

/// The threads that do the card's work.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// True if the card's own thread sleeps.
    pub(crate) asleep: bool,
    /// The longest time of the sleep of which peers know, and which they end.
    pub(crate) announced: Option<Duration>,
    /// Number of other threads that do the work while they wait for the card.
    pub(crate) helpers: u32,
    /// True if no other thread may work: because the card uses memory of a peer-memory client, which is called from the
    /// card's thread only, or because the card is dropped and its memory may be gone.
    pub(crate) own_thread_only: bool,
}

impl Engine {
    pub(crate) fn new(
        fabric: Fabric,
        port: Port,
        faults: Faults,
        decisions: Decisions,
        waits: WaitRules,
        clock: Clock,
    ) -> Self {
        let (clock, speed) = (Arc::new(clock), fabric.speed());
        Engine {
            workers: Workers::default(),
            fabric,
            pds: HashMap::new(),
            xrcds: HashMap::new(),
            doorbells: Doorbells::new(clock.clone()),
            qps: HashMap::new(),
            qps_made: 0,
            resources: Resources::new((port, speed), clock, faults, decisions, waits),
            schedule: Schedule::default(),
            batch: PeerBatch::default(),
            delayed: DelayedPackets::default(),
        }
    }

    /// Returns the time of the card's clock.
    pub(crate) fn now(&self) -> Instant {
        self.resources.clock.now()
    }

    /// Counts a queue pair that is being made. Returns its number, from 0.
    pub(crate) fn number_of_next_qp(&mut self, qpn: u32) -> u32 {
        let qp = self.qps_made;
        self.qps_made = qp.wrapping_add(1);
        if let Some(journal) = self.resources.decisions.journal() {
            journal.write(&journal::Entry::Made { qp, qpn });
        }
        qp
    }

    pub(crate) fn with_qp<R>(
        &mut self,
        qpn: u32,
        now: Instant,
        work: impl FnOnce(&mut Qp, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(&qpn)?;
        let result = work(qp, &mut self.resources.context(now));
        self.schedule.update(qp);
        Some(result)
    }

    pub(crate) fn leave_domain(&mut self, pdn: u32) {
        self.pds.entry(pdn).and_modify(|users| *users -= 1);
    }

    pub(crate) fn activate(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            self.schedule.activate(qp);
        }
    }

    /// Reschedules a queue pair that a packet was delivered to.
    pub(super) fn reschedule(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            self.schedule.update(qp);
            self.schedule.activate(qp);
        }
    }

    pub(crate) fn clear_failed(&mut self, qpn: u32) {
        self.schedule.clear_failed(qpn);
    }

    /// Passes executed SEND_ENs to the queue pairs that they release.
    pub(super) fn pass_on_enables(&mut self, now: Instant) {
        for enable in std::mem::take(&mut self.resources.enables) {
            self.with_qp(enable.slave, now, |qp, context| qp.enable(enable, context));
            self.activate(enable.slave);
        }
    }

    /// Waits for all copies in progress. After a panic the step that started them no longer does; then their source and
    /// target may be freed.
    pub(crate) fn end_copies(&mut self) {
        self.batch.wait(&mut self.resources.peers);
        self.resources.peers.finish();
    }

    /// Performs all deferred writes, before memory is deregistered.
    pub(crate) fn write_deferred(&mut self) {
        self.qps.values_mut().for_each(|qp| qp.endpoint.deferred.write_all());
    }

    /// Writes the delayed completions of a queue pair before it is reset or destroyed, as programs rely on seeing them.
    pub(crate) fn flush_delayed_completions(&mut self, qpn: u32, now: Instant) {
        for (cqn, entry) in self.resources.delayed.take_of(qpn) {
            self.write_completion(cqn, entry, now);
        }
        self.report_last_receives();
    }

    fn report_last_receives(&mut self) {
        let last = self.resources.delayed.take_last_receives();
        self.resources.events.extend(last.into_iter().map(|qpn| Event::LastReceive { qpn }));
    }

    fn write_completion(&mut self, cqn: u32, entry: Entry, now: Instant) {
        let qpn = entry.cqe.qpn();
        self.with_qp(qpn, now, |qp, _| qp.endpoint.deferred.write_all());
        if !self.resources.context(now).write_completion(cqn, entry) {
            self.with_qp(qpn, now, Qp::completion_lost);
        }
    }

    /// Writes the delayed completions that are due. Returns whether there were any.
    pub(super) fn release_completions(&mut self, now: Instant) -> bool {
        if self.resources.delayed.is_empty() {
            return false;
        }
        let delays = self.resources.faults.is_on() || self.resources.decisions.is_on();
        let due = if delays { Some(now) } else { None };
        let mut released = false;
        while let Some((cqn, entry)) = self.resources.delayed.pop(due) {
            released = true;
            self.write_completion(cqn, entry, now);
        }
        if released {
            self.report_last_receives();
        }
        released
    }

    /// Raises the completion events whose moderation period is over. Returns whether there were any.
    pub(super) fn raise_held_events(&mut self, now: Instant) -> bool {
        let mut raised = false;
        while let Some(&(due, cqn)) = self.resources.held_events.first().filter(|(due, _)| *due <= now) {
            self.resources.held_events.pop_first();
            // By now moderation may hold back another event, with a later due time.
            if let Some(cq) = self.resources.cqs.get_mut(&cqn).filter(|cq| cq.due() == Some(due))
                && cq.release()
            {
                self.resources.events.push(Event::Completion { cqn });
                raised = true;
            }
        }
        raised
    }

    pub(crate) fn remove_qp(&mut self, qpn: u32) -> Option<Qp> {
        // Its last doorbell may still be in its register: the record was already written when an earlier doorbell was
        // handled, and all work was done then. It must not count as a doorbell of an unknown queue pair.
        let now = self.now();
        self.take_doorbells_of(qpn, now);
        self.flush_delayed_completions(qpn, now);
        let mut qp = self.qps.remove(&qpn)?;
        qp.endpoint.deferred.write_all();
        self.schedule.remove(&qp);
        self.resources.slaves.remove(&qpn);
        if let Some(uar) = qp.endpoint.config.uar.and_then(|uar| self.doorbells.uars.get_mut(&uar)) {
            uar.qps.remove(&qpn);
        }
        Some(qp)
    }

    #[cfg(test)]
    pub(crate) fn with_qps<R>(
        &mut self,
        work: impl FnOnce(&mut HashMap<u32, Qp>, &mut Context<'_>) -> R,
    ) -> R {
        let now = self.now();
        work(&mut self.qps, &mut self.resources.context(now))
    }
}

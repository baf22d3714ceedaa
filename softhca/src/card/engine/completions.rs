//! Release of delayed completion entries, and removal of queue pairs, which needs it.

use super::state::Engine;
use crate::card::event::Event;
use crate::card::memory::ring::Entry;
use crate::card::transport::qp::Qp;
use std::time::Instant;

impl Engine {
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
        self.with_qp(qpn, now, |qp, _| qp.endpoint.parked.write_all());
        if !self.resources.context(now).write_completion(cqn, entry) {
            self.with_qp(qpn, now, Qp::completion_lost);
        }
    }

    /// Writes the delayed completions that are due. Returns whether there were any.
    pub(super) fn release_completions(&mut self, now: Instant) -> bool {
        if self.resources.delayed.is_empty() {
            return false;
        }
        let delays = self.resources.faults.is_on() || self.resources.dice.is_on();
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
        while let Some(&(due, cqn)) = self.resources.held.first().filter(|(due, _)| *due <= now) {
            self.resources.held.pop_first();
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

    /// Removes a queue pair.
    pub(crate) fn remove_qp(&mut self, qpn: u32) -> Option<Qp> {
        // Its last doorbell may still be in its register: the record was already written when an earlier doorbell was
        // handled, and all work was done then. It must not count as a doorbell of an unknown queue pair.
        self.take_doorbells_of(qpn, Instant::now());
        self.flush_delayed_completions(qpn, Instant::now());
        let mut qp = self.qps.remove(&qpn)?;
        qp.endpoint.parked.write_all();
        self.schedule.remove(&qp);
        self.resources.slaves.remove(&qpn);
        if let Some(uar) = qp.endpoint.config.uar.and_then(|uar| self.uars.get_mut(&uar)) {
            uar.qps.remove(&qpn);
        }
        Some(qp)
    }
}

//! One step of the engine: a bounded amount of work of every kind.

use super::arrivals::Arrivals;
use super::doorbells::{PAGES, PAGES_BEFORE_SLEEP, Rung};
use super::send::Served;
use super::state::Engine;
use super::timeouts::{check_own_timeout, check_timeout};
use crate::card::delayed::Flow;
use crate::card::memory::peer_copies::MAX_PENDING;
use crate::card::reports::{Diagnostic, Event, Verdict};
use crate::card::trace;
use crate::card::transport::qp::Qp;
use crate::card::transport::requester::PeerState;
use crate::liberties::{LibertyKinds, Work};
use crate::speed::SPEED_VARIABLE;
use gdsync_sys::prm::doorbell::{self, CqArm, Doorbell};
use std::time::Instant;

/// Maximum number of queue pairs that one step serves.
const QP_BUDGET: usize = 16;

/// Maximum number of packets that one step takes from the fabric.
const RECEIVE_BUDGET: usize = 32;

/// Maximum number of timers that one step handles. If thousands expire at once, the card still has to send in between:
/// a peer answers only then, and that peer may be this card.
const TIMERS: usize = 32;

impl Engine {
    /// Does a bounded amount of work. Returns whether there was any.
    pub(crate) fn step(&mut self, now: Instant) -> bool {
        self.step_with(PAGES, now)
    }

    /// Performs a step that polls the doorbells of `pages` pages in turn.
    fn step_with(&mut self, pages: usize, now: Instant) -> bool {
        self.resources.clock.tick();
        let mut worked = self.poll_doorbells(pages, now);
        worked |= self.take_packets(now);
        worked |= self.flush_failed(now);
        worked |= self.fire_timers(now);
        worked |= self.release_packets(now);
        worked |= self.release_completions(now);
        worked |= self.raise_held_events(now);
        worked |= self.poll_waits(now);
        for qpn in self.schedule.take_blocked() {
            self.activate(qpn);
        }
        for _ in 0..QP_BUDGET.min(self.schedule.active()) {
            let Some(qpn) = self.schedule.next_active() else { break };
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.scheduled = false;
            }
            match self.serve(qpn, now) {
                Served::All => worked = true,
                Served::Part => {
                    worked = true;
                    self.activate(qpn);
                }
                Served::Blocked => self.schedule.block(qpn),
            }
        }
        if self.schedule.ends_round() {
            self.fabric.end_round();
        }
        worked
    }

    /// Returns when the engine next has work without a packet or a doorbell.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let delayed = [self.delayed.next_due(), self.resources.delayed.next_due()];
        let held = self.resources.held_events.first().map(|(due, _)| *due);
        let others = [self.schedule.next_timer(), held, self.doorbells.next_poll];
        delayed.into_iter().chain(others).flatten().min()
    }

    fn flush_failed(&mut self, now: Instant) -> bool {
        let mut flushed = false;
        for qpn in self.schedule.failed() {
            flushed |= self.with_qp(qpn, now, Qp::flush_new_receives).unwrap_or(false);
        }
        flushed
    }

    /// Polls the WAITs of all queue pairs with an unmet one. Returns whether one is met. A store to a word raises no
    /// event. Without such queue pairs this costs nothing: an empty list takes no memory.
    fn poll_waits(&mut self, now: Instant) -> bool {
        let mut goes_on = false;
        for qpn in self.schedule.waiting() {
            if self.with_qp(qpn, now, Qp::poll_wait).unwrap_or(true) {
                self.schedule.stop_waiting(qpn);
                self.activate(qpn);
                goes_on = true;
            }
        }
        goes_on
    }

    fn poll_doorbells(&mut self, pages: usize, now: Instant) -> bool {
        let rung = self.doorbells.poll(pages, now);
        let has_rung = !rung.is_empty();
        let last = if self.resources.decisions.is_on() {
            rung.last().and_then(|rung| self.rung(rung))
        } else {
            None
        };
        self.handle_doorbells(rung, now);
        if has_rung {
            // Later doorbells may be served by one poll.
            let pause = last.and_then(|work| self.resources.decisions.pause(LibertyKinds::DOORBELLS, work));
            self.doorbells.next_poll = pause.map(|pause| now + pause);
        }
        has_rung
    }

    /// Returns the work that a doorbell announces, as decisions name it.
    fn rung(&self, Rung { bell, .. }: &Rung) -> Option<Work> {
        let work = self.qps.get(&bell.qpn())?.endpoint.work;
        Some(work.of_request(bell.index().into(), 0))
    }

    /// Handles the doorbells that have rung on pages where completion queues are armed.
    pub(crate) fn take_arms(&mut self, now: Instant) {
        let mut rung = Vec::new();
        self.doorbells.arming.iter().for_each(|page| self.doorbells.collect(*page, &mut rung));
        self.handle_doorbells(rung, now);
    }

    /// Handles the doorbells that have rung on all pages.
    #[cfg(test)]
    pub(crate) fn take_doorbells(&mut self, now: Instant) {
        let mut rung = Vec::new();
        self.doorbells.uars.keys().for_each(|page| self.doorbells.collect(*page, &mut rung));
        self.handle_doorbells(rung, now);
    }

    /// Handles the doorbells that have rung on the page of a queue pair.
    pub(crate) fn take_doorbells_of(&mut self, qpn: u32, now: Instant) {
        let mut rung = Vec::new();
        if let Some(page) = self.qps.get(&qpn).and_then(|qp| qp.endpoint.config.uar) {
            self.doorbells.collect(page, &mut rung);
        }
        self.handle_doorbells(rung, now);
    }

    fn handle_doorbells(&mut self, rung: Vec<Rung>, now: Instant) {
        for Rung { page, offset, bell } in rung {
            if offset != doorbell::UAR_CQ_ARM {
                trace::rung(self.resources.port, bell);
            }
            match offset {
                doorbell::UAR_CQ_ARM => self.arm(bell, now),
                doorbell::UAR_NO_RECORD => self.ring_without_record(page, bell, now),
                _ => self.ring(page, bell, now),
            }
        }
    }

    /// Arms a completion queue, and all others whose doorbells this one may have overwritten. They may belong to any
    /// UAR: libmlx5 rings on the page of the context.
    fn arm(&mut self, bell: Doorbell, now: Instant) {
        let (arm, rung) = CqArm::from_doorbell(bell.raw());
        let mut problem = (!self.resources.cqs.contains_key(&rung))
            .then(|| (Verdict::Refused, format!("arms completion queue {rung:#x}, which does not exist")));
        let mut fired = Vec::new();
        for (&cqn, cq) in &mut self.resources.cqs {
            let fires = if cqn == rung { cq.rung(arm) } else { cq.poll_arm_record() };
            if cqn == rung && !cq.has_record() {
                // The doorbell has everything that the record should have. Only if another doorbell overwrites it, the
                // record is the sole trace of the arm.
                let message = format!("arms completion queue {cqn:#x}, whose arm record was never written");
                problem = Some((Verdict::Accepted, message));
            }
            let fires = cq.moderate(fires, now);
            if let Some(due) = cq.due() {
                self.resources.held_events.insert((due, cqn));
            }
            if fires.0 {
                fired.push(cqn);
            }
        }
        // Not in the order of the map, which differs between runs.
        fired.sort_unstable();
        self.resources.events.extend(fired.into_iter().map(|cqn| Event::Completion { cqn }));
        if let Some((verdict, message)) = problem {
            let diagnostic = Diagnostic { verdict, qpn: None, index: None, field: "arm doorbell", message };
            self.resources.diagnostics.report(diagnostic);
        }
    }

    /// Handles a doorbell of a page: serves every queue pair of the page up to its record.
    fn ring(&mut self, uar: u32, bell: Doorbell, now: Instant) {
        let Some(rung) = self.doorbells.uars.get(&uar) else { return };
        let is_known = rung.qps.contains(&bell.qpn());
        let qps: Vec<u32> = rung.qps.iter().copied().collect();
        if !is_known {
            self.report_stranger(uar, bell);
        }
        for qpn in qps {
            let is_own = qpn == bell.qpn();
            self.with_qp(qpn, now, |qp, context| {
                if is_own {
                    qp.check_doorbell(bell, context);
                }
                qp.ring(is_own, context);
            });
            self.activate(qpn);
        }
    }

    /// Handles a doorbell of queue pairs without a record: serves only the queue pair that it names.
    fn ring_without_record(&mut self, uar: u32, bell: Doorbell, now: Instant) {
        let qpn = bell.qpn();
        if self.doorbells.uars.get(&uar).is_some_and(|uar| uar.qps.contains(&qpn)) {
            self.with_qp(qpn, now, |qp, context| qp.ring_without_record(bell, context));
            self.activate(qpn);
        } else {
            self.report_stranger(uar, bell);
        }
    }

    fn report_stranger(&mut self, uar: u32, bell: Doorbell) {
        let message = format!("names queue pair {:#x}, which is not on UAR {uar}", bell.qpn());
        let index = Some(bell.index());
        let diagnostic =
            Diagnostic { verdict: Verdict::Refused, qpn: None, index, field: "doorbell", message };
        self.resources.diagnostics.report(diagnostic);
    }

    /// Takes packets from the fabric. Returns whether there were any.
    pub(crate) fn take_packets(&mut self, now: Instant) -> bool {
        if self.delayed.is_congested() {
            return false;
        }
        let Engine { fabric, qps, resources, delayed, .. } = self;
        let mut arrivals = Arrivals { now, qps, resources, delayed, most: MAX_PENDING, touched: Vec::new() };
        let taken = fabric.poll(RECEIVE_BUDGET, &mut arrivals);
        let touched = arrivals.touched;
        for refused in fabric.take_refused() {
            let (verdict, message) = (Verdict::Refused, refused.to_string());
            let field = SPEED_VARIABLE;
            resources.diagnostics.report(Diagnostic { verdict, qpn: None, index: None, field, message });
        }
        for qpn in touched {
            self.reschedule(qpn);
        }
        taken > 0
    }

    /// Handles expired timers. Returns whether one had an effect, or whether more are left.
    pub(super) fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = false;
        for _ in 0..TIMERS {
            let Some(qpn) = self.schedule.next_expired(now) else { return fired };
            fired |= self.fire(qpn, now);
        }
        true
    }

    /// Returns whether a time-out or a pause of the queue pair has ended; otherwise its timer was set too early.
    fn fire(&mut self, qpn: u32, now: Instant) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        qp.timer = None;
        let node = qp.endpoint.node(self.resources.port);
        let expired = qp.requester.is_expired(now);
        let ready = qp.end_pauses(now);
        let round = self.schedule.rounds;
        let has_no_room = self.delayed.has_no_room(Flow::outgoing(qpn, node));
        let peer = match expired {
            true if node == self.resources.port.node() => Some(check_own_timeout(round, &mut qp.requester)),
            true => Some(check_timeout(
                &mut self.fabric,
                node,
                (round, now),
                &mut qp.requester,
                has_no_room,
                self.resources.stopped_peers,
            )),
            false => None,
        };
        self.with_qp(qpn, now, |qp, context| {
            if let Some(peer) = peer {
                qp.retry(peer, context);
            }
        });
        // A queue pair that keeps waiting for its peer has nothing to send: in the active list it would delay the
        // others, and the end of the round that it may wait for.
        if ready || matches!(peer, Some(PeerState::Silent | PeerState::Ended { .. })) {
            self.activate(qpn);
        }
        expired || ready
    }

    /// Announces sleep to the fabric. Returns false if there is work after all.
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if !self.fabric.prepare_sleep() {
            return false;
        }
        // Work that arrived before the announcement raised no wake-up: look for it once more.
        if self.step_with(PAGES_BEFORE_SLEEP, now) {
            self.fabric.cancel_sleep();
            return false;
        }
        true
    }
}

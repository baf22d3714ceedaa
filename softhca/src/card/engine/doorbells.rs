//! Doorbells: polling of UAR pages, and handling of doorbells that have rung.

use super::state::{Engine, Uar};
use crate::card::diagnostic::{Diagnostic, Verdict};
use crate::card::event::Event;
use crate::card::trace;
use crate::liberties::LibertyKinds;
use gdsync_sys::prm::doorbell::{self, CqArm, Doorbell};
use std::time::{Duration, Instant};

/// Maximum number of pages that a step polls besides the announced ones. A program with hundreds of connections has
/// thousands of pages, and polling all takes as long as many messages. Threads announce every doorbell to a card with
/// more pages, even while its thread is awake.
pub(super) const PAGES: usize = 256;
/// Time between two such polls of a card with more pages.
const TURN: Duration = Duration::from_micros(50);
/// Number of pages to poll before the card's thread sleeps.
pub(super) const PAGES_BEFORE_SLEEP: usize = 4096;

impl Engine {
    /// Handles the doorbells that have rung on announced pages, and on the next `pages` of all others in turn. A
    /// liberty may skip polls for a while, so that one poll serves several doorbells.
    pub(super) fn look_at_doorbells(&mut self, pages: usize, now: Instant) -> bool {
        if self.look_at.is_some_and(|at| now < at) {
            return false;
        }
        let mut rung = Vec::new();
        self.told.take(&mut self.told_pages);
        for id in &self.told_pages {
            if let Some(uar) = self.uars.get(id) {
                collect(*id, uar, &mut rung);
            }
        }
        if self.is_turn(pages, now) {
            let in_turn = self.uars.range(self.next_page..).chain(self.uars.range(..self.next_page));
            let mut last = None;
            for (&id, uar) in in_turn.take(pages) {
                collect(id, uar, &mut rung);
                last = Some(id);
            }
            self.next_page = last.map_or(0, |id| id + 1);
        }
        self.handle(&rung, now);
        if !rung.is_empty() {
            self.look_at = self.resources.dice.pause(LibertyKinds::DOORBELLS).map(|pause| now + pause);
        }
        !rung.is_empty()
    }

    /// Returns whether there are more pages than one step polls.
    pub(crate) fn has_many_pages(&self) -> bool {
        self.uars.len() > PAGES
    }

    /// Returns whether it is time to poll pages that were not announced.
    fn is_turn(&mut self, pages: usize, now: Instant) -> bool {
        let has_many = self.has_many_pages();
        let is_turn = !has_many || pages > PAGES || self.next_turn.is_none_or(|at| now >= at);
        if is_turn {
            self.next_turn = has_many.then(|| now + TURN);
        }
        is_turn
    }

    /// Handles the doorbells that have rung on pages where completion queues are armed.
    pub(crate) fn take_arms(&mut self, now: Instant) {
        let mut rung = Vec::new();
        for id in &self.arming {
            if let Some(uar) = self.uars.get(id) {
                collect(*id, uar, &mut rung);
            }
        }
        self.handle(&rung, now);
    }

    /// Handles the doorbells that have rung on all pages.
    #[cfg(test)]
    pub(crate) fn take_doorbells(&mut self, now: Instant) {
        let mut rung = Vec::new();
        self.uars.iter().for_each(|(id, uar)| collect(*id, uar, &mut rung));
        self.handle(&rung, now);
    }

    /// Handles the doorbells that have rung on the page of a queue pair.
    pub(crate) fn take_doorbells_of(&mut self, qpn: u32, now: Instant) {
        let mut rung = Vec::new();
        let page = self.qps.get(&qpn).and_then(|qp| qp.endpoint.config.uar);
        if let Some((id, uar)) = page.and_then(|id| self.uars.get_key_value(&id)) {
            collect(*id, uar, &mut rung);
        }
        self.handle(&rung, now);
    }

    fn handle(&mut self, rung: &[Rung], now: Instant) {
        for Rung { page, offset, bell } in rung {
            if *offset != doorbell::UAR_CQ_ARM {
                trace::rung(self.resources.port, *bell);
            }
            match *offset {
                doorbell::UAR_CQ_ARM => self.arm(*bell, now),
                doorbell::UAR_NO_RECORD => self.ring_without_record(*page, *bell, now),
                _ => self.ring(*page, *bell, now),
            }
        }
    }

    /// Arms a completion queue, and all others whose doorbells this one may have overwritten. They may belong to any
    /// UAR: libmlx5 rings on the page of the context.
    fn arm(&mut self, bell: Doorbell, now: Instant) {
        let (arm, rung) = CqArm::from_doorbell(bell.raw());
        let mut problem = (!self.resources.cqs.contains_key(&rung))
            .then(|| (Verdict::Refused, format!("arms completion queue {rung:#x}, which does not exist")));
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
                self.resources.held.insert((due, cqn));
            }
            if fires.0 {
                self.resources.events.push(Event::Completion { cqn });
            }
        }
        if let Some((verdict, message)) = problem {
            let diagnostic = Diagnostic { verdict, qpn: None, index: None, field: "arm doorbell", message };
            self.resources.diagnostics.report(diagnostic);
        }
    }

    /// Handles a doorbell of a page: serves every queue pair of the page up to its record.
    fn ring(&mut self, uar: u32, bell: Doorbell, now: Instant) {
        let Some(rung) = self.uars.get(&uar) else { return };
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
        if self.uars.get(&uar).is_some_and(|uar| uar.qps.contains(&qpn)) {
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
}

/// A doorbell that has rung.
struct Rung {
    page: u32,
    /// Offset of its register.
    offset: usize,
    bell: Doorbell,
}

fn collect(page: u32, uar: &Uar, rung: &mut Vec<Rung>) {
    for &register in &uar.registers {
        if let Some(raw) = uar.page.take(register) {
            rung.push(Rung { page, offset: register.offset(), bell: Doorbell::from_raw(raw) });
        }
    }
}

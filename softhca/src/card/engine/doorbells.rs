//! Doorbells of UAR pages.

use super::state::Engine;
use crate::card::diagnostic::{Diagnostic, Verdict};
use crate::card::event::Event;
use crate::liberties::LibertyKinds;
use gdsync_sys::prm::doorbell::{self, CqArm, Doorbell};
use std::time::Instant;

impl Engine {
    /// Handles every doorbell that has rung, or looks at none for a while: one look serves several.
    pub(super) fn look_at_doorbells(&mut self, now: Instant) -> bool {
        if self.look_at.is_some_and(|at| now < at) {
            return false;
        }
        let rung = self.take_doorbells(now);
        if rung {
            self.look_at = self.resources.dice.pause(LibertyKinds::DOORBELLS).map(|pause| now + pause);
        }
        rung
    }

    /// Handles every doorbell that has rung. Returns whether there were any.
    pub(crate) fn take_doorbells(&mut self, now: Instant) -> bool {
        let mut rung = Vec::new();
        for (id, uar) in &self.uars {
            for &register in &uar.registers {
                if let Some(raw) = uar.page.take(register) {
                    rung.push((*id, register.offset(), Doorbell::from_raw(raw)));
                }
            }
        }
        for (id, offset, bell) in &rung {
            match *offset {
                doorbell::UAR_CQ_ARM => self.arm(*bell, now),
                doorbell::UAR_NO_RECORD => self.ring_without_record(*id, *bell, now),
                _ => self.ring(*id, *bell, now),
            }
        }
        !rung.is_empty()
    }

    /// Arms a completion queue, and all others whose doorbells this one may have overwritten. They
    /// may belong to any UAR: libmlx5 rings on the page of the context.
    fn arm(&mut self, bell: Doorbell, now: Instant) {
        let (arm, rung) = CqArm::from_doorbell(bell.raw());
        let mut problem = (!self.resources.cqs.contains_key(&rung))
            .then(|| (Verdict::Refused, format!("arms completion queue {rung:#x}, which does not exist")));
        for (&cqn, cq) in &mut self.resources.cqs {
            let fires = if cqn == rung { cq.rung(arm) } else { cq.poll_arm_record() };
            if cqn == rung && !cq.has_record() {
                // The doorbell has all that the record should have: only where another one overwrites it,
                // the record is the sole trace of the arm.
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

    /// Handles a doorbell of a page: every queue pair of the page is served up to its record.
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

    /// Handles a doorbell of queue pairs without a record: only the one that it names is served.
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

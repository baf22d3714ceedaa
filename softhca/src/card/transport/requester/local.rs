//! Work requests without packets: changes of memory keys, and reads of local memory.

use super::state::Requester;
use crate::card::config::{Access, QpState};
use crate::card::queue::wqe::{Payload, each_piece};
use crate::card::transport::step::Step;
use gdsync_sys::prm::cqe::Syndrome;

impl Requester {
    /// Executes the request under the cursor, which has no packets, and moves past it. False if it
    /// fails, or if the queue pair can send no more.
    pub(super) fn pass_local(&mut self, step: &mut Step<'_, '_>) -> bool {
        let request = &self.requests[self.cursor];
        let Ok(work) = &request.work else { return false };
        let (pdn, qpn) = (step.endpoint.pdn, step.endpoint.qpn);
        let failure = match (&work.change, &work.payload) {
            (Some(change), _) => match step.context.regions.change(change, (pdn, qpn)) {
                Ok(()) => None,
                Err(error) => Some((Syndrome::MwBind, "mkey", error.to_string())),
            },
            // The bytes that DUMP reads go nowhere.
            (None, Payload::Segments(segments) | Payload::Mixed(_, segments)) => {
                let regions = step.context.regions;
                let read = each_piece(segments, 0, work.length, |range| {
                    regions.resolve(range, pdn, Access::empty()).map(drop)
                });
                let refused = read.err();
                refused.map(|refusal| (Syndrome::LocalProtection, "lkey", refusal.to_string()))
            }
            (None, Payload::Inline(_)) => None,
        };
        if let Some((syndrome, field, message)) = failure {
            step.report(Some(request.first as u16), field, message);
            self.fail_current(syndrome, step);
            return false;
        }
        self.requests[self.cursor].done = true;
        self.cursor += 1;
        self.complete_done(step);
        step.endpoint.state() == QpState::Rts
    }
}

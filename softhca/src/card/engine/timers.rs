//! Timers of queue pairs.

use super::peer::{examine, examine_own};
use super::state::Engine;
use crate::card::transport::requester::PeerState;
use std::time::Instant;

impl Engine {
    /// Handles the timers that have expired. Returns whether there were any.
    pub(super) fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = false;
        while let Some(qpn) = self.schedule.next_expired(now) {
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            qp.timer = None;
            let node = qp.endpoint.node(self.resources.port);
            let expired = qp.requester.is_expired(now);
            let ready = qp.take_pauses_over(now);
            let round = self.schedule.rounds();
            let peer = match expired {
                true if node == self.resources.port.node() => examine_own(round, &mut qp.requester),
                true => examine(&mut self.fabric, node, round, &mut qp.requester),
                false => PeerState::Answered,
            };
            self.with_qp(qpn, now, |qp, context| {
                if expired {
                    qp.retry(peer, context);
                }
            });
            if expired || ready {
                fired = true;
                self.activate(qpn);
            }
        }
        fired
    }
}

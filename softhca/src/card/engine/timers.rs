//! Timers of queue pairs.

use super::peer::examine;
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
            let peer = if expired && node != self.resources.port.node() {
                examine(&mut self.fabric, node, self.schedule.rounds(), &mut qp.requester)
            } else {
                PeerState::Answered
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

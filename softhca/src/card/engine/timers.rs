//! Timers of queue pairs.

use super::peer::{examine, examine_own};
use super::state::Engine;
use crate::card::transport::requester::PeerState;
use crate::faults::Direction;
use std::time::Instant;

/// Timers that one step handles. Where thousands expire at a time, the card still sends between them: a peer that is
/// waited for answers only then, and the peer may be this card.
const TIMERS: usize = 32;

impl Engine {
    /// Handles timers that have expired. Returns whether there were any that mattered, or more of them.
    pub(super) fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = false;
        for _ in 0..TIMERS {
            let Some(qpn) = self.schedule.next_expired(now) else { return fired };
            fired |= self.fire(qpn, now);
        }
        true
    }

    /// Returns whether a time-out or a pause of the queue pair is over; else its timer was set too early.
    fn fire(&mut self, qpn: u32, now: Instant) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        qp.timer = None;
        let node = qp.endpoint.node(self.resources.port);
        let expired = qp.requester.is_expired(now);
        let ready = qp.take_pauses_over(now);
        let round = self.schedule.rounds();
        let has_no_room = self.delayed.has_no_room((Direction::Out, qpn));
        let peer = match expired {
            true if node == self.resources.port.node() => Some(examine_own(round, &mut qp.requester)),
            true => Some(examine(&mut self.fabric, node, (round, now), &mut qp.requester, has_no_room)),
            false => None,
        };
        self.with_qp(qpn, now, |qp, context| {
            if let Some(peer) = peer {
                qp.retry(peer, context);
            }
        });
        // A queue pair that goes on waiting for its peer has nothing to send: in the queue of those that have, it would
        // hold up the others, and the end of the round, for which it may wait.
        if ready || matches!(peer, Some(PeerState::Answered | PeerState::Ended { .. })) {
            self.activate(qpn);
        }
        expired || ready
    }
}

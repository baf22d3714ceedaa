//! Timers of queue pairs, and which time-outs count.

use super::state::Engine;
use crate::card::transport::requester::{Examination, PeerState, Requester};
use crate::fabric::{Fabric, Node};
use std::time::Instant;

/// Rounds in which a peer's card answers what it has taken. The first may have begun before it took
/// the packet, and may have passed the queue pair already.
const ROUNDS_TO_ANSWER: u64 = 2;

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
                examine(&mut self.fabric, node, &mut qp.requester)
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

/// Examines a time-out: the peer has not answered in time, or it could not.
///
/// A process may stop at any moment: before its card takes a packet, before the card answers it, or
/// between two packets of the answer. This process may have stopped, too, before it took the
/// answer. So the peer's card must have taken the packets, and then have served all its queue pairs;
/// and this card must have taken what the peer's card had sent by then. What is still missing does
/// not come.
fn examine(fabric: &mut Fabric, node: Node, requester: &mut Requester) -> PeerState {
    if !fabric.is_alive(node) {
        return PeerState::Ended;
    }
    // Faults have dropped what was sent: no card answers it, stopped or not.
    let Some(reached_at) = requester.reached_at() else { return PeerState::Answered };
    if !fabric.has_taken(node, reached_at) {
        return PeerState::Behind;
    }
    let Some(rounds) = fabric.rounds(node) else { return PeerState::Answered };
    let until = match requester.examination {
        None => {
            requester.examination = Some(Examination::Answering { since: rounds });
            return PeerState::Answering;
        }
        Some(Examination::Answering { since }) if rounds.wrapping_sub(since) < ROUNDS_TO_ANSWER => {
            return PeerState::Answering;
        }
        Some(Examination::Answering { .. }) => fabric.arrived(node),
        Some(Examination::Arriving { until }) => until,
    };
    if fabric.has_received(node, until) {
        return PeerState::Answered;
    }
    requester.examination = Some(Examination::Arriving { until });
    PeerState::Answering
}

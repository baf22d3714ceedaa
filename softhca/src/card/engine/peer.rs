//! Checks of a time-out against the state of the peer: whether it counts, and when the end of the peer's process does.

use super::state::Engine;
use crate::card::transport::requester::{Examination, PeerState, Requester};
use crate::fabric::{Fabric, Node};
use crate::faults::Direction;
use std::time::Instant;

/// Rounds in which a peer's card answers what it has taken. The first may have begun before it took the packet, and may
/// already have passed the queue pair.
const ROUNDS_TO_ANSWER: u64 = 2;

/// Returns the state of a peer whose process has ended. The peer may have answered everything before it ended: a
/// process that was stopped meanwhile finds the answers and the end of the peer at once. The failure therefore comes
/// after these answers, and after the receives that complete with this card's acknowledgements.
pub(super) fn ended(
    fabric: &mut Fabric,
    node: Node,
    (round, now): (u64, Instant),
    requester: &mut Requester,
) -> PeerState {
    let until = fabric.arrived(node);
    match requester.examination {
        Some(Examination::Parted { since }) => return PeerState::Ended { since },
        _ if !fabric.has_received(node, until) => requester.examination = None,
        Some(Examination::Parting { since }) if round.wrapping_sub(since) >= ROUNDS_TO_ANSWER => {
            requester.examination = Some(Examination::Parted { since: now });
            return PeerState::Ended { since: now };
        }
        Some(Examination::Parting { .. }) => {}
        _ => requester.examination = Some(Examination::Parting { since: round }),
    }
    PeerState::Leaving
}

/// Checks a time-out: the peer has not answered in time, or could not.
///
/// A process may stop at any moment: before its card takes a packet, before the card answers it, or between two packets
/// of the answer. This process may have stopped, too, before it took the answer. So the peer's card must have taken the
/// packets and then served all its queue pairs, and this card must have taken what the peer's card had sent by then. An
/// answer that is still missing does not come.
///
/// `has_no_room`: packets of the queue pair that faults have delayed wait for room in the fabric.
pub(super) fn examine(
    fabric: &mut Fabric,
    node: Node,
    (round, now): (u64, Instant),
    requester: &mut Requester,
    has_no_room: bool,
) -> PeerState {
    // The result for an ended peer stays: after a while the fabric tries again whether there is a card.
    let has_ended =
        matches!(requester.examination, Some(Examination::Parting { .. } | Examination::Parted { .. }));
    if has_ended || !fabric.is_alive(node) {
        return ended(fabric, node, (round, now), requester);
    }
    let Some(reached_at) = requester.reached_at() else {
        // Either faults have dropped what was sent, so that no card answers it, or it waits behind packets that the
        // peer has not taken.
        let has_left = requester.has_sent_oldest() && !has_no_room;
        return if has_left { PeerState::Answered } else { PeerState::Behind };
    };
    if !fabric.has_taken(node, reached_at) {
        return PeerState::Behind;
    }
    let Some(rounds) = fabric.rounds(node) else { return PeerState::Answered };
    let until = if let Some(Examination::Arriving { until }) = requester.examination {
        until
    } else if has_answered(rounds, requester) {
        fabric.arrived(node)
    } else {
        return PeerState::Answering;
    };
    if fabric.has_received(node, until) {
        return PeerState::Answered;
    }
    requester.examination = Some(Examination::Arriving { until });
    PeerState::Answering
}

/// Checks a time-out of two queue pairs of this card: its thread may have stopped before it served the other one, or
/// before it released an answer that it holds back.
pub(super) fn examine_own(round: u64, requester: &mut Requester) -> PeerState {
    if has_answered(round, requester) { PeerState::Answered } else { PeerState::Answering }
}

/// Returns whether a card that has taken the packets has served all its queue pairs since the check began. `rounds` is
/// the number of rounds that it has finished.
fn has_answered(rounds: u64, requester: &mut Requester) -> bool {
    if let Some(Examination::Answering { since }) = requester.examination {
        return rounds.wrapping_sub(since) >= ROUNDS_TO_ANSWER;
    }
    requester.examination = Some(Examination::Answering { since: rounds });
    false
}

/// Maximum number of timers that one step handles. If thousands expire at once, the card still has to send in between:
/// a peer answers only then, and that peer may be this card.
const TIMERS: usize = 32;

impl Engine {
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
        let ready = qp.take_pauses_over(now);
        let round = self.schedule.rounds;
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
        // A queue pair that keeps waiting for its peer has nothing to send: in the active list it would delay the
        // others, and the end of the round that it may wait for.
        if ready || matches!(peer, Some(PeerState::Answered | PeerState::Ended { .. })) {
            self.activate(qpn);
        }
        expired || ready
    }
}

//! Checks of a time-out against the state of the peer: whether it counts, and when the end of the peer's process does.

use crate::card::config::StoppedPeers;
use crate::card::transport::requester::{PeerState, Requester, TimeoutCheck};
use crate::fabric::{Fabric, Node};
use std::time::Instant;

/// Rounds in which a peer's card answers what it has taken. The first may have begun before it took the packet, and may
/// already have passed the queue pair.
const ROUNDS_TO_ANSWER: u64 = 2;

/// Returns the state of a peer whose process has ended. The peer may have answered everything before it ended: a
/// process that was stopped meanwhile finds the answers and the end of the peer at once. The failure therefore comes
/// after these answers, and after the receives that complete with this card's acknowledgements.
pub(super) fn state_of_ended(
    fabric: &mut Fabric,
    node: Node,
    (round, now): (u64, Instant),
    requester: &mut Requester,
) -> PeerState {
    let until = fabric.arrived(node);
    match requester.timeout_check {
        Some(TimeoutCheck::Program { since }) => return PeerState::Ended { since },
        _ if !fabric.has_received(node, until) => requester.timeout_check = None,
        Some(TimeoutCheck::OwnRounds { since }) if round.wrapping_sub(since) >= ROUNDS_TO_ANSWER => {
            requester.timeout_check = Some(TimeoutCheck::Program { since: now });
            return PeerState::Ended { since: now };
        }
        Some(TimeoutCheck::OwnRounds { .. }) => {}
        _ => requester.timeout_check = Some(TimeoutCheck::OwnRounds { since: round }),
    }
    PeerState::Ending
}

/// Checks a time-out: the peer has not answered in time, or could not.
///
/// A process may stop at any moment: before its card takes a packet, before the card answers it, or between two packets
/// of the answer. This process may have stopped, too, before it took the answer. So the peer's card must have taken the
/// packets and then served all its queue pairs, and this card must have taken what the peer's card had sent by then. An
/// answer that is still missing does not come.
///
/// With [`StoppedPeers::Expire`] neither is waited for while a signal has stopped the peer's process.
///
/// `has_no_room`: packets of the queue pair that faults have delayed wait for room in the fabric.
pub(super) fn check_timeout(
    fabric: &mut Fabric,
    node: Node,
    (round, now): (u64, Instant),
    requester: &mut Requester,
    has_no_room: bool,
    stopped_peers: StoppedPeers,
) -> PeerState {
    // The result for an ended peer stays: after a while the fabric tries again whether there is a card.
    let has_ended = matches!(
        requester.timeout_check,
        Some(TimeoutCheck::OwnRounds { .. } | TimeoutCheck::Program { .. })
    );
    if has_ended || !fabric.is_alive(node) {
        return state_of_ended(fabric, node, (round, now), requester);
    }
    let is_stopped = stopped_peers == StoppedPeers::Expire && fabric.is_stopped(node);
    match requester.reached_at() {
        _ if is_stopped => {}
        // Faults have dropped what was sent, so that no card answers it.
        None if requester.has_sent_oldest() && !has_no_room => return PeerState::Silent,
        // It waits behind packets that the peer has not taken.
        None => return PeerState::Busy,
        Some(reached_at) if !fabric.has_taken(node, reached_at) => return PeerState::Busy,
        Some(_) => {}
    }
    let Some(rounds) = fabric.rounds(node) else { return PeerState::Silent };
    let until = if let Some(TimeoutCheck::Arrival { until }) = requester.timeout_check {
        until
    } else if is_stopped || has_responded(rounds, requester) {
        fabric.arrived(node)
    } else {
        return PeerState::Responding;
    };
    if fabric.has_received(node, until) {
        return PeerState::Silent;
    }
    requester.timeout_check = Some(TimeoutCheck::Arrival { until });
    PeerState::Responding
}

/// Checks a time-out of two queue pairs of this card: its thread may have stopped before it served the other one, or
/// before it released an answer that it holds back.
pub(super) fn check_own_timeout(round: u64, requester: &mut Requester) -> PeerState {
    if has_responded(round, requester) { PeerState::Silent } else { PeerState::Responding }
}

/// Returns whether a card that has taken the packets has served all its queue pairs since the check began. `rounds` is
/// the number of rounds that it has finished.
fn has_responded(rounds: u64, requester: &mut Requester) -> bool {
    if let Some(TimeoutCheck::PeerRounds { since }) = requester.timeout_check {
        return rounds.wrapping_sub(since) >= ROUNDS_TO_ANSWER;
    }
    requester.timeout_check = Some(TimeoutCheck::PeerRounds { since: rounds });
    false
}

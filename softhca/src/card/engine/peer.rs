//! What is known of a peer that does not answer: which time-outs count, and when its end does.

use crate::card::transport::requester::{Examination, PeerState, Requester};
use crate::fabric::{Fabric, Node};
use std::time::Instant;

/// Rounds in which a peer's card answers what it has taken. The first may have begun before it took
/// the packet, and may have passed the queue pair already.
const ROUNDS_TO_ANSWER: u64 = 2;

/// The state of a peer whose process has ended, in a round of this card. The peer may have answered everything
/// before: a process that was not running meanwhile finds the answers and the end of the peer at once. The
/// failure follows them, and the receives that complete with the acknowledgements of this card.
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

/// Examines a time-out: the peer has not answered in time, or it could not.
///
/// A process may stop at any moment: before its card takes a packet, before the card answers it, or
/// between two packets of the answer. This process may have stopped, too, before it took the
/// answer. So the peer's card must have taken the packets, and then have served all its queue pairs;
/// and this card must have taken what the peer's card had sent by then. What is still missing does
/// not come.
///
/// `has_no_room`: packets of the queue pair, to which faults have been applied, wait for room in the fabric.
pub(super) fn examine(
    fabric: &mut Fabric,
    node: Node,
    (round, now): (u64, Instant),
    requester: &mut Requester,
    has_no_room: bool,
) -> PeerState {
    if !fabric.is_alive(node) {
        return ended(fabric, node, (round, now), requester);
    }
    let Some(reached_at) = requester.reached_at() else {
        // Faults have dropped what was sent, and no card answers it, stopped or not; or it waits behind what the
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

/// The same where both queue pairs are of this card, in a round of it: its thread may have stopped before it
/// served the other one, or released an answer that it keeps back.
pub(super) fn examine_own(round: u64, requester: &mut Requester) -> PeerState {
    if has_answered(round, requester) { PeerState::Answered } else { PeerState::Answering }
}

/// Whether a card, which has taken the packets, has served all its queue pairs since the examination began.
/// `rounds` is how many of its rounds have ended.
fn has_answered(rounds: u64, requester: &mut Requester) -> bool {
    if let Some(Examination::Answering { since }) = requester.examination {
        return rounds.wrapping_sub(since) >= ROUNDS_TO_ANSWER;
    }
    requester.examination = Some(Examination::Answering { since: rounds });
    false
}

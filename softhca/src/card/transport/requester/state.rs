//! The state of a requester: its fetched work requests, its timers, and its status.

use super::owned::Owned;
use super::wait::{Pending, Waits};
use crate::card::config::{QpAttributes, QpConfig, StoppedPeers};
use crate::card::memory::clock::Clock;
use crate::card::queue::send::SendQueue;
use crate::card::queue::wqe;
use crate::card::transport::endpoint::Step;
use crate::fabric::Node;
use crate::liberties::LibertyKinds;
use crate::os::watch::Watched;
use crate::packet::{PSN_MASK, psn_distance};
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::wqe::Opcode;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) queue: SendQueue,
    /// Work requests that are fetched and not completed.
    pub(super) requests: VecDeque<Request>,
    pub(super) cursor: usize,
    pub(crate) next_psn: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// When unacknowledged packets are sent again.
    pub(super) deadline: Option<Instant>,
    /// End of the pause that the peer asked for.
    pub(super) rnr_until: Option<Instant>,
    /// True if the peer had no receive for the oldest request, and has not accepted it since.
    pub(super) is_refused: bool,
    /// Time before which no work request is fetched, and no packet leaves.
    pub(super) paused_until: Option<Instant>,
    /// Number of the next work request, as decisions name it.
    pub(super) next_number: u32,
    /// The last fetch of a work request that was decided about, and the last packet of one.
    pub(super) decided: (Option<u32>, Option<(u32, u32)>),
    /// The next work request as it was before a pause, by the index of its first block.
    pub(super) ahead: Option<(u32, Box<Owned>)>,
    /// The last packet to the peer that the fabric has taken: its PSN, and its end position.
    pub(super) reached: Option<(u32, u64)>,
    /// Progress of the check of the current time-out.
    pub(crate) timeout_check: Option<TimeoutCheck>,
    /// True if the oldest unanswered packet has found no room, so that the timer starts when it leaves.
    pub(super) waits_for_room: bool,
    /// How often its failure has waited for the program ([`Requester::retry`]).
    pub(super) program_checks: u32,
    /// True if an answer was found missing and has not come since.
    pub(super) answer_is_lost: bool,
    pub(crate) resends: u64,
    pub(super) waits: Waits,
    pub(super) target: Option<DcTarget>,
    /// Number of its last DC connection.
    pub(super) connection: u64,
}

/// A DC target, as a work request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DcTarget {
    pub(super) node: Node,
    pub(super) number: u32,
    pub(super) key: u64,
}

/// The condition that the check of a time-out waits for, before the time-out counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeoutCheck {
    /// The peer's card has taken the packets, and must serve its queue pairs. `since`: its round when the check began.
    PeerRounds { since: u64 },
    /// This card must take the packets of the peer's card up to this position.
    Arrival { until: u64 },
    /// The peer's process has ended, and this card has taken everything that it sent. This card must serve all its
    /// queue pairs. `since`: its round then.
    OwnRounds { since: u64 },
    /// That is done at `since`, and the program must see the consequences.
    Program { since: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// Its process has ended, and everything that it had sent was handled by `since`.
    Ended { since: Instant },
    /// Its process has ended, and this card has not handled everything yet that it sent before.
    Ending,
    /// Its process lives, and has not taken what was sent to it: it is busy or stopped.
    Busy,
    /// Its process lives and has taken what was sent to it. It may not have been able to answer yet, or its answer may
    /// not have been taken.
    Responding,
    /// No further answers come from it, or the fabric does not know.
    Silent,
}

impl Requester {
    /// `connection` is the number of the DC connection before its first. It increases over time: a target may still know
    /// connections of an earlier process's initiator with the same QPN, and these must compare as older.
    ///
    /// # Safety
    /// As [`SendQueue::new`].
    pub(crate) unsafe fn new(config: &QpConfig, connection: u64) -> Self {
        Requester {
            // SAFETY: the caller guarantees this.
            queue: unsafe { SendQueue::new(config) },
            requests: VecDeque::new(),
            cursor: 0,
            next_psn: 0,
            retries_left: 0,
            rnr_left: 0,
            deadline: None,
            rnr_until: None,
            is_refused: false,
            paused_until: None,
            next_number: 0,
            decided: (None, None),
            ahead: None,
            reached: None,
            timeout_check: None,
            waits_for_room: false,
            program_checks: 0,
            answer_is_lost: false,
            resends: 0,
            waits: Waits::default(),
            target: None,
            connection,
        }
    }

    /// Restarts with an empty queue, at a packet sequence number.
    pub(crate) fn restart(&mut self, psn: u32, attributes: &QpAttributes) {
        self.queue.reset();
        self.requests.clear();
        self.cursor = 0;
        self.next_psn = psn;
        self.set_timer(None);
        (self.rnr_until, self.reached, self.paused_until) = (None, None, None);
        (self.answer_is_lost, self.is_refused, self.waits_for_room) = (false, false, false);
        self.waits = Waits::default();
        (self.target, self.ahead) = (None, None);
        self.refill_retries(attributes);
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        [self.rnr_until.or(self.deadline), self.paused_until].into_iter().flatten().min()
    }

    /// Returns whether packets have to be sent again now.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Returns whether the pause that the peer asked for has ended. Ends it.
    pub(crate) fn end_rnr_pause(&mut self, now: Instant) -> bool {
        self.rnr_until.take_if(|until| *until <= now).is_some()
    }

    /// Returns whether a pause of its own has ended. Ends it.
    pub(crate) fn end_pause(&mut self, now: Instant) -> bool {
        self.paused_until.take_if(|at| *at <= now).is_some()
    }

    /// Takes a liberty before a packet of the request under the cursor leaves. Returns whether it may leave now.
    pub(super) fn may_transmit(&mut self, step: &mut Step<'_, '_>) -> bool {
        let Some(request) = self.requests.get(self.cursor).filter(|_| step.context.decisions.is_on()) else {
            return true;
        };
        let packet = (request.number, request.sent);
        if request.sent == 0 || self.decided.1 == Some(packet) {
            return true;
        }
        self.decided.1 = Some(packet);
        let work = step.endpoint.work.of_request(packet.0, packet.1);
        match step.context.decisions.pause(LibertyKinds::TRANSMIT, work) {
            Some(pause) => self.pause(pause, step),
            None => true,
        }
    }

    pub(super) fn pause(&mut self, time: Duration, step: &Step<'_, '_>) -> bool {
        self.paused_until = Some(step.context.now + time);
        false
    }

    /// Records that the fabric has taken packet `psn`, which ends at `position`.
    pub(crate) fn reached(&mut self, psn: u32, position: u64) {
        self.reached = Some((psn, position));
    }

    /// Returns the end position of the last packet that the fabric has taken, if the peer has not answered all packets
    /// up to it.
    pub(crate) fn reached_at(&self) -> Option<u64> {
        let oldest = self.oldest()?;
        // A read is one packet, however much of its result has arrived.
        let answered = if oldest.awaits_result() { 0 } else { oldest.acked };
        let psn = oldest.first_psn.wrapping_add(answered) & PSN_MASK;
        self.reached.filter(|(reached, _)| psn_distance(*reached, psn) >= 0).map(|(_, position)| position)
    }

    /// Returns the number of the request that a packet is of, and the packet's number there.
    pub(crate) fn name_of(&self, psn: u32) -> Option<(u32, u32)> {
        let request = self.requests.iter().find(|request| request.contains(psn))?;
        Some((request.number, psn_distance(psn, request.first_psn) as u32))
    }

    fn oldest(&self) -> Option<&Request> {
        self.requests.iter().find(|request| !request.done && request.packets > 0)
    }

    /// Returns whether the oldest unanswered packet was sent, and is not only about to be sent again.
    pub(crate) fn has_sent_oldest(&self) -> bool {
        self.oldest().is_none_or(|request| request.sent > request.acked)
    }

    /// Sets or stops the retransmission timer, and resets the check of a time-out.
    pub(super) fn set_timer(&mut self, deadline: Option<Instant>) {
        (self.deadline, self.timeout_check, self.program_checks) = (deadline, None, 0);
    }

    /// Notes that a packet has not left. If it is the oldest unanswered one, no time before it leaves counts; but where a
    /// stopped peer is not waited for, the timer starts, as it may be the peer that makes no room.
    pub(crate) fn found_no_room(&mut self, step: &Step<'_, '_>) {
        self.waits_for_room |= !self.has_sent_oldest();
        let expires = step.context.stopped_peers == StoppedPeers::Expire;
        if expires && step.endpoint.config.transport.is_reliable() && self.deadline.is_none() {
            self.set_timer(step.ack_timeout().map(|timeout| step.context.now + timeout));
        }
    }

    fn refill_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_cnt;
        self.rnr_left = attributes.rnr_retry;
    }

    /// Restarts the retransmission timer; stops it if no packet is unacknowledged.
    pub(super) fn arm(&mut self, step: &Step<'_, '_>) {
        let outstanding = self.requests.iter().any(|request| request.sent > request.acked && !request.done);
        let timeout = step.ack_timeout().filter(|_| outstanding);
        self.set_timer(timeout.map(|timeout| step.context.now + timeout));
    }

    /// Resets the retry counters and the timer after an acknowledgement has advanced.
    pub(super) fn progressed(&mut self, step: &Step<'_, '_>) {
        self.refill_retries(&step.endpoint.attributes);
        self.is_refused = false;
        self.arm(step);
    }

    /// Moves back to the request of a packet, if any: neither the packet nor later ones have left.
    pub(crate) fn return_to(&mut self, psn: u32) {
        let Some(position) = self.requests.iter().position(|request| request.contains(psn)) else { return };
        self.cursor = position;
        let first = self.requests[position].first_psn;
        self.requests[position].sent = psn_distance(psn, first) as u32;
        self.requests.iter_mut().skip(position + 1).for_each(|request| request.sent = 0);
        self.requests.iter_mut().skip(position).for_each(|request| request.left = request.sent);
    }

    /// Moves back to the oldest unacknowledged packet, to send it again.
    pub(super) fn rewind(&mut self) {
        self.resends += 1;
        self.reached = None;
        let oldest = self.requests.iter().position(|request| !request.done);
        self.cursor = oldest.unwrap_or(self.requests.len());
        for request in self.requests.iter_mut().skip(self.cursor) {
            request.sent = if request.done { request.packets } else { request.acked };
        }
    }

    /// Returns the number of work requests that were read and are not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.iter().filter(|request| !request.done).count()
    }

    #[inline]
    pub(crate) fn has_unmet_wait(&self) -> bool {
        self.waits.unmet
    }

    /// Polls the WAIT under the cursor. Returns whether the requester may go on, possibly with an error.
    pub(crate) fn poll_wait(&mut self, step: &mut Step<'_, '_>) -> bool {
        let next = self
            .requests
            .get(self.cursor)
            .and_then(|request| Some((request.work.as_ref().ok()?.wait?, request.first)));
        self.waits.unmet = match next {
            Some((wait, block)) if self.waits.unmet => {
                matches!(self.waits.poll(wait, block, step), Ok(false))
            }
            _ => false,
        };
        !self.waits.unmet
    }

    /// Returns what it waits for now, if anything: a WAIT first, as it blocks everything after it.
    pub(crate) fn pending(&self, clock: &Clock) -> Option<Pending> {
        self.unmet_wait(clock).or_else(|| self.answer())
    }

    fn unmet_wait(&self, clock: &Clock) -> Option<Pending> {
        let request = self.requests.get(self.cursor).filter(|_| self.waits.unmet)?;
        self.waits.pending(request.work.as_ref().ok()?.wait?, request.first, clock)
    }

    fn answer(&self) -> Option<Pending> {
        let oldest = self.oldest()?;
        let what = if self.is_refused {
            "a receive of the peer (RNR)"
        } else if oldest.sent <= oldest.acked && !oldest.awaits_result() || oldest.sent == 0 {
            return None;
        } else if oldest.awaits_result() {
            "the result of a read or an atomic"
        } else {
            "an acknowledgement"
        };
        let psn = oldest.first_psn.wrapping_add(oldest.acked) & PSN_MASK;
        Some(Pending { what: what.to_owned(), mark: psn.into(), time: None, cqn: None })
    }
}

#[derive(Debug)]
pub(super) struct Request {
    /// Its number among those of the queue pair, as decisions name it.
    pub(super) number: u32,
    /// Index of its first basic block, not reduced modulo the ring's size.
    pub(super) first: u32,
    pub(super) blocks: u32,
    pub(super) opcode_byte: u8,
    pub(super) signaled: bool,
    pub(super) fenced: bool,
    pub(super) solicited: bool,
    pub(super) imm: [u8; 4],
    pub(super) work: Result<wqe::Work, Syndrome>,
    pub(super) first_psn: u32,
    pub(super) packets: u32,
    /// Number of packets sent in this round; reset when some are sent again.
    pub(super) sent: u32,
    /// Number of packets that have left in any round: the peer may acknowledge them.
    pub(super) left: u32,
    /// Packets acknowledged, or responses received.
    pub(super) acked: u32,
    pub(super) done: bool,
    /// The result, if it goes into the completion entry instead of memory, and the stride of the completion queue.
    pub(super) result: Option<(Vec<u8>, u32)>,
    /// Its memory, which belongs to the card until it completes, if that is checked.
    pub(super) owned: Option<Box<Owned>>,
    /// The memory of its result.
    pub(super) watched: Vec<Watched>,
}

impl Request {
    /// Returns whether it is a read or an atomic, which its result completes instead of an acknowledgement.
    pub(super) fn awaits_result(&self) -> bool {
        matches!(&self.work, Ok(work) if work.opcode == Opcode::RdmaRead || work.operands.is_some())
    }

    pub(super) fn contains(&self, psn: u32) -> bool {
        let distance = psn_distance(psn, self.first_psn);
        distance >= 0 && (distance as u32) < self.packets
    }

    pub(super) fn length(&self) -> u32 {
        self.work.as_ref().map_or(0, |work| work.length)
    }

    pub(super) fn end(&self) -> u32 {
        self.first.wrapping_add(self.blocks)
    }
}

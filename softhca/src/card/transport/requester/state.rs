//! The state of a requester, and its timers.

use super::request::Request;
use crate::card::config::{QpAttributes, QpConfig, ack_timeout};
use crate::card::queue::send::SendQueue;
use std::collections::VecDeque;
use std::time::Instant;

/// The state of the requester.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) queue: SendQueue,
    pub(super) signal_all: bool,
    /// Work requests that are fetched and not completed.
    pub(super) requests: VecDeque<Request>,
    /// Index of the request that is being sent.
    pub(super) cursor: usize,
    pub(super) next_psn: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_left: u8,
    /// When unacknowledged packets are sent again.
    pub(super) deadline: Option<Instant>,
    /// End of the pause that the peer asked for.
    pub(super) rnr_until: Option<Instant>,
    /// Where its last packet ends on the fabric's way to the peer.
    pub(crate) left_at: u64,
    /// The peer had not taken that packet when the timer expired last.
    pub(super) was_behind: bool,
    pub(super) waits: Waits,
}

/// What a requester knows of its work requests that wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The next request is a WAIT that was not met when the card looked last.
    pub(super) held: bool,
    /// Before this, a word in peer memory is not looked at again.
    pub(super) look_at: Option<Instant>,
    /// The word that was looked at last, by key and address, and its number then.
    pub(super) word: Option<((u32, u64), u64)>,
    /// The completion queue that was waited for last, and the index.
    pub(super) entry: Option<(u32, u32)>,
    /// The WAIT at this block was found to be hopeless, and that is reported.
    pub(super) hopeless: Option<u32>,
}

/// What the fabric knows of a peer when the retransmission timer expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// Its process has ended.
    Ended,
    /// Its process lives, and has not taken what was sent to it: it is busy or stopped.
    Behind,
    /// It has taken everything, or the fabric does not know.
    Current,
}

impl Requester {
    /// # Safety
    /// As [`SendQueue::new`].
    pub(crate) unsafe fn new(config: &QpConfig) -> Self {
        Requester {
            // SAFETY: the caller's.
            queue: unsafe { SendQueue::new(config) },
            signal_all: config.signal_all,
            requests: VecDeque::new(),
            cursor: 0,
            next_psn: 0,
            retries_left: 0,
            rnr_left: 0,
            deadline: None,
            rnr_until: None,
            left_at: 0,
            was_behind: false,
            waits: Waits::default(),
        }
    }

    /// Starts anew: with an empty queue, at a packet sequence number.
    pub(crate) fn restart(&mut self, psn: u32, attributes: &QpAttributes) {
        self.queue.reset();
        self.requests.clear();
        self.cursor = 0;
        self.next_psn = psn;
        (self.deadline, self.rnr_until) = (None, None);
        (self.left_at, self.was_behind) = (0, false);
        self.waits = Waits::default();
        self.refill_retries(attributes);
    }

    pub(crate) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    /// When its timer expires.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.rnr_until.or(self.deadline)
    }

    /// Whether packets are to be sent again now.
    pub(crate) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether the pause that the peer asked for has ended. Ends it.
    pub(crate) fn take_rnr_over(&mut self, now: Instant) -> bool {
        self.rnr_until.take_if(|until| *until <= now).is_some()
    }

    fn refill_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_cnt;
        self.rnr_left = attributes.rnr_retry;
    }

    /// Restarts the retransmission timer; stops it if no packet is unacknowledged.
    pub(super) fn arm(&mut self, attributes: &QpAttributes, now: Instant) {
        let outstanding = self.requests.iter().any(|request| request.sent > request.acked && !request.done);
        let timeout = ack_timeout(attributes.timeout).filter(|_| outstanding);
        self.deadline = timeout.map(|timeout| now + timeout);
    }

    /// An acknowledgement has advanced: the retry counters and the timer start again.
    pub(super) fn progressed(&mut self, attributes: &QpAttributes, now: Instant) {
        self.refill_retries(attributes);
        self.was_behind = false;
        self.arm(attributes, now);
    }

    /// Moves back to the oldest packet that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        let oldest = self.requests.iter().position(|request| !request.done);
        self.cursor = oldest.unwrap_or(self.requests.len());
        for request in self.requests.iter_mut().skip(self.cursor) {
            request.sent = if request.done { request.packets } else { request.acked };
        }
    }
}

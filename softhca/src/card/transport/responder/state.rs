//! The state of a responder: answers to send and results kept for duplicates; and the ways in which a request fails.

use crate::card::config::{LIMITS, QpConfig};
use crate::card::context::SharedQueueBroken;
use crate::card::memory::ring::Entry;
use crate::card::queue::receive::{Receive, ReceiveOwner, ReceiveQueue, Slot};
use crate::card::reports::Event;
use crate::card::transport::endpoint::Step;
use crate::packet::NakCode;
use gdsync_sys::prm::cqe::Syndrome;
use std::collections::VecDeque;
use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) queue: ReceiveQueue,
    /// The PSN that is expected next.
    pub(crate) expected_psn: u32,
    pub(super) nak_sent: bool,
    /// Number of packets that arrived since the last acknowledgement.
    pub(super) unacknowledged: u32,
    pub(super) responses: VecDeque<Response>,
    pub(super) results: Results,
    /// True if the rest of a message of an unreliable connection is dropped.
    pub(super) dropping: bool,
    pub(super) held: Hold,
}

/// Times of answers that are held back.
#[derive(Debug, Default)]
pub(super) struct Hold {
    pub(super) until: Option<Instant>,
    /// When the first of them was held back.
    pub(super) since: Option<Instant>,
}

/// The reason why a request is not executed.
pub(super) enum Stop {
    /// It is refused, and the queue pair keeps its state.
    Nak(NakCode),
    /// It is refused, and the queue pair fails.
    Fatal(NakCode, Failure),
}

/// How a failed responder reports its failure.
pub(super) enum Failure {
    /// By the completion of this receive.
    Completion(Slot, Syndrome),
    Event(Event),
}

impl Stop {
    /// Returns a request that violates the transport's rules.
    pub(super) fn invalid_request(step: &Step<'_, '_>) -> Self {
        let event = Event::QpRequestError { qpn: step.endpoint.qpn };
        Stop::Fatal(NakCode::InvalidRequest, Failure::Event(event))
    }

    /// Returns a request that may not access the memory that it names.
    pub(super) fn no_access(step: &Step<'_, '_>) -> Self {
        let event = Event::QpAccessError { qpn: step.endpoint.qpn };
        Stop::Fatal(NakCode::RemoteAccess, Failure::Event(event))
    }
}

impl Responder {
    /// # Safety
    /// As [`ReceiveQueue::new`].
    pub(crate) unsafe fn new(config: &QpConfig) -> Self {
        Responder {
            // SAFETY: the caller guarantees this.
            queue: unsafe { ReceiveQueue::new(config) },
            expected_psn: 0,
            nak_sent: false,
            unacknowledged: 0,
            responses: VecDeque::new(),
            results: Results::default(),
            dropping: false,
            held: Hold::default(),
        }
    }

    /// Restarts with an empty queue, at a packet sequence number.
    pub(crate) fn restart(&mut self, psn: u32) {
        self.queue.reset();
        self.expected_psn = psn;
        (self.nak_sent, self.unacknowledged, self.dropping) = (false, 0, false);
        self.responses.clear();
        self.results = Results::default();
        self.held = Hold::default();
    }

    /// Returns whether a message finds a receive.
    pub(super) fn has_receive(&mut self, step: &mut Step<'_, '_>) -> bool {
        self.queue.current.is_some()
            || match step.endpoint.srq {
                Some(srqn) => step.context.has_shared(srqn),
                None => self.queue.has_posted(),
            }
    }

    /// Takes a receive, from the shared queue if the queue pair uses one.
    pub(super) fn take_receive(&mut self, step: &mut Step<'_, '_>) -> Result<Option<Receive>, Stop> {
        if let Some(left) = self.queue.take_aborted() {
            return Ok(Some(left));
        }
        let Some(srqn) = step.endpoint.srq else { return Ok(self.queue.take_posted()) };
        let qpn = step.endpoint.qpn;
        let taken = step.context.take_shared(srqn, qpn, self.queue.owner);
        taken.map_err(|SharedQueueBroken| {
            Stop::Fatal(NakCode::RemoteOperation, Failure::Event(Event::QpFatal { qpn }))
        })
    }

    /// Refuses a read or an atomic beyond `max_dest_rd_atomic`.
    pub(super) fn check_responses_in_flight(&self, step: &mut Step<'_, '_>) -> Result<(), Stop> {
        let in_flight = self.responses.iter().filter(|response| response.is_counted()).count();
        if in_flight < usize::from(step.endpoint.attributes.max_dest_rd_atomic) {
            return Ok(());
        }
        let message = format!("{in_flight} reads and atomics are in flight, which is the limit");
        step.report(None, "max_dest_rd_atomic", message);
        Err(Stop::invalid_request(step))
    }
}

#[derive(Debug)]
pub(super) enum Response {
    /// Acknowledges everything up to this packet. The completion of a receive becomes visible when the acknowledgement
    /// has left: a peer that exits after that completion must not leave the requester without its acknowledgement.
    Ack {
        psn: u32,
        completion: Option<(ReceiveOwner, Entry)>,
    },
    Nak {
        psn: u32,
        code: NakCode,
    },
    /// Data of an RDMA read, of which `sent` packets have left.
    Read {
        psn: u32,
        pdn: u32,
        addr: u64,
        rkey: u32,
        length: u32,
        sent: u32,
        /// True if the request is a duplicate.
        again: bool,
    },
    Atomic {
        psn: u32,
        original: Original,
        /// True if the request is a duplicate.
        again: bool,
    },
}

impl Response {
    /// Returns whether it counts against `max_dest_rd_atomic`. Answers to duplicates do not: a requester that repeats
    /// its requests has no more of them in flight.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
    }
}

/// The original value that an atomic operation returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Original {
    pub(super) value: u64,
    /// Bytes that the operation changed.
    pub(super) bytes: u32,
}

/// Results of the last atomic operations, by PSN. A duplicate request is answered from them and not executed again.
#[derive(Debug, Default)]
pub(super) struct Results {
    kept: VecDeque<(u32, Original)>,
}

impl Results {
    /// Keeps a result, up to as many as a requester may have in flight.
    pub(super) fn remember(&mut self, psn: u32, original: Original) {
        if self.kept.len() >= usize::from(LIMITS.max_rd_atomic) {
            self.kept.pop_front();
        }
        self.kept.push_back((psn, original));
    }

    /// Returns the newest result with that PSN; PSNs repeat after 2^24 packets.
    pub(super) fn find(&self, psn: u32) -> Option<Original> {
        self.kept.iter().rev().find(|(known, _)| *known == psn).map(|(_, original)| *original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_results_are_kept() {
        let mut results = Results::default();
        let of = |value| Original { value, bytes: 8 };
        (0..20u32).for_each(|psn| results.remember(psn, of(u64::from(psn) + 100)));
        let found = (results.find(3), results.find(4), results.find(19));
        assert_eq!(found, (None, Some(of(104)), Some(of(119))));
        results.remember(5, of(7));
        assert_eq!(results.find(5), Some(of(7)), "the newest of that number");
    }
}

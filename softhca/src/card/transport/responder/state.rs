//! The state of a responder, and how handling a request can fail.

use super::response::{Response, Results};
use crate::card::config::QpConfig;
use crate::card::context::SharedQueueBroken;
use crate::card::event::Event;
use crate::card::queue::receive::{Receive, ReceiveQueue, Slot};
use crate::card::transport::step::Step;
use crate::packet::NakCode;
use gdsync_sys::prm::cqe::Syndrome;
use std::collections::VecDeque;

/// The state of the responder.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) queue: ReceiveQueue,
    /// The packet that is expected next.
    pub(super) expected_psn: u32,
    pub(super) nak_sent: bool,
    /// Packets that arrived since the last acknowledgement.
    pub(super) unacknowledged: u32,
    pub(super) responses: VecDeque<Response>,
    pub(super) results: Results,
    /// The rest of a message of an unreliable connection is dropped.
    pub(super) dropping: bool,
}

/// Why a request is not executed.
pub(super) enum Stop {
    /// It is refused, and the queue pair stays in its state.
    Nak(NakCode),
    /// It is refused, and the queue pair fails.
    Fatal(NakCode, Failure),
}

/// How a responder reports that it failed.
pub(super) enum Failure {
    /// By a completion of this receive.
    Completion(Slot, Syndrome),
    Event(Event),
}

impl Stop {
    /// A request that violates the transport's rules.
    pub(super) fn invalid_request(step: &Step<'_, '_>) -> Self {
        let event = Event::QpRequestError { qpn: step.endpoint.qpn };
        Stop::Fatal(NakCode::InvalidRequest, Failure::Event(event))
    }

    /// A request that may not access the memory that it names.
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
            // SAFETY: the caller's.
            queue: unsafe { ReceiveQueue::new(config) },
            expected_psn: 0,
            nak_sent: false,
            unacknowledged: 0,
            responses: VecDeque::new(),
            results: Results::default(),
            dropping: false,
        }
    }

    /// Starts anew: with an empty queue, at a packet sequence number.
    pub(crate) fn restart(&mut self, psn: u32) {
        self.queue.reset();
        self.expected_psn = psn;
        (self.nak_sent, self.unacknowledged, self.dropping) = (false, 0, false);
        self.responses.clear();
        self.results = Results::default();
    }

    /// Whether a message finds a receive.
    pub(super) fn has_receive(&mut self, step: &mut Step<'_, '_>) -> bool {
        self.queue.current.is_some()
            || match step.endpoint.srq {
                Some(srqn) => step.context.has_shared(srqn),
                None => self.queue.has_posted(),
            }
    }

    /// Takes a receive, of the shared queue if the queue pair uses one.
    pub(super) fn take_receive(&mut self, step: &mut Step<'_, '_>) -> Result<Option<Receive>, Stop> {
        if let Some(left) = self.queue.take_left() {
            return Ok(Some(left));
        }
        let Some(srqn) = step.endpoint.srq else { return Ok(self.queue.take_posted()) };
        let qpn = step.endpoint.qpn;
        let taken = step.context.take_shared(srqn, qpn, self.queue.home());
        taken.map_err(|SharedQueueBroken| {
            Stop::Fatal(NakCode::RemoteOperation, Failure::Event(Event::QpFatal { qpn }))
        })
    }

    pub(crate) fn expected_psn(&self) -> u32 {
        self.expected_psn
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

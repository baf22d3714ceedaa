//! The state of a responder, and the ways in which a request fails.

use super::answer::Answers;
use crate::card::config::QpConfig;
use crate::card::context::SharedQueueBroken;
use crate::card::queue::receive::{Receive, ReceiveQueue, Slot};
use crate::card::reports::Event;
use crate::card::transport::endpoint::Step;
use crate::liberties::journal::Entry;
use crate::liberties::{Subject, Work};
use crate::packet::{NakCode, Packet};
use gdsync_sys::prm::cqe::Syndrome;

#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) queue: ReceiveQueue,
    /// The PSN that is expected next.
    pub(crate) expected_psn: u32,
    pub(super) nak_sent: bool,
    pub(crate) answers: Answers,
    /// True if the rest of a message of an unreliable connection is dropped.
    pub(super) dropping: bool,
    /// Number of messages that have begun, and of packets of the last one.
    progress: (u32, u32),
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
            answers: Answers::default(),
            dropping: false,
            progress: (0, 0),
        }
    }

    /// Restarts with an empty queue, at a packet sequence number.
    pub(crate) fn restart(&mut self, psn: u32) {
        self.queue.reset();
        self.expected_psn = psn;
        (self.nak_sent, self.dropping) = (false, false);
        self.answers.clear();
    }

    /// Sets the name of the packet that is executed next, as decisions name it.
    pub(super) fn begin(&self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        let (messages, packets) = self.progress;
        let (message, packet) = match packet.begins_message() {
            true => (messages, 0),
            false => (messages.wrapping_sub(1), packets),
        };
        step.endpoint.work = Work { subject: Subject::Message(message), packet, ..step.endpoint.work };
    }

    /// Counts a packet that was executed.
    pub(super) fn count(&mut self, packet: Packet<'_>, step: &mut Step<'_, '_>) {
        if packet.begins_message()
            && let Some(journal) = step.context.decisions.journal()
        {
            let (work, from) = (step.endpoint.work, packet.header.source_qpn.get());
            let passed = step.endpoint.deferred.held(work.subject);
            journal.write(&Entry::Placed { work, from, passed, text: packet.describe() });
        }
        let (messages, packets) = self.progress;
        self.progress = match packet.begins_message() {
            true => (messages.wrapping_add(1), 1),
            false => (messages, packets.wrapping_add(1)),
        };
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
        let in_flight = self.answers.in_flight();
        if in_flight < usize::from(step.endpoint.attributes.max_dest_rd_atomic) {
            return Ok(());
        }
        let message = format!("{in_flight} reads and atomics are in flight, which is the limit");
        step.report(None, "max_dest_rd_atomic", message);
        Err(Stop::invalid_request(step))
    }
}

//! Queue pairs: an endpoint and its two halves.

use super::dc::Initiators;
use super::endpoint::{Endpoint, Step};
use super::requester::{PeerState, Requester};
use super::responder::Responder;
use super::transition;
use crate::card::config::{LIMITS, PkeyTable, QpAttributes, QpChange, QpConfig, QpState, Transport};
use crate::card::context::{Context, Enable};
use crate::card::memory::copy::MemoryFailure;
use crate::card::reports::Event;
use crate::card::trace;
use crate::fabric::Node;
use crate::liberties::Work;
use crate::packet::{Header, NakCode, PSN_MASK, Packet, PacketKind};
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::doorbell::Doorbell;
use std::time::Instant;
use zerocopy::byteorder::big_endian::U16;

/// A packet that is about to leave.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) qpn: u32,
    pub(crate) header: Header,
    pub(crate) is_response: bool,
    pub(crate) to: Node,
    /// When it was made, for the timeline.
    pub(crate) made_at: u64,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) endpoint: Endpoint,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    /// True if it is in the list of queue pairs with work.
    pub(crate) scheduled: bool,
    /// Its entry in the list of timers.
    pub(crate) timer: Option<Instant>,
    /// How often it is open. Only XRC targets are opened more than once.
    pub(crate) openers: u32,
    /// Of a DC target: their responders replace its own.
    initiators: Option<Box<Initiators>>,
    established: bool,
    /// The queue pair whose SEND_EN has released its sends.
    master: Option<u32>,
    /// True if the last-receive event of its shared queue was raised.
    last_receive_reported: bool,
}

/// Fields of diagnostics about indices of sends.
const RECORD: &str = "send doorbell record";
const DOORBELL: &str = "doorbell";
const ENABLED: &str = "SEND_EN index";

impl Qp {
    /// `number`: its number among the queue pairs that the card has made.
    ///
    /// # Safety
    /// The addresses of `config` stay valid until the queue pair is destroyed; counts are powers of two.
    pub(crate) unsafe fn new(qpn: u32, config: &QpConfig, number: u32, connection: u64) -> Self {
        // SAFETY: the caller guarantees this.
        let (requester, responder) = unsafe { (Requester::new(config, connection), Responder::new(config)) };
        Qp {
            endpoint: Endpoint::new(qpn, *config, number),
            requester,
            responder,
            scheduled: false,
            timer: None,
            openers: 1,
            initiators: (config.transport == Transport::DcTarget).then(Box::default),
            established: false,
            master: None,
            last_receive_reported: false,
        }
    }

    /// Returns to RESET. The rings are empty: the card zeroes the doorbell record of sends, the front end that of
    /// receives.
    pub(crate) fn reset(&mut self) {
        self.endpoint.reset();
        self.requester.restart(0, &self.endpoint.attributes);
        self.responder.restart(0);
        (self.established, self.master, self.last_receive_reported) = (false, None, false);
    }

    /// Applies a change accepted by [`transition::check`], for all states but RESET and ERR.
    pub(crate) fn apply(&mut self, change: &QpChange, to: QpState, pkeys: &PkeyTable) {
        let attributes = &mut self.endpoint.attributes;
        transition::apply(attributes, change);
        self.endpoint.pkey = pkeys.key(attributes.pkey_index);
        self.endpoint.deferred.ordering = attributes.ordering;
        let from = std::mem::replace(&mut attributes.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                if self.endpoint.config.transport == Transport::DcTarget {
                    // No attribute sets it.
                    attributes.max_dest_rd_atomic = LIMITS.max_rd_atomic;
                }
                self.responder.restart(attributes.rq_psn);
            }
            (QpState::Rtr, QpState::Rts) => self.requester.restart(attributes.sq_psn, attributes),
            _ => {}
        }
    }

    pub(crate) fn attributes(&self) -> QpAttributes {
        let (sq_psn, rq_psn) = (self.requester.next_psn, self.responder.expected_psn);
        QpAttributes { sq_psn, rq_psn, ..self.endpoint.attributes }
    }

    /// Checks a doorbell against the doorbell record. A queue pair without a send queue fails.
    pub(crate) fn check_doorbell(&mut self, bell: Doorbell, context: &mut Context<'_>) {
        if self.requester.queue.blocks() == 0 && self.endpoint.state() == QpState::Rts {
            let qpn = self.endpoint.qpn;
            let message = "the queue pair is rung, and has no send queue".to_owned();
            context.report(qpn, Some(bell.index()), RECORD, message);
            context.emit(Event::QpFatal { qpn });
            return self.fail(context);
        }
        if self.endpoint.config.no_send_record {
            let message = "the queue pair has no doorbell record of sends: it is rung at 0x600".to_owned();
            return context.report(self.endpoint.qpn, Some(bell.index()), DOORBELL, message);
        }
        if let Err(record) = self.requester.queue.check_doorbell(bell) {
            let message = format!("WQE {} is rung, but the record says {record}: it is behind", bell.index());
            context.report(self.endpoint.qpn, Some(bell.index()), RECORD, message);
        }
    }

    /// Handles a doorbell of its UAR: accepts the work requests up to the doorbell record. `is_own`: the doorbell names
    /// this queue pair. A slave ignores doorbells of other queue pairs.
    pub(crate) fn ring(&mut self, is_own: bool, context: &mut Context<'_>) {
        let is_slave = self.endpoint.config.slave_send;
        let record = self.requester.queue.record();
        if !is_slave || is_own && !self.requester.queue.is_behind(record) {
            self.announce(record, RECORD, context);
        }
    }

    /// Handles its doorbell at the register of queue pairs without a record.
    pub(crate) fn ring_without_record(&mut self, bell: Doorbell, context: &mut Context<'_>) {
        let (qpn, index) = (self.endpoint.qpn, bell.index());
        if !self.endpoint.config.no_send_record {
            let message = "the queue pair has a doorbell record of sends: it is not rung at 0x600".to_owned();
            return context.report(qpn, Some(index), DOORBELL, message);
        }
        if self.requester.queue.is_behind(index) {
            let message = format!("the producer index {index} is behind that of an earlier doorbell");
            return context.report(qpn, Some(index), DOORBELL, message);
        }
        self.announce(index, DOORBELL, context);
    }

    pub(crate) fn enable(&mut self, enable: Enable, context: &mut Context<'_>) {
        let Enable { slave, until, master, index } = enable;
        let other = self.master.replace(master).filter(|other| *other != master);
        if let Some(other) = other {
            let message =
                format!("queue pair {slave:#x} is released by {other:#x}, too: their order is luck");
            context.advise(master, Some(index), "SEND_EN queue pair", message);
        }
        if self.requester.queue.is_behind(until) || self.requester.queue.knows(until) {
            // In ERR everything in its record was flushed, whatever its masters still release.
            if self.endpoint.state() != QpState::Err {
                let message = format!("{until} of queue pair {slave:#x} is behind: it releases nothing");
                context.advise(master, Some(index), ENABLED, message);
            }
        } else {
            self.announce(until, ENABLED, context);
        }
    }

    /// Accepts the work requests before an index. `field` is the source of the index.
    fn announce(&mut self, index: u16, field: &'static str, context: &mut Context<'_>) {
        let queue = &mut self.requester.queue;
        match self.endpoint.state() {
            QpState::Rts => {
                queue.announce(index);
                let (backlog, blocks) = (queue.backlog(), queue.blocks());
                if backlog > blocks {
                    let qpn = self.endpoint.qpn;
                    let message = format!("{backlog} blocks are outstanding in a ring of {blocks}");
                    context.report(qpn, None, field, message);
                    context.emit(Event::QpFatal { qpn });
                    queue.limit_backlog();
                    self.fail(context);
                }
            }
            QpState::Err => {
                queue.announce(index);
                queue.limit_backlog();
                self.requester.flush(&mut Step { endpoint: &mut self.endpoint, context });
            }
            state => {
                if !queue.knows(index) {
                    let message = format!("rung in state {state:?}: nothing is sent before RTS");
                    context.report(self.endpoint.qpn, None, DOORBELL, message);
                }
            }
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let answers = self.responder.answers.next_wake().or_else(|| self.initiators.as_ref()?.next_wake());
        let wakes = [self.requester.next_wake(), answers, self.endpoint.deferred.due()];
        wakes.into_iter().flatten().min()
    }

    /// Ends the pauses that are over. Returns whether there was one.
    pub(crate) fn end_pauses(&mut self, now: Instant) -> bool {
        let fetches = self.requester.end_pause(now);
        let of_initiators = self.initiators.as_mut().is_some_and(|all| all.end_hold(now));
        let answers = self.responder.answers.end_hold(now) | of_initiators;
        let written = self.endpoint.deferred.write_due(now);
        self.requester.end_rnr_pause(now) || fetches || answers || written
    }

    /// Polls the WAIT of its requester. Returns whether the requester may go on.
    pub(crate) fn poll_wait(&mut self, context: &mut Context<'_>) -> bool {
        self.requester.poll_wait(&mut Step { endpoint: &mut self.endpoint, context })
    }

    pub(crate) fn owes_answers(&self) -> bool {
        self.responder.answers.owes_answers() || self.initiators.as_ref().is_some_and(|all| all.owe_answers())
    }

    /// Returns the next packet to send. Its payload is in `context.payload`.
    pub(crate) fn next_packet(&mut self, context: &mut Context<'_>) -> Option<Outgoing> {
        let (qpn, port, made_at) = (self.endpoint.qpn, context.port, gdsync_trace::now());
        let pkey = U16::new(self.endpoint.pkey);
        let outgoing = |header, is_response, to| {
            let header = Header { pkey, ..header };
            Outgoing { qpn, header, is_response, to, made_at }
        };
        if let Some(initiators) = &mut self.initiators {
            let header = initiators.next_response(&mut self.endpoint, context)?;
            return Some(outgoing(header, true, self.endpoint.node(port)));
        }
        let step = &mut Step { endpoint: &mut self.endpoint, context };
        if let Some(header) = self.responder.answers.next_response(step) {
            return Some(outgoing(header, true, step.endpoint.node(port)));
        }
        let header = self.requester.next_request(step);
        let made = header.map(|header| outgoing(header, false, self.requester.node(step.endpoint, port)));
        self.flush_if_failed(context);
        made
    }

    /// Returns whether requests follow the one whose packet was made last.
    pub(crate) fn sends_more(&self) -> bool {
        self.requester.sends_more()
    }

    /// Names a packet made by [`Self::next_packet`], as decisions do. `None`: an answer of a DC target, as packets of its
    /// initiators have no common order.
    pub(crate) fn name_of(&self, packet: &Outgoing) -> Option<Work> {
        let (psn, work) = (packet.header.psn.get(), self.endpoint.work);
        if !packet.is_response {
            return self.requester.name_of(psn).map(|(request, packet)| work.of_request(request, packet));
        }
        let is_target = self.endpoint.config.transport == Transport::DcTarget;
        (!is_target).then(|| work.of_answer(psn.wrapping_sub(self.endpoint.attributes.rq_psn) & PSN_MASK))
    }

    /// Handles the departure of a packet made by [`Self::next_packet`].
    pub(crate) fn packet_sent(&mut self, packet: &Outgoing, context: &mut Context<'_>) {
        if let Some(initiators) = &mut self.initiators {
            return initiators.response_sent(packet.to, &packet.header, &mut self.endpoint, context);
        }
        let step = &mut Step { endpoint: &mut self.endpoint, context };
        if packet.is_response {
            self.responder.answers.response_sent(&packet.header, step);
        } else {
            trace::sent(packet.made_at, step.context.port, &packet.header, packet.to, self.requester.place());
            self.requester.request_sent(step);
        }
    }

    /// Passes over a packet made by [`Self::next_packet`], for which the fabric has no room. Returns false unless the
    /// queue pair is a DC target, whose other initiators do not wait for this one.
    pub(crate) fn pass_over(&mut self, packet: &Outgoing, context: &mut Context<'_>) -> bool {
        if !packet.is_response {
            self.requester.found_no_room(&Step { endpoint: &mut self.endpoint, context });
        }
        let Some(initiators) = &mut self.initiators else { return false };
        initiators.pass_over(packet.to, &packet.header);
        true
    }

    /// Ends [`Self::pass_over`]: the next packet may be one that had no room. Returns whether there is one.
    pub(crate) fn end_blocked(&mut self) -> bool {
        self.initiators.as_mut().is_some_and(|all| all.end_blocked())
    }

    /// Returns the number of initiators of a DC target with pending answers.
    pub(crate) fn waiting_initiators(&self) -> usize {
        self.initiators.as_ref().map_or(0, |all| all.waiting())
    }

    /// Records that the fabric has taken a packet, which ends at `left_at`; `None` if it has not.
    pub(crate) fn note_position(&mut self, header: &Header, left_at: Option<u64>) {
        if let Some(left_at) = left_at
            && PacketKind::try_from(header.kind).is_ok_and(PacketKind::is_request)
        {
            self.requester.reached(header.psn.get(), left_at);
        }
    }

    /// Fails the request or answer of a packet made by [`Self::next_packet`], as its payload cannot be read. This packet
    /// and later ones may count as sent, but none of them has left.
    pub(crate) fn payload_failed(
        &mut self,
        packet: &Outgoing,
        failure: &MemoryFailure,
        context: &mut Context<'_>,
    ) {
        if let Some(initiators) = &mut self.initiators {
            let (to, header) = (packet.to, &packet.header);
            return initiators.refuse_read(to, header, failure, &mut self.endpoint, context);
        }
        let step = &mut Step { endpoint: &mut self.endpoint, context };
        if packet.is_response {
            self.responder.answers.refuse_read(packet.header.psn.get(), failure, step);
        } else {
            self.requester.return_to(packet.header.psn.get());
            let message = step.context.regions.describe(failure);
            self.requester.refuse_locally(failure.field(), message, step);
        }
        self.flush_if_failed(context);
    }

    /// Refuses packet `psn`: its payload, and perhaps that of later packets, was taken and could not be written to
    /// peer memory.
    pub(crate) fn copy_failed(&mut self, psn: u32, failure: &MemoryFailure, context: &mut Context<'_>) {
        let step = &mut Step { endpoint: &mut self.endpoint, context };
        self.responder.copy_failed(psn, failure, step);
        self.flush_if_failed(context);
    }

    /// Fails the request whose packet [`Self::next_packet`] made, as faults ask.
    pub(crate) fn fail_current(&mut self, syndrome: Syndrome, context: &mut Context<'_>) {
        self.requester.fail_current(syndrome, &mut Step { endpoint: &mut self.endpoint, context });
        self.flush_if_failed(context);
    }

    /// Handles a packet that it accepts.
    pub(crate) fn deliver(&mut self, packet: Packet<'_>, context: &mut Context<'_>) {
        if let Some(initiators) = &mut self.initiators {
            return initiators.request(&mut self.endpoint, packet, context);
        }
        let Packet { kind, header, .. } = packet;
        let (qpn, psn) = (self.endpoint.qpn, header.psn.get());
        let (requester, responder) = (&mut self.requester, &mut self.responder);
        let step = &mut Step { endpoint: &mut self.endpoint, context };
        let is_request = kind.is_request() && kind != PacketKind::Datagram;
        let is_first = is_request && step.endpoint.state() == QpState::Rtr;
        if is_first && !std::mem::replace(&mut self.established, true) {
            step.context.emit(Event::CommunicationEstablished { qpn });
        }
        match kind {
            PacketKind::Datagram => responder.datagram(packet, step),
            _ if step.endpoint.config.transport == Transport::Uc => {
                responder.unreliable_request(packet, step)
            }
            _ if is_request => responder.request(packet, step),
            PacketKind::ReadResponse => requester.read_response(packet, step),
            PacketKind::AtomicResponse => requester.atomic_response(packet, step),
            _ if !requester.may_be_answered(psn) => {
                tracing::debug!(packet.source, qpn, psn, "an answer to a packet that was not sent");
            }
            PacketKind::Ack => requester.acknowledge(psn, step),
            _ => match NakCode::try_from(header.imm[0]) {
                Ok(code) => requester.refused(psn, code, header.imm[1], step),
                Err(error) => tracing::debug!(packet.source, qpn, %error, "a malformed packet"),
            },
        }
        self.flush_if_failed(context);
    }

    /// Handles an expired retransmission timer, or the end of the peer's process.
    pub(crate) fn retry(&mut self, peer: PeerState, context: &mut Context<'_>) {
        self.requester.retry(peer, &mut Step { endpoint: &mut self.endpoint, context });
        self.flush_if_failed(context);
    }

    /// Flushes receives posted in ERR. Returns whether there were any.
    pub(crate) fn flush_new_receives(&mut self, context: &mut Context<'_>) -> bool {
        self.endpoint.state() == QpState::Err
            && self.responder.flush(&mut Step { endpoint: &mut self.endpoint, context })
    }

    /// Moves to ERR: completes all outstanding work as flushed.
    pub(crate) fn fail(&mut self, context: &mut Context<'_>) {
        self.endpoint.fail();
        self.flush_if_failed(context);
    }

    #[inline]
    fn flush_if_failed(&mut self, context: &mut Context<'_>) {
        if self.endpoint.take_failure() {
            let step = &mut Step { endpoint: &mut self.endpoint, context };
            step.endpoint.deferred.write_all();
            self.responder.answers.release_completions(step);
            self.requester.flush(step);
            self.responder.flush(step);
            if step.endpoint.config.srq.is_some() && !std::mem::replace(&mut self.last_receive_reported, true)
            {
                step.context.last_receive(step.endpoint.qpn);
            }
        }
    }

    /// Fails the queue pair, as a completion queue had no room for a delayed entry.
    pub(crate) fn completion_lost(&mut self, context: &mut Context<'_>) {
        Step { endpoint: &mut self.endpoint, context }.completion_lost();
    }
}

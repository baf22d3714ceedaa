//! Queue pairs: an endpoint and its two halves.

use super::endpoint::Endpoint;
use super::requester::Requester;
use super::responder::Responder;
use super::transition;
use crate::card::config::{QpAttributes, QpChange, QpConfig, QpState, Transport};
use crate::card::context::{Context, PEER_MEMORY};
use crate::card::event::Event;
use crate::fabric::{Node, Part};
use crate::packet::{Header, NakCode, PacketKind};
use crate::peer_memory::PeerFailure;
use gdsync_sys::prm::cqe::Syndrome;
use gdsync_sys::prm::doorbell::Doorbell;
use std::time::Instant;

/// A packet that is about to leave.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) qpn: u32,
    pub(crate) header: Header,
    pub(crate) is_response: bool,
    pub(crate) to: Node,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) endpoint: Endpoint,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) uar: u32,
    /// It is on the list of queue pairs with work.
    pub(crate) scheduled: bool,
    /// Its entry in the list of timers.
    pub(crate) timer: Option<Instant>,
    /// The first packet has arrived.
    established: bool,
}

impl Qp {
    /// # Safety
    /// The addresses of `config` stay valid until the queue pair is destroyed; counts are powers of
    /// two.
    pub(crate) unsafe fn new(qpn: u32, config: &QpConfig) -> Self {
        // SAFETY: the caller's.
        let (requester, responder) = unsafe { (Requester::new(config), Responder::new(config)) };
        Qp {
            endpoint: Endpoint::new(qpn, config),
            requester,
            responder,
            uar: config.uar,
            scheduled: false,
            timer: None,
            established: false,
        }
    }

    /// Returns to RESET. The rings are empty: the front zeroes the doorbell records.
    pub(crate) fn reset(&mut self) {
        self.endpoint.reset();
        self.requester.restart(0, &self.endpoint.attributes);
        self.responder.restart(0);
        self.established = false;
    }

    /// Applies a change that [`transition::check`] has accepted, for every state but RESET and ERR.
    pub(crate) fn apply(&mut self, change: &QpChange, to: QpState) {
        let attributes = &mut self.endpoint.attributes;
        transition::apply(attributes, change);
        let from = std::mem::replace(&mut attributes.state, to);
        match (from, to) {
            (QpState::Init, QpState::Rtr) => self.responder.restart(attributes.rq_psn),
            (QpState::Rtr, QpState::Rts) => self.requester.restart(attributes.sq_psn, attributes),
            _ => {}
        }
    }

    /// Its attributes now.
    pub(crate) fn attributes(&self) -> QpAttributes {
        let (sq_psn, rq_psn) = (self.requester.next_psn(), self.responder.expected_psn());
        QpAttributes { sq_psn, rq_psn, ..self.endpoint.attributes }
    }

    /// Checks a doorbell against the doorbell record.
    pub(crate) fn check_doorbell(&self, bell: Doorbell, context: &mut Context<'_>) {
        if let Err(record) = self.requester.queue.check_doorbell(bell) {
            let message = format!("WQE {} is rung, but the record says {record}: it is behind", bell.index());
            context.report(self.endpoint.qpn, Some(bell.index()), "send doorbell record", message);
        }
    }

    /// Handles a doorbell of its UAR: takes the work requests up to the doorbell record.
    pub(crate) fn ring(&mut self, context: &mut Context<'_>) {
        let queue = &mut self.requester.queue;
        let record = queue.record();
        match self.endpoint.state() {
            QpState::Rts => {
                queue.announce(record);
                let (backlog, blocks) = (queue.backlog(), queue.blocks());
                if backlog > blocks {
                    let qpn = self.endpoint.qpn;
                    let message = format!("{backlog} blocks are outstanding in a ring of {blocks}");
                    context.report(qpn, None, "send doorbell record", message);
                    context.emit(Event::QpFatal { qpn });
                    queue.limit_backlog();
                    self.fail(context);
                }
            }
            QpState::Err => {
                queue.announce(record);
                queue.limit_backlog();
                self.requester.flush(&mut self.endpoint, context);
            }
            state => {
                if !queue.knows(record) {
                    let message = format!("rung in state {state:?}: nothing is sent before RTS");
                    context.report(self.endpoint.qpn, None, "doorbell", message);
                }
            }
        }
    }

    /// The next packet to send. Its payload is in `context.payload`.
    pub(crate) fn next_packet(&mut self, context: &mut Context<'_>) -> Option<Outgoing> {
        let (endpoint, port) = (&mut self.endpoint, context.port);
        let qpn = endpoint.qpn;
        if let Some(header) = self.responder.next_response(endpoint, context) {
            return Some(Outgoing { qpn, header, is_response: true, to: endpoint.node(port) });
        }
        let header = self.requester.next_request(endpoint, context);
        let made = header.map(|header| {
            let to = self.requester.node(endpoint, port);
            Outgoing { qpn, header, is_response: false, to }
        });
        self.flush_if_failed(context);
        made
    }

    /// A packet that [`Self::next_packet`] made has left.
    pub(crate) fn packet_sent(&mut self, packet: &Outgoing, context: &mut Context<'_>) {
        if packet.is_response {
            self.responder.response_sent(&packet.header, &mut self.endpoint, context);
        } else {
            self.requester.request_sent(&mut self.endpoint, context);
        }
    }

    /// The payload of a packet that [`Self::next_packet`] made cannot be read from peer memory.
    pub(crate) fn payload_failed(
        &mut self,
        packet: &Outgoing,
        failure: &PeerFailure,
        context: &mut Context<'_>,
    ) {
        let endpoint = &mut self.endpoint;
        if packet.is_response {
            self.responder.refuse_read(packet.header.psn.get(), failure, endpoint, context);
        } else {
            self.requester.refuse_locally(PEER_MEMORY, failure.to_string(), endpoint, context);
        }
        self.flush_if_failed(context);
    }

    /// Fails the request whose packet [`Self::next_packet`] made, as faults ask.
    pub(crate) fn fail_current(&mut self, syndrome: Syndrome, context: &mut Context<'_>) {
        self.requester.fail_current(syndrome, &mut self.endpoint, context);
        self.flush_if_failed(context);
    }

    /// Handles a packet that it listens to.
    pub(crate) fn deliver(
        &mut self,
        kind: PacketKind,
        source: Node,
        header: &Header,
        payload: &[Part],
        context: &mut Context<'_>,
    ) {
        let (requester, responder, endpoint) = (&mut self.requester, &mut self.responder, &mut self.endpoint);
        let is_request = kind.is_request() && kind != PacketKind::Datagram;
        if is_request && endpoint.state() == QpState::Rtr && !std::mem::replace(&mut self.established, true) {
            context.emit(Event::CommunicationEstablished { qpn: endpoint.qpn });
        }
        match kind {
            PacketKind::Datagram => responder.datagram(source, header, payload, endpoint, context),
            _ if endpoint.transport == Transport::Uc => {
                responder.unreliable_request(kind, header, payload, endpoint, context);
            }
            _ if is_request => responder.request(kind, header, payload, endpoint, context),
            PacketKind::ReadResponse => requester.read_response(header, payload, endpoint, context),
            PacketKind::AtomicResponse => requester.atomic_response(header, endpoint, context),
            PacketKind::Ack => requester.acknowledge(header.psn.get(), endpoint, context),
            _ => match NakCode::try_from(header.nak) {
                Ok(code) => {
                    let (psn, timer) = (header.psn.get(), header.timer_or_level);
                    requester.refused(psn, code, timer, endpoint, context);
                }
                Err(error) => {
                    tracing::debug!(source, qpn = endpoint.qpn, %error, "a malformed packet");
                }
            },
        }
        self.flush_if_failed(context);
    }

    /// The retransmission timer has expired, or the peer's process has ended.
    pub(crate) fn retry(&mut self, peer_is_alive: bool, context: &mut Context<'_>) {
        self.requester.retry(peer_is_alive, &mut self.endpoint, context);
        self.flush_if_failed(context);
    }

    /// In ERR: flushes receives posted since. Returns whether there were any.
    pub(crate) fn flush_new_receives(&mut self, context: &mut Context<'_>) -> bool {
        self.endpoint.state() == QpState::Err && self.responder.flush(&mut self.endpoint, context)
    }

    /// Moves to ERR: completes everything outstanding as flushed.
    pub(crate) fn fail(&mut self, context: &mut Context<'_>) {
        self.endpoint.fail();
        self.flush_if_failed(context);
    }

    #[inline]
    fn flush_if_failed(&mut self, context: &mut Context<'_>) {
        if self.endpoint.take_failure() {
            self.responder.release_completions(&mut self.endpoint, context);
            self.requester.flush(&mut self.endpoint, context);
            self.responder.flush(&mut self.endpoint, context);
        }
    }
}

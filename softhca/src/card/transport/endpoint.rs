//! What both halves of a queue pair share: its identity, its attributes, its completion queues.

use crate::card::config::{QpAttributes, QpConfig, QpState, Transport};
use crate::card::context::Context;
use crate::card::event::Event;
use crate::card::port::Port;
use crate::fabric::Node;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};

/// The vendor syndrome of every error entry: a software card has no further cause to report.
const VENDOR_SYNDROME: u8 = 0;

/// Identity and state of a queue pair.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    pub(crate) transport: Transport,
    pub(crate) pdn: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    user_index: u32,
    pub(crate) attributes: QpAttributes,
    /// A half has failed, and both must be flushed.
    failed: bool,
    /// A completion queue had no room for an entry: nothing more can be reported.
    overrun: bool,
}

impl Endpoint {
    pub(crate) fn new(qpn: u32, config: &QpConfig) -> Self {
        Endpoint {
            qpn,
            transport: config.transport,
            pdn: config.pdn,
            send_cq: config.send_cq,
            recv_cq: config.recv_cq,
            user_index: config.user_index.unwrap_or(0),
            attributes: QpAttributes::default(),
            failed: false,
            overrun: false,
        }
    }

    /// Returns to RESET.
    pub(crate) fn reset(&mut self) {
        self.attributes = QpAttributes::default();
        (self.failed, self.overrun) = (false, false);
    }

    pub(crate) fn state(&self) -> QpState {
        self.attributes.state
    }

    /// Destination of its packets.
    pub(crate) fn node(&self, port: Port) -> Node {
        let address = &self.attributes.address;
        address.gid.map_or(address.dlid.into(), |gid| port.node_of(&gid))
    }

    /// Moves to ERR. The queue pair flushes both halves before it does anything else.
    pub(crate) fn fail(&mut self) {
        self.attributes.state = QpState::Err;
        self.failed = true;
    }

    /// Whether a half has failed since the last call.
    #[inline]
    pub(crate) fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// Writes a completion entry.
    pub(crate) fn complete(&mut self, cqn: u32, cqe: Cqe64, context: &mut Context<'_>) {
        if !context.complete(cqn, cqe.with_user_index(self.user_index)) {
            self.completion_lost(context);
        }
    }

    /// Completes a send with an error.
    pub(crate) fn send_error(
        &mut self,
        index: u16,
        opcode: u8,
        syndrome: Syndrome,
        context: &mut Context<'_>,
    ) {
        let error = CqeOpcode::RequesterError;
        let cqe = Cqe64::error(error, opcode, self.qpn, index, syndrome, VENDOR_SYNDROME);
        self.complete(self.send_cq, cqe, context);
    }

    /// Completes a receive with an error.
    pub(crate) fn receive_error(&mut self, index: u16, syndrome: Syndrome, context: &mut Context<'_>) {
        let cqe = Cqe64::error(CqeOpcode::ResponderError, 0, self.qpn, index, syndrome, VENDOR_SYNDROME);
        self.complete(self.recv_cq, cqe, context);
    }

    /// Handles a completion queue that had no room for an entry.
    pub(crate) fn completion_lost(&mut self, context: &mut Context<'_>) {
        if !self.overrun {
            self.overrun = true;
            context.emit(Event::QpFatal { qpn: self.qpn });
            // Flushing would find no room either: what is outstanding is dropped.
            self.attributes.state = QpState::Err;
        }
    }
}

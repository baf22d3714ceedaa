//! The state that both halves of a queue pair share: identity, attributes, completion queues; and the handle that a
//! half uses for one step.

use crate::card::config::{QpAttributes, QpConfig, QpState, Transport, ack_timeout};
use crate::card::context::Context;
use crate::card::memory::deferred::DeferredWrites;
use crate::card::memory::ring::Entry;
use crate::card::port::{Port, lid_of};
use crate::card::queue::receive::{ReceiveOwner, Slot};
use crate::card::reports::Event;
use crate::fabric::Node;
use crate::liberties::{Subject, Work};
use crate::packet::DEFAULT_PKEY;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, Syndrome};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    node: Node,
    connection: u64,
}

/// A number that no protection domain has.
pub(crate) const NO_DOMAIN: u32 = 0;

/// Identity and state of a queue pair.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    pub(crate) config: QpConfig,
    pub(crate) attributes: QpAttributes,
    /// Partition key of its packets: that of its index in the port's table.
    pub(crate) pkey: u16,
    /// Protection domain of the request that is being handled. Changes only for an XRC target.
    pub(crate) pdn: u32,
    /// Shared receive queue of the request that is being handled. Changes only for an XRC target.
    pub(crate) srq: Option<u32>,
    /// The other side of DC, while connected or served.
    pub(crate) peer: Option<Peer>,
    /// Payload that was taken and not yet written.
    pub(crate) deferred: DeferredWrites,
    /// Its present work, as decisions name it. The queue pair never changes.
    pub(crate) work: Work,
    /// Number of its completion entries.
    completions: u32,
    /// True if a half has failed, and both must be flushed.
    failed: bool,
    /// True if a completion queue had no room for an entry: nothing more can be reported.
    pub(super) overrun: bool,
}

impl Endpoint {
    /// `number`: its number among the queue pairs that the card has made.
    pub(crate) fn new(qpn: u32, config: QpConfig, number: u32) -> Self {
        let attributes = QpAttributes::default();
        let pdn = config.pdn.unwrap_or(NO_DOMAIN);
        Endpoint {
            qpn,
            config,
            attributes,
            pkey: DEFAULT_PKEY,
            pdn,
            srq: config.srq,
            peer: None,
            deferred: DeferredWrites::of(qpn),
            work: Work::of_qp(number),
            completions: 0,
            failed: false,
            overrun: false,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.attributes = QpAttributes::default();
        self.deferred.write_all();
        self.deferred.ordering = None;
        (self.failed, self.overrun, self.peer) = (false, false, None);
    }

    /// Sets the other side of a DC connection.
    pub(crate) fn set_peer(&mut self, node: Node, qpn: u32, connection: u64) {
        self.peer = Some(Peer { node, connection });
        self.attributes.dest_qpn = qpn;
    }

    pub(crate) fn connection(&self) -> u64 {
        self.peer.map_or(0, |peer| peer.connection)
    }

    pub(crate) fn state(&self) -> QpState {
        self.attributes.state
    }

    pub(crate) fn node(&self, port: Port) -> Node {
        if let Some(peer) = self.peer {
            return peer.node;
        }
        let address = &self.attributes.address;
        port.node_of(address.dlid, address.gid.as_ref(), self.attributes.dest_qpn)
    }

    /// Returns the LID of the other side. That of a DC connection is taken for this port's: its packets do not have it.
    pub(crate) fn peer_lid(&self, port: Port) -> u16 {
        let address = &self.attributes.address;
        if self.peer.is_some() { port.lid } else { address.gid.as_ref().map_or(address.dlid, lid_of) }
    }

    /// Moves to ERR. The queue pair then flushes both halves before anything else. A DC target keeps its state: only
    /// the connection of the initiator that is being served has failed.
    pub(crate) fn fail(&mut self) {
        if self.config.transport != Transport::DcTarget {
            self.attributes.state = QpState::Err;
        }
        self.failed = true;
    }

    /// Returns whether a half has failed since the last call.
    #[inline]
    pub(crate) fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }
}

/// Returns the vendor syndrome of an error entry, as ConnectX cards report it; 0 where none is known.
///
/// Measured by others: 0x81 and 0xf9 (NCCL issue 1405: "vendor err 129" and "249"), 0x88 (libfabric issue 4283), 0x8a
/// (charm issue 2532), 0x68 (UCX issues 1151 and 3618), 0x8e (Mooncake issue 3299), 0x87 and 0x51 (users' logs; 0x52 has
/// been seen, too). Guessed: 0x89, between its neighbours.
fn vendor_syndrome(syndrome: Syndrome) -> u8 {
    match syndrome {
        Syndrome::LocalLength => 0x8e,
        Syndrome::LocalQpOperation => 0x68,
        Syndrome::LocalProtection => 0x51,
        Syndrome::WrFlush => 0xf9,
        Syndrome::RemoteInvalidRequest => 0x8a,
        Syndrome::RemoteAccess => 0x88,
        Syndrome::RemoteOperation => 0x89,
        Syndrome::RetryExceeded => 0x81,
        Syndrome::RnrRetryExceeded => 0x87,
        _ => 0,
    }
}

/// The context of one step of a half: the endpoint of its queue pair, and the resources of the card.
pub(crate) struct Step<'a, 'c> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) context: &'a mut Context<'c>,
}

impl Step<'_, '_> {
    /// Calls [`Context::report`] for the queue pair.
    pub(crate) fn report(&mut self, index: Option<u16>, field: &'static str, message: String) {
        self.context.report(self.endpoint.qpn, index, field, message);
    }

    /// Calls [`Context::advise`] for the queue pair.
    pub(crate) fn advise(&mut self, index: Option<u16>, field: &'static str, message: String) {
        self.context.advise(self.endpoint.qpn, index, field, message);
    }

    /// Calls [`Context::found`] for the queue pair.
    pub(crate) fn found(&mut self, index: Option<u16>, field: &'static str, message: String) {
        self.context.found(self.endpoint.qpn, index, field, message);
    }

    /// Returns the time to wait for an acknowledgement, at the speed of the card; `None` without a limit.
    pub(crate) fn ack_timeout(&self) -> Option<Duration> {
        ack_timeout(self.endpoint.attributes.timeout).map(|time| self.context.speed.of(time))
    }

    /// Writes an entry to the completion queue of sends.
    pub(crate) fn complete_send(&mut self, entry: impl Into<Entry>) {
        let user_index = self.endpoint.config.user_index.unwrap_or(0);
        if let Some(cqn) = self.endpoint.config.send_cq {
            self.complete(cqn, user_index, entry.into());
        }
    }

    /// Writes an entry to the completion queue of a receive.
    pub(crate) fn complete_receive(&mut self, owner: ReceiveOwner, entry: impl Into<Entry>) {
        self.complete(owner.cqn, owner.user_index, entry.into());
    }

    fn complete(&mut self, cqn: u32, user_index: u32, entry: Entry) {
        let entry = entry.map(|cqe| cqe.with_user_index(user_index));
        let Endpoint { deferred, completions, work, .. } = &mut *self.endpoint;
        let work = Work { subject: Subject::Completion(*completions), packet: 0, ..*work };
        *completions = completions.wrapping_add(1);
        if !self.context.complete(cqn, entry, work, deferred) {
            self.completion_lost();
        }
    }

    /// Raises the event of a failed responder. A DC target does not fail with a connection.
    pub(crate) fn responder_failed(&mut self, event: Event) {
        if self.endpoint.config.transport != Transport::DcTarget {
            self.context.emit(event);
        }
    }

    /// Selects the shared receive queue of an XRC request. Returns false if it is not in the queue pair's domain.
    pub(crate) fn select_srq(&mut self, srqn: u32) -> bool {
        let domain = self.endpoint.config.xrcd.and_then(|xrcd| self.context.xrc_domain(srqn, xrcd));
        self.endpoint.pdn = domain.unwrap_or(NO_DOMAIN);
        self.endpoint.srq = domain.map(|_| srqn);
        domain.is_some()
    }

    /// Returns whether a completion queue of this queue pair has entries that the program has not consumed.
    pub(crate) fn has_unconsumed(&self) -> bool {
        let config = &self.endpoint.config;
        [config.send_cq, config.recv_cq].into_iter().flatten().any(|cqn| self.context.has_unconsumed(cqn))
    }

    pub(crate) fn send_error(&mut self, index: u16, opcode: u8, syndrome: Syndrome) {
        let (error, qpn) = (CqeOpcode::RequesterError, self.endpoint.qpn);
        self.complete_send(Cqe64::error(error, opcode, qpn, index, syndrome, vendor_syndrome(syndrome)));
    }

    pub(crate) fn receive_error(&mut self, slot: Slot, syndrome: Syndrome) {
        let (error, qpn) = (CqeOpcode::ResponderError, self.endpoint.qpn);
        let cqe = Cqe64::error(error, 0, qpn, slot.index, syndrome, vendor_syndrome(syndrome));
        self.complete_receive(slot.owner, cqe);
    }

    /// Fails the queue pair, as a completion queue had no room for an entry.
    pub(crate) fn completion_lost(&mut self) {
        if !std::mem::replace(&mut self.endpoint.overrun, true) {
            self.context.emit(Event::QpFatal { qpn: self.endpoint.qpn });
            // Flushing would find no room either: outstanding work is dropped.
            self.endpoint.attributes.state = QpState::Err;
        }
    }
}

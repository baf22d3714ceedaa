//! What both halves of a queue pair share: its identity, its attributes, its completion queues.

use crate::card::config::{QpAttributes, QpConfig, QpState, Transport};
use crate::card::memory::parked::Parked;
use crate::card::port::Port;
use crate::fabric::Node;

/// The other side of a connection of DC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    node: Node,
    connection: u64,
}

/// No protection domain has this number.
pub(crate) const NO_DOMAIN: u32 = 0;

/// Identity and state of a queue pair.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    pub(crate) config: QpConfig,
    pub(crate) attributes: QpAttributes,
    /// Protection domain of the request that is handled. Only that of an XRC target changes.
    pub(crate) pdn: u32,
    /// Shared receive queue of the request that is handled. Only that of an XRC target changes.
    pub(crate) srq: Option<u32>,
    /// The other side of DC, while it is connected or served.
    pub(crate) peer: Option<Peer>,
    /// Payload that was taken and not yet written.
    pub(crate) parked: Parked,
    /// A half has failed, and both must be flushed.
    failed: bool,
    /// A completion queue had no room for an entry: nothing more can be reported.
    pub(super) overrun: bool,
}

impl Endpoint {
    pub(crate) fn new(qpn: u32, config: QpConfig) -> Self {
        let attributes = QpAttributes::default();
        let pdn = config.pdn.unwrap_or(NO_DOMAIN);
        Endpoint {
            qpn,
            config,
            attributes,
            pdn,
            srq: config.srq,
            peer: None,
            parked: Parked::default(),
            failed: false,
            overrun: false,
        }
    }

    /// Returns to RESET.
    pub(crate) fn reset(&mut self) {
        self.attributes = QpAttributes::default();
        self.parked.write_all();
        (self.failed, self.overrun, self.peer) = (false, false, None);
    }

    /// Turns to the other side of a connection of DC.
    pub(crate) fn turn_to(&mut self, node: Node, qpn: u32, connection: u64) {
        self.peer = Some(Peer { node, connection });
        self.attributes.dest_qpn = qpn;
    }

    /// The connection of DC that it has turned to; else 0.
    pub(crate) fn connection(&self) -> u64 {
        self.peer.map_or(0, |peer| peer.connection)
    }

    pub(crate) fn state(&self) -> QpState {
        self.attributes.state
    }

    /// Destination of its packets.
    pub(crate) fn node(&self, port: Port) -> Node {
        if let Some(peer) = self.peer {
            return peer.node;
        }
        let address = &self.attributes.address;
        address.gid.map_or(address.dlid.into(), |gid| port.node_of(&gid))
    }

    /// Moves to ERR. The queue pair flushes both halves before it does anything else.
    ///
    /// A DC target stays in its state: only the connection of the initiator that is served has failed.
    pub(crate) fn fail(&mut self) {
        if self.config.transport != Transport::DcTarget {
            self.attributes.state = QpState::Err;
        }
        self.failed = true;
    }

    /// Whether a half has failed since the last call.
    #[inline]
    pub(crate) fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }
}

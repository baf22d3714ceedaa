//! What both halves of a queue pair share: its identity, its attributes, its completion queues.

use crate::card::config::{QpAttributes, QpConfig, QpState};
use crate::card::memory::parked::Parked;
use crate::card::port::Port;
use crate::fabric::Node;

/// Identity and state of a queue pair.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    pub(crate) config: QpConfig,
    pub(crate) attributes: QpAttributes,
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
        Endpoint { qpn, config, attributes, parked: Parked::default(), failed: false, overrun: false }
    }

    /// Returns to RESET.
    pub(crate) fn reset(&mut self) {
        self.attributes = QpAttributes::default();
        self.parked.write_all();
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
}

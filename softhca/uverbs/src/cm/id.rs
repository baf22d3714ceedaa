//! An identifier: the object of `rdma_create_id`, and the state of its calls.

use super::address::Address;
use super::message::Gids;
use crate::card::OpenCard;
use crate::errno::{Errno, Result};
use crate::uapi::ucm::space;
use softhca::fabric::{Node, Service};
use std::sync::Arc;

/// State of an identifier (`enum rdma_cm_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdState {
    Idle,
    AddrBound,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
}

/// `IB_QPT_RC`, `IB_QPT_UC`, `IB_QPT_UD`, `IB_QPT_XRC_INI`, `IB_QPT_XRC_TGT`.
const RC: u8 = 2;
const UC: u8 = 3;
const UD: u8 = 4;
const XRC_INI: u8 = 9;
const XRC_TGT: u8 = 10;

/// Queue pair type of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpType(pub(crate) u8);

impl QpType {
    /// Returns the type that the program has chosen, or that of the port space.
    pub(crate) fn of(port_space: u16, chosen: u8) -> Result<QpType> {
        match port_space {
            space::TCP => Ok(QpType(RC)),
            space::UDP | space::IPOIB => Ok(QpType(UD)),
            space::IB => Ok(QpType(chosen)),
            _ => Err(Errno::INVALID),
        }
    }

    pub(crate) fn is_datagram(self) -> bool {
        self.0 == UD
    }

    /// Returns whether a request for a connection can name it (`cm_validate_req_param`).
    pub(crate) fn can_ask(self) -> bool {
        matches!(self.0, RC | UC | UD | XRC_INI)
    }

    /// Returns whether it is the reliable sending side.
    pub(crate) fn is_reliable_initiator(self) -> bool {
        matches!(self.0, RC | XRC_INI)
    }

    pub(crate) fn is_reliable_target(self) -> bool {
        matches!(self.0, RC | XRC_TGT)
    }

    /// Returns the type of the other end.
    pub(crate) fn peer(self) -> QpType {
        match self.0 {
            XRC_INI => QpType(XRC_TGT),
            XRC_TGT => QpType(XRC_INI),
            same => QpType(same),
        }
    }
}

/// The destination of an identifier's messages.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) card: Arc<OpenCard>,
    pub(crate) node: Node,
    /// The GIDs of the path, whose source is this card.
    pub(crate) gids: Gids,
    /// The index of its partition key in this card's table.
    pub(crate) pkey_index: u16,
}

/// A port number that the identifier is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    /// Port space and number.
    pub(crate) key: (u16, u16),
    /// The claim on the number among the processes of the host, shared by all identifiers of the number.
    pub(crate) claim: Option<Arc<Service>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) type_of_service: u8,
    pub(crate) reuses_address: bool,
    pub(crate) only_own_family: Option<bool>,
    pub(crate) ack_timeout: Option<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Id {
    /// The file that gets its events.
    pub(crate) file: u32,
    /// The program's name for it; 0 for a connection that is not accepted yet.
    pub(crate) uid: u64,
    pub(crate) events_reported: u32,
    /// Number of further connection requests that may wait for the program.
    pub(crate) backlog: u32,
    pub(crate) space: u16,
    pub(crate) qp_type: QpType,
    pub(crate) state: IdState,
    pub(crate) options: Options,
    pub(crate) source: Option<Address>,
    pub(crate) destination: Option<Address>,
    pub(crate) port: Option<Port>,
    pub(crate) card: Option<Arc<OpenCard>>,
    pub(crate) route: Option<Route>,
    /// First packet sequence number that its queue pair expects.
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    /// Local communication ID.
    pub(crate) connection: Option<u32>,
}

/// `RDMA_UDP_QKEY`.
const UDP_QKEY: u32 = 0x0123_4567;

impl Id {
    pub(crate) fn new(file: u32, uid: u64, space: u16, qp_type: QpType, psn: u32) -> Id {
        Id {
            file,
            uid,
            events_reported: 0,
            backlog: 0,
            space,
            qp_type,
            state: IdState::Idle,
            options: Options::default(),
            source: None,
            destination: None,
            port: None,
            card: None,
            route: None,
            psn,
            qkey: UDP_QKEY,
            connection: None,
        }
    }

    /// # Errors
    /// EINVAL in any other state.
    pub(crate) fn must_be(&self, state: IdState) -> Result<()> {
        if self.state == state { Ok(()) } else { Err(Errno::INVALID) }
    }

    /// Returns the service ID of an address in the identifier's port space (`rdma_get_service_id`).
    pub(crate) fn service_id(&self, address: &Address) -> u64 {
        match address {
            Address::Ib(address) => address.service_id,
            _ => u64::from(self.space) << 16 | u64::from(address.port()),
        }
    }

    /// Returns whether it is for addresses of its own family only: unless the program says, with an IPv4 address.
    pub(crate) fn is_own_family_only(&self) -> bool {
        let default = matches!(self.source, Some(Address::V4(_)));
        self.options.only_own_family.unwrap_or(default)
    }

    /// Returns whether a request to an address is for this listener.
    pub(crate) fn listens_at(&self, address: &Address, card: &Arc<OpenCard>) -> bool {
        let is_at = |source: &Address| match source {
            own if own.is_any() => !self.is_own_family_only() || own.is_same_family(address),
            own => own.is_same_interface(address),
        };
        self.state == IdState::Listen
            && self.card.as_ref().is_none_or(|own| Arc::ptr_eq(own, card))
            && self.source.as_ref().is_some_and(is_at)
    }
}

/// Returns the port space and number of a service ID.
pub(crate) fn port_of_service(service_id: u64) -> (u16, u16) {
    ((service_id >> 16) as u16, service_id as u16)
}

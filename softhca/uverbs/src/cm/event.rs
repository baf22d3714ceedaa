//! Events for `rdma_get_cm_event`.

use super::message::{End, MessageKind};
use crate::uapi::ucm::{AhAttr, ConnParam, EventResp, UdParam};
use softhca::card::MULTICAST_QPN;
use zerocopy::{FromZeros, IntoBytes};

/// Kinds of events (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
}

#[derive(Debug)]
pub(crate) struct Event {
    /// The identifier that counts it: for a connection request, the listener.
    pub(crate) owner: u32,
    pub(crate) response: EventResp,
}

impl Event {
    /// Makes an event without a parameter. `status` is 0, a negative error number, or a code of the peer.
    pub(crate) fn new(kind: EventKind, owner: u32, uid: u64, status: i32) -> Event {
        let response = EventResp {
            uid,
            id: owner,
            event: kind as u32,
            status: status.cast_unsigned(),
            ..EventResp::new_zeroed()
        };
        Event { owner, response }
    }

    /// Returns the identifier that a connection request has made.
    pub(crate) fn request(&self) -> Option<u32> {
        (self.response.event == EventKind::ConnectRequest as u32).then_some(self.response.id)
    }

    /// Makes the event of an identifier that has joined a multicast group, which datagrams reach at `ah_attr`.
    pub(crate) fn joined(owner: u32, membership: u32, uid: u64, qkey: u32, ah_attr: AhAttr) -> Event {
        let mut event = Event::new(EventKind::MulticastJoin, owner, uid, 0);
        let param = UdParam { qp_num: MULTICAST_QPN, qkey, ah_attr, ..UdParam::new_zeroed() };
        event.response.id = membership;
        event.response.param = zerocopy::transmute!(param);
        event
    }

    /// Returns the event's membership in a multicast group.
    pub(crate) fn membership(&self) -> Option<u32> {
        (self.response.event == EventKind::MulticastJoin as u32).then_some(self.response.id)
    }

    /// Adds the data of a connection's peer. The kernel gives the program all private data that a message of
    /// this kind has room for, regardless of how many the peer has filled.
    pub(crate) fn with_connection(
        mut self,
        end: &End,
        kind: MessageKind,
        has_ip: bool,
        private: &[u8],
    ) -> Event {
        let mut param = ConnParam {
            qp_num: end.qpn,
            private_data_len: kind.room(has_ip) as u8,
            srq: end.srq,
            // The peer's initiator role is this end's responder role.
            responder_resources: end.initiator_depth,
            initiator_depth: end.responder_resources,
            flow_control: end.flow_control,
            retry_count: end.retry_count,
            rnr_retry_count: end.rnr_retry_count,
            ..ConnParam::new_zeroed()
        };
        copy(private, &mut param.private_data);
        self.response.param[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
        let [vendor_id, attr_mod] = end.ece;
        (self.response.ece.vendor_id, self.response.ece.attr_mod) = (vendor_id, attr_mod);
        self
    }

    /// As [`Self::with_connection`], for datagrams. The address is the peer's, once it is resolved.
    pub(crate) fn with_datagrams(
        mut self,
        end: &End,
        address: Option<AhAttr>,
        kind: MessageKind,
        has_ip: bool,
        private: &[u8],
    ) -> Event {
        let mut param = UdParam {
            qp_num: end.qpn,
            qkey: end.qkey,
            ah_attr: address.unwrap_or_else(AhAttr::new_zeroed),
            private_data_len: kind.room(has_ip) as u8,
            ..UdParam::new_zeroed()
        };
        copy(private, &mut param.private_data);
        self.response.param = zerocopy::transmute!(param);
        self
    }
}

/// Copies as many bytes as there is room for.
fn copy(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
}

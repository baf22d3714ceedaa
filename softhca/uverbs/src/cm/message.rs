//! Messages between the connection managers of two processes, as management datagrams of their cards.
//!
//! The kinds, their numbers and their meaning are those of the communication management class (IB
//! specification, 12.6 and 12.11). The layout is this library's own: one for all kinds, with the addresses of
//! both ends, which `rdma_cm` puts into the private data of a request.

use super::address::Address;
use crate::uapi::ucm::Storage;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u16 = 1;

/// Attribute IDs (IB specification, table 107).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum MessageKind {
    /// Request for communication.
    Req = 0x10,
    /// Message receipt acknowledgement.
    Mra = 0x11,
    Rej = 0x12,
    /// Reply to a request.
    Rep = 0x13,
    /// Ready to use.
    Rtu = 0x14,
    /// Request to disconnect, and its reply.
    Dreq = 0x15,
    Drep = 0x16,
    /// Service ID resolution, for datagrams.
    SidrReq = 0x17,
    SidrRep = 0x18,
}

impl MessageKind {
    fn of(code: u16) -> Option<MessageKind> {
        use MessageKind::*;
        [Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep].into_iter().find(|kind| *kind as u16 == code)
    }

    /// Returns a message's room for a program's private data in bytes (IB specification, 12.6), less
    /// `rdma_cm`'s IP addresses: its programs may rely on exactly this room.
    pub(crate) fn room(self, has_ip_addresses: bool) -> usize {
        /// Bytes of the header of `rdma_cm` (IB specification, A11.3).
        const ADDRESSES: usize = 36;
        let whole = match self {
            MessageKind::Req => 92,
            MessageKind::Rep => 196,
            MessageKind::Rej => 148,
            MessageKind::SidrReq => 216,
            MessageKind::SidrRep => 136,
            MessageKind::Mra | MessageKind::Rtu | MessageKind::Dreq | MessageKind::Drep => 0,
        };
        let is_request = matches!(self, MessageKind::Req | MessageKind::SidrReq);
        whole - if is_request && has_ip_addresses { ADDRESSES } else { 0 }
    }
}

/// Reasons of a rejection (IB specification, table 118).
pub(crate) mod reason {
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const INVALID_COMM_ID: u16 = 6;
    pub(crate) const INVALID_SERVICE_ID: u16 = 8;
    pub(crate) const CONSUMER_DEFINED: u16 = 28;
}

/// Status of a service ID resolution (IB specification, table 126).
pub(crate) mod status {
    pub(crate) const SUCCESS: u16 = 0;
    pub(crate) const UNSUPPORTED: u16 = 1;
    pub(crate) const REJECT: u16 = 2;
}

/// The fixed part of a message, before its private data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    version: U16,
    kind: U16,
    local_id: U32,
    remote_id: U32,
    code: U16,
    transport: u8,
    path_mtu: u8,
    service_id: U64,
    qpn: U32,
    qkey: U32,
    psn: U32,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: u8,
    ece: [U32; 2],
    source_gid: [u8; 16],
    destination_gid: [u8; 16],
    source: Storage,
    destination: Storage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: MessageKind,
    /// The communication IDs of the sender and of the receiver; 0 if unknown.
    pub(crate) local_id: u32,
    pub(crate) remote_id: u32,
    /// Reason of a rejection, or status of a resolution.
    pub(crate) code: u16,
    pub(crate) service_id: u64,
    pub(crate) end: End,
    pub(crate) gids: Gids,
    /// Addresses of a request's sender and receiver.
    pub(crate) addresses: Option<(Address, Address)>,
    pub(crate) private: Vec<u8>,
}

/// The sender's end of a connection, as it describes it to its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    /// First packet sequence number that it expects.
    pub(crate) psn: u32,
    /// Queue pair type (`enum ib_qp_type`).
    pub(crate) transport: u8,
    pub(crate) path_mtu: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    /// Enhanced connection establishment: vendor, and options.
    pub(crate) ece: [u32; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gids {
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
}

impl Message {
    pub(crate) fn new(kind: MessageKind, local_id: u32, remote_id: u32) -> Message {
        Message {
            kind,
            local_id,
            remote_id,
            code: 0,
            service_id: 0,
            end: End::default(),
            gids: Gids::default(),
            addresses: None,
            private: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut fixed = Fixed {
            version: U16::new(VERSION),
            kind: U16::new(self.kind as u16),
            local_id: U32::new(self.local_id),
            remote_id: U32::new(self.remote_id),
            code: U16::new(self.code),
            transport: self.end.transport,
            path_mtu: self.end.path_mtu,
            service_id: U64::new(self.service_id),
            qpn: U32::new(self.end.qpn),
            qkey: U32::new(self.end.qkey),
            psn: U32::new(self.end.psn),
            responder_resources: self.end.responder_resources,
            initiator_depth: self.end.initiator_depth,
            flow_control: self.end.flow_control,
            retry_count: self.end.retry_count,
            rnr_retry_count: self.end.rnr_retry_count,
            srq: self.end.srq,
            ece: self.end.ece.map(U32::new),
            source_gid: self.gids.source,
            destination_gid: self.gids.destination,
            ..Fixed::new_zeroed()
        };
        if let Some((source, destination)) = self.addresses {
            (fixed.source, fixed.destination) = (source.store().0, destination.store().0);
        }
        [fixed.as_bytes(), &self.private].concat()
    }

    /// Returns the message in a datagram; `None` if it is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        let (fixed, private) = Fixed::read_from_prefix(bytes).ok()?;
        let kind = MessageKind::of(fixed.kind.get()).filter(|_| fixed.version.get() == VERSION)?;
        let addresses = Address::parse(&fixed.source).zip(Address::parse(&fixed.destination));
        let is_request = matches!(kind, MessageKind::Req | MessageKind::SidrReq);
        let has_ip = addresses.is_some_and(|(source, _)| source.ip().is_some());
        let is_whole = addresses.is_some_and(|(source, destination)| source.is_same_family(&destination));
        if private.len() > kind.room(has_ip) || is_request && !is_whole {
            return None;
        }
        Some(Message {
            kind,
            local_id: fixed.local_id.get(),
            remote_id: fixed.remote_id.get(),
            code: fixed.code.get(),
            service_id: fixed.service_id.get(),
            end: End {
                qpn: fixed.qpn.get(),
                qkey: fixed.qkey.get(),
                psn: fixed.psn.get(),
                transport: fixed.transport,
                path_mtu: fixed.path_mtu,
                responder_resources: fixed.responder_resources,
                initiator_depth: fixed.initiator_depth,
                flow_control: fixed.flow_control,
                retry_count: fixed.retry_count,
                rnr_retry_count: fixed.rnr_retry_count,
                srq: fixed.srq,
                ece: fixed.ece.map(U32::get),
            },
            gids: Gids { source: fixed.source_gid, destination: fixed.destination_gid },
            addresses: addresses.filter(|_| is_request),
            private: private.to_vec(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use softhca::card::MAX_MANAGEMENT;

    pub(crate) fn request(private: &[u8]) -> Message {
        let address = |text: &str| Address::V4(text.parse().unwrap());
        Message {
            code: 0x1234,
            service_id: 0x0106_1c23,
            end: End {
                qpn: 0x12_3456,
                qkey: 0x7654_3210,
                psn: 0xab_cdef,
                transport: 2,
                path_mtu: 5,
                responder_resources: 3,
                initiator_depth: 4,
                flow_control: 1,
                retry_count: 6,
                rnr_retry_count: 7,
                srq: 1,
                ece: [0x15b3, 0x3000_0002],
            },
            gids: Gids { source: [1; 16], destination: [2; 16] },
            addresses: Some((address("10.83.0.7:4000"), address("127.0.0.1:7203"))),
            private: private.to_vec(),
            ..Message::new(MessageKind::Req, 0x1111, 0x2222)
        }
    }

    #[test]
    fn messages_come_back_and_what_is_malformed_does_not() {
        let whole = request(&[9; 56]);
        let bytes = whole.encode();
        assert!(bytes.len() <= MAX_MANAGEMENT);
        assert_eq!(Message::decode(&bytes), Some(whole));
        let longest = Message { private: vec![1; 196], ..Message::new(MessageKind::Rep, 1, 2) };
        assert_eq!(Message::decode(&longest.encode()), Some(longest));
        assert_eq!(
            Message::decode(&request(&[9; 57]).encode()),
            None,
            "more private data than there is room"
        );
        assert_eq!(Message::decode(&bytes[..size_of::<Fixed>() - 1]), None);
        let changed = |at: usize, value| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            Message::decode(&bytes)
        };
        assert_eq!(changed(1, 2), None, "another version");
        assert_eq!(changed(3, 0x19), None, "an unknown kind");
        let address = std::mem::offset_of!(Fixed, source);
        assert_eq!(changed(address, 1), None, "an unknown family");
        assert_eq!(changed(address, 10), None, "two families");
    }

    #[test]
    fn rooms_are_those_that_programs_count_on() {
        assert_eq!((MessageKind::Req.room(true), MessageKind::Req.room(false)), (56, 92));
        assert_eq!(
            (MessageKind::SidrReq.room(true), MessageKind::Rej.room(true), MessageKind::Rtu.room(true)),
            (180, 148, 0)
        );
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..700)) {
            let _ = Message::decode(&bytes);
        }
    }
}

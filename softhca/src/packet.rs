//! The header of the fabric's packets: the fields of an InfiniBand base transport header and its extensions,
//! in one fixed form.

use crate::fabric::{Group, Node, PayloadPart};
use gdsync_sys::prm::UnknownCode;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kind of a packet, with its number in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum PacketKind {
    /// Part of a send.
    Send = 1,
    /// Part of an RDMA write.
    Write = 2,
    /// RDMA read request.
    Read = 3,
    /// Part of the data of an RDMA read response.
    ReadResponse = 4,
    /// Acknowledgement.
    Ack = 5,
    /// Refusal.
    Nak = 6,
    /// Compare-and-swap request.
    CompareSwap = 7,
    /// Fetch-and-add request.
    FetchAdd = 8,
    /// Original value that an atomic operation returns.
    AtomicResponse = 9,
    /// Datagram.
    Datagram = 10,
    /// Management datagram between the management agents of two cards.
    Management = 11,
}

impl PacketKind {
    /// All kinds, with their words in fault plans.
    pub(crate) const ALL: [(PacketKind, &'static str); 11] = [
        (PacketKind::Send, "send"),
        (PacketKind::Write, "write"),
        (PacketKind::Read, "read"),
        (PacketKind::CompareSwap, "compare-swap"),
        (PacketKind::FetchAdd, "fetch-add"),
        (PacketKind::Datagram, "datagram"),
        (PacketKind::ReadResponse, "read-response"),
        (PacketKind::AtomicResponse, "atomic-response"),
        (PacketKind::Ack, "ack"),
        (PacketKind::Nak, "nak"),
        (PacketKind::Management, "management"),
    ];

    pub(crate) fn is_request(self) -> bool {
        use PacketKind::*;
        matches!(self, Send | Write | Read | CompareSwap | FetchAdd | Datagram)
    }
}

/// Returns the value among `all` with that code.
fn find<T: Copy, const N: usize>(
    all: [T; N],
    of: impl Fn(T) -> u8,
    what: &'static str,
    code: u8,
) -> Result<T, UnknownCode> {
    all.into_iter().find(|value| of(*value) == code).ok_or(UnknownCode { what, code })
}

impl TryFrom<u8> for PacketKind {
    type Error = UnknownCode;

    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        find(PacketKind::ALL.map(|(kind, _)| kind), |kind| kind as u8, "packet kind", code)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NakCode {
    Sequence = 0,
    InvalidRequest = 1,
    RemoteAccess = 2,
    RemoteOperation = 3,
    ReceiverNotReady = 4,
}

impl TryFrom<u8> for NakCode {
    type Error = UnknownCode;

    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        use NakCode::*;
        let all = [Sequence, InvalidRequest, RemoteAccess, RemoteOperation, ReceiverNotReady];
        find(all, |nak| nak as u8, "NAK code", code)
    }
}

/// The default partition's key, of a full member (IB specification, 10.9.1.2).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// Queue pair number of datagrams to a multicast group (IB specification, 10.5.1).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// First packet of a message.
pub(crate) const FIRST: u8 = 1;
/// Last packet of a message.
pub(crate) const LAST: u8 = 2;
/// Immediate data is valid.
pub(crate) const IMMEDIATE: u8 = 4;
/// The requester asks for a solicited event.
pub(crate) const SOLICITED: u8 = 8;
/// The packet belongs to an unreliable connection.
pub(crate) const UNRELIABLE: u8 = 16;
/// The immediate field holds a key that the receiver of the message invalidates.
pub(crate) const INVALIDATE: u8 = 64;
/// The payload begins with the network header, as a datagram's receive buffer gets it.
pub(crate) const GLOBAL: u8 = 32;

const _: () = assert!(size_of::<Header>() <= crate::fabric::MAX_HEADER);

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Partition key of the sender.
    pub(crate) pkey: U16,
    pub(crate) source_qpn: U32,
    pub(crate) dest_qpn: U32,
    pub(crate) psn: U32,
    /// Remote address of this packet's payload; the sender's LID in a datagram.
    pub(crate) addr: U64,
    /// Remote key; Q_Key of a datagram.
    pub(crate) rkey: U32,
    /// Bytes of the whole message.
    pub(crate) length: U32,
    /// Immediate data. NAK: its code and RNR timer in the first two bytes.
    pub(crate) imm: [u8; 4],
    /// Shared receive queue of an XRC request; service level of a datagram; else 0.
    pub(crate) srqn_or_level: U32,
    /// DC connection of the packet; else 0.
    pub(crate) connection: U64,
    /// Access key of the target of a DC request; else 0.
    pub(crate) dc_key: U64,
    /// Atomic request: the value to swap in or add, and the value to compare; a masked one has its two masks
    /// as payload. Atomic response: the original value. Datagram to a multicast group: the group's GID.
    pub(crate) operands: [U64; 2],
}

impl Header {
    pub(crate) fn new(kind: PacketKind, source_qpn: u32, dest_qpn: u32, psn: u32) -> Self {
        Header {
            kind: kind as u8,
            flags: 0,
            pkey: U16::new(DEFAULT_PKEY),
            source_qpn: U32::new(source_qpn),
            dest_qpn: U32::new(dest_qpn),
            psn: U32::new(psn & PSN_MASK),
            addr: U64::ZERO,
            rkey: U32::ZERO,
            length: U32::ZERO,
            imm: [0; 4],
            srqn_or_level: U32::ZERO,
            connection: U64::ZERO,
            dc_key: U64::ZERO,
            operands: [U64::ZERO; 2],
        }
    }

    pub(crate) fn nak((source_qpn, dest_qpn, psn): (u32, u32, u32), code: NakCode, rnr_timer: u8) -> Self {
        let imm = [code as u8, rnr_timer, 0, 0];
        Header { imm, ..Header::new(PacketKind::Nak, source_qpn, dest_qpn, psn) }
    }

    pub(crate) fn is_reliable(&self) -> bool {
        self.kind != PacketKind::Datagram as u8 && !self.has(UNRELIABLE)
    }

    /// Returns the multicast group of a datagram.
    pub(crate) fn group(&self) -> Group {
        zerocopy::transmute!(self.operands)
    }

    /// Addresses a datagram to a multicast group.
    pub(crate) fn set_group(&mut self, group: Group) {
        self.operands = zerocopy::transmute!(group);
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) source: Node,
    pub(crate) kind: PacketKind,
    pub(crate) header: &'a Header,
    pub(crate) payload: &'a [PayloadPart],
}

impl Packet<'_> {
    pub(crate) fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.1).sum()
    }

    /// Describes its message for people.
    pub(crate) fn describe(&self) -> String {
        let (length, addr) = (self.header.length.get(), self.header.addr.get());
        match self.kind {
            PacketKind::Write if self.header.has(IMMEDIATE) => {
                format!("RDMA write with immediate of {length} bytes to {addr:#x}")
            }
            PacketKind::Write => format!("RDMA write of {length} bytes to {addr:#x}"),
            PacketKind::Read => format!("RDMA read of {length} bytes at {addr:#x}"),
            PacketKind::CompareSwap | PacketKind::FetchAdd => format!("atomic operation at {addr:#x}"),
            PacketKind::Datagram => format!("datagram of {length} bytes"),
            _ => format!("send of {length} bytes"),
        }
    }

    /// Returns whether it is the first packet of a message. Only sends and writes have several.
    pub(crate) fn begins_message(&self) -> bool {
        !matches!(self.kind, PacketKind::Send | PacketKind::Write) || self.header.has(FIRST)
    }
}

/// Mask of packet sequence numbers, which have 24 bits.
pub(crate) const PSN_MASK: u32 = 0xff_ffff;

/// Returns the signed distance from `b` to `a`, modulo 2^24.
pub(crate) fn psn_distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_round_trip_and_unknown_ones_are_named() {
        for code in 0..=255u8 {
            match PacketKind::try_from(code) {
                Ok(kind) => assert_eq!(kind as u8, code),
                Err(error) => assert_eq!(error.code, code),
            }
            assert!(NakCode::try_from(code).map_or(code > 4, |nak| nak as u8 == code));
        }
    }

    proptest! {
        #[test]
        fn distances_are_cyclic(a in 0u32..1 << 24, step in -(1i32 << 23)..1 << 23) {
            prop_assert_eq!(psn_distance(a.wrapping_add(step as u32) & PSN_MASK, a), step);
        }
    }
}

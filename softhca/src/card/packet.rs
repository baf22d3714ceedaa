//! The fabric's packet header: what an InfiniBand base transport header and its extensions carry, in one fixed form.

use gdsync_sys::prm::UnknownCode;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Send = 1,
    Write = 2,
    ReadRequest = 3,
    ReadResponse = 4,
    Ack = 5,
    Nak = 6,
    CompareSwap = 7,
    FetchAdd = 8,
    AtomicResponse = 9,
    Datagram = 10,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Send,
        Kind::Write,
        Kind::ReadRequest,
        Kind::ReadResponse,
        Kind::Ack,
        Kind::Nak,
        Kind::CompareSwap,
        Kind::FetchAdd,
        Kind::AtomicResponse,
        Kind::Datagram,
    ];
}

impl Kind {
    /// A packet of the requester.
    pub(super) fn is_request(self) -> bool {
        use Kind::*;
        matches!(self, Send | Write | ReadRequest | CompareSwap | FetchAdd | Datagram)
    }
}

impl TryFrom<u8> for Kind {
    type Error = UnknownCode;

    fn try_from(code: u8) -> Result<Self, UnknownCode> {
        Kind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == code)
            .ok_or(UnknownCode { what: "packet kind", code })
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum NakCode {
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
        all.into_iter().find(|nak| *nak as u8 == code).ok_or(UnknownCode { what: "NAK code", code })
    }
}

/// First packet of a message.
pub(super) const FIRST: u8 = 1;
/// Last packet of a message.
pub(super) const LAST: u8 = 2;
/// Immediate data is valid.
pub(super) const IMMEDIATE: u8 = 4;
/// The receiver is asked for an event.
pub(super) const SOLICITED: u8 = 8;

/// Of an unreliable connection.
pub(super) const UNRELIABLE: u8 = 16;
/// The payload begins with the network header, as the receiver of a datagram sees it.
pub(super) const GLOBAL: u8 = 32;

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) nak: u8,
    /// RNR timer of a NAK, service level of a datagram.
    pub(super) timer_or_level: u8,
    pub(super) source_qpn: U32,
    pub(super) dest_qpn: U32,
    pub(super) psn: U32,
    /// Remote address of this packet's payload.
    pub(super) addr: U64,
    /// Remote key, or a datagram's Q_Key.
    pub(super) rkey: U32,
    /// Bytes of the whole message.
    pub(super) length: U32,
    pub(super) imm: [u8; 4],
    /// Of an atomic request: what is swapped in or added, and what is compared. Of its response: the original value.
    pub(super) operands: [U64; 2],
}

impl Header {
    pub(super) fn new(kind: Kind, source_qpn: u32, dest_qpn: u32, psn: u32) -> Self {
        Header {
            kind: kind as u8,
            flags: 0,
            nak: 0,
            timer_or_level: 0,
            source_qpn: U32::new(source_qpn),
            dest_qpn: U32::new(dest_qpn),
            psn: U32::new(psn & PSN_MASK),
            addr: U64::ZERO,
            rkey: U32::ZERO,
            length: U32::ZERO,
            imm: [0; 4],
            operands: [U64::ZERO; 2],
        }
    }

    /// Whether it is acknowledged, or an acknowledgement.
    pub(super) fn is_reliable(&self) -> bool {
        self.kind != Kind::Datagram as u8 && !self.has(UNRELIABLE)
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Packet sequence numbers have 24 bits.
pub(super) const PSN_MASK: u32 = 0xff_ffff;

/// The signed distance from `b` to `a`, cyclic in 24 bits.
pub(super) fn psn_distance(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_round_trip_and_unknown_ones_are_named() {
        for code in 0..=255u8 {
            match Kind::try_from(code) {
                Ok(kind) => assert_eq!(kind as u8, code),
                Err(error) => assert_eq!(error.code, code),
            }
            assert!(NakCode::try_from(code).map_or(code > 4, |nak| nak as u8 == code));
        }
        assert!(size_of::<Header>() <= crate::fabric::MAX_HEADER);
    }

    proptest! {
        #[test]
        fn distances_are_cyclic(a in 0u32..1 << 24, step in -(1i32 << 23)..1 << 23) {
            prop_assert_eq!(psn_distance(a.wrapping_add(step as u32) & PSN_MASK, a), step);
        }
    }
}

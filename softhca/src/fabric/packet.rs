//! Packets of a fabric, and the addresses of cards.

use crate::os::host::Gone;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Address of a card in the fabric: its number on the fabric of one host, where all cards of a device have one LID, or
/// its IPv4 address as a number, which is numerically above all of these. 0 is no card.
pub type Node = u32;

/// The pseudo-node of a multicast group's members: the IPv4 broadcast address, which no host has.
pub(crate) const MULTICAST: Node = Node::MAX;

/// Bits of a queue pair's number that are the card's own on the fabric of one host; the card's number is above them, so
/// that queue-pair numbers tell the processes of a host apart.
pub(crate) const OWN_QPN_BITS: u32 = 15;

/// Numbers that a card may have on the fabric of one host. Those of its queue pairs have 24 bits, and not all are 1,
/// which is multicast.
pub(super) const NUMBERS: RangeInclusive<u16> = 1..=(1 << (24 - OWN_QPN_BITS)) - 2;

/// Returns the node at an IPv4 address; 0 for an address that no host has.
pub(crate) fn node_of_address(address: Ipv4Addr) -> Node {
    let number = u32::from(address);
    if number > u32::from(u16::MAX) { number } else { 0 }
}

/// Maximum bytes of a packet's header.
pub(crate) const MAX_HEADER: usize = 96;
/// Maximum bytes of a packet's payload.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// A part of a payload: address and length in bytes.
pub(crate) type PayloadPart = (*const u8, usize);

/// The place of a payload piece still to be filled: in two parts, each an address and a length in bytes.
pub(crate) type Hole = [(*mut u8, usize); 2];

/// A sink's further use of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// This payload, and that of every packet taken before it, is no longer used.
    Over,
    /// The payload is read until [`Sink::settle`] returns, or until a later packet is [`Use::Over`].
    GoesOn,
}

/// A receiver of a fabric's packets.
///
/// The peer can still write to the payload: read each byte once, and check the copy.
pub(crate) trait Sink {
    /// Takes a packet: source, header, payload in two parts.
    fn take(&mut self, source: Node, header: &[u8], payload: [PayloadPart; 2]) -> Use;

    /// Ends every use of the packets taken so far.
    fn settle(&mut self) {}
}

/// A function that has used the payload when it returns.
impl<F: FnMut(Node, &[u8], [PayloadPart; 2])> Sink for F {
    fn take(&mut self, source: Node, header: &[u8], payload: [PayloadPart; 2]) -> Use {
        self(source, header, payload);
        Use::Over
    }
}

/// Outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Sent,
    /// There is no room now. The fabric wakes its sleeper when there is.
    Full,
    /// No card has that address, or its process has ended.
    Unreachable,
    /// The program has unmapped a part of the payload. Nothing was sent.
    Unreadable(Gone),
}

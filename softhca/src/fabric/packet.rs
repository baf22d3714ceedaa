//! Packets of a fabric, and the addresses of cards.

use crate::os::host::Gone;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Address of a card in the fabric: the number of the card in the low 16 bits and, on the fabric of several hosts, the
/// IPv4 address of its device above them. 0 is no card.
pub type Node = u64;

/// The pseudo-node of a multicast group's members, whose number no card has.
pub(crate) const MULTICAST: Node = Node::MAX;

/// Bits of a queue pair's number that are the card's own; the card's number is above them, so that queue-pair numbers
/// tell the cards of an address apart.
pub(crate) const OWN_QPN_BITS: u32 = 15;

/// Numbers that a card may have. Those of its queue pairs have 24 bits, and not all are 1, which is multicast.
pub(super) const NUMBERS: RangeInclusive<u16> = 1..=(1 << (24 - OWN_QPN_BITS)) - 2;

/// Returns the node of a card at an IPv4 address, or on the fabric of one host. 0 for a number that no card has.
pub(crate) fn node(address: Option<Ipv4Addr>, number: u16) -> Node {
    match NUMBERS.contains(&number) {
        true => u64::from(address.map_or(0, u32::from)) << 16 | u64::from(number),
        false => 0,
    }
}

/// Returns the IPv4 address of a node; `None` on the fabric of one host.
pub fn address_of(node: Node) -> Option<Ipv4Addr> {
    let address = (node >> 16) as u32;
    (address != 0).then(|| address.into())
}

/// Returns the number of a node's card, if a card can have it.
pub(super) fn number_of(node: Node) -> Option<u16> {
    Some(node as u16).filter(|number| NUMBERS.contains(number))
}

/// Returns whether packets to that address reach exactly one host. No host has an address of 0.0.0.0/8.
pub(crate) fn is_unicast(address: Ipv4Addr) -> bool {
    address.octets()[0] != 0 && !address.is_multicast() && !address.is_broadcast()
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

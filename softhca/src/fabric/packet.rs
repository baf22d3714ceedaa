//! What a fabric carries, and the addresses of cards in it.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Address of a card: its LID, or its IPv4 address as a number. The IPv4 addresses that cards may
/// have are numerically above all LIDs, so a node is never both. 0 is no card's.
pub type Node = u32;

/// In place of a node: the cards that have members of a multicast group. As a number it is the IPv4 address of
/// broadcasts, which is no host's.
pub(crate) const MULTICAST: Node = Node::MAX;

/// LIDs that a card may have: the unicast range of InfiniBand.
pub(super) const LIDS: RangeInclusive<u16> = 1..=0xbfff;

/// The node at an IPv4 address; 0 for an address that no host has.
pub(crate) fn node_of_address(address: Ipv4Addr) -> Node {
    let number = u32::from(address);
    if number > u32::from(u16::MAX) { number } else { 0 }
}

/// Longest header of a packet in bytes.
pub(crate) const MAX_HEADER: usize = 96;
/// Longest payload of a packet in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// A piece of payload: its address and its length in bytes.
pub(crate) type Part = (*const u8, usize);

/// The place of a piece of payload that is still to be filled: in two parts, each an address and a
/// length in bytes.
pub(crate) type Hole = [(*mut u8, usize); 2];

/// Whether the payload of a packet that was taken is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// No side reads it any more, nor that of any packet that was taken before it.
    Over,
    /// It is read until [`Sink::settle`] returns, or until [`Use::Over`] is said of a later packet.
    GoesOn,
}

/// What takes the packets of a fabric.
///
/// The peer can still write to the payload: read each byte once, and check the copy.
pub(crate) trait Sink {
    /// Takes a packet: source, header, payload in two parts.
    fn take(&mut self, source: Node, header: &[u8], payload: [Part; 2]) -> Use;

    /// Ends every use of what was taken.
    fn settle(&mut self) {}
}

/// A function that has used the payload when it returns.
impl<F: FnMut(Node, &[u8], [Part; 2])> Sink for F {
    fn take(&mut self, source: Node, header: &[u8], payload: [Part; 2]) -> Use {
        self(source, header, payload);
        Use::Over
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The fabric has taken it.
    Sent,
    /// There is no room now. The fabric wakes its sleeper when there is.
    Full,
    /// No card is there, or its process has ended.
    Unreachable,
}

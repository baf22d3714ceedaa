//! Addresses of cards in the fabric.

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

//! The interface of a fabric to a card.

use super::groups::Group;
use super::packet::{Hole, Node, PayloadPart, SendOutcome, Sink};
use super::peers::OtherSpeed;
use super::sleeper::Sleeper;
use crate::speed::Speed;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A fabric as a card uses it. The defaults stand for features that only the fabric of one host has.
pub(crate) trait Network: Send {
    /// The card's number.
    fn number(&self) -> u16;

    /// The speed of the card's timers. Cards with another speed are not reached.
    fn speed(&self) -> Speed;

    /// Returns the cards refused because of their speed, each once.
    fn take_refused(&mut self) -> Vec<OtherSpeed>;

    /// The IPv4 address; `None` on the fabric of one host.
    fn ipv4(&self) -> Option<Ipv4Addr> {
        None
    }

    /// The object that the engine's thread sleeps on and that other threads wake.
    fn sleeper(&self) -> Arc<Sleeper>;

    /// Sends a packet without blocking.
    ///
    /// # Safety
    /// Each payload part is readable memory. The header is at most [`MAX_HEADER`](super::packet::MAX_HEADER)
    /// bytes, the payload [`MAX_PAYLOAD`](super::MAX_PAYLOAD).
    unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[PayloadPart]) -> SendOutcome;

    /// Returns whether this is the fabric of one host: packets can be placed before their payload exists.
    fn is_of_one_host(&self) -> bool {
        false
    }

    /// Returns whether there are multicast groups.
    fn has_groups(&self) -> bool {
        self.is_of_one_host()
    }

    /// Places a packet with holes in its payload: for each part at the null address, the place that the
    /// caller must fill is added to `holes`. [`Self::publish`], or a later [`Self::try_send`] to the node,
    /// delivers it and all packets placed before. Returns `Unreachable` on the fabric of several hosts.
    ///
    /// # Safety
    /// As [`Self::try_send`]. Nothing is published before the holes are filled.
    unsafe fn place(
        &mut self,
        _: Node,
        _header: &[u8],
        _payload: &[PayloadPart],
        _holes: &mut Vec<Hole>,
    ) -> SendOutcome {
        SendOutcome::Unreachable
    }

    /// Publishes the packets placed for a node.
    fn publish(&mut self, _: Node) {}

    /// Takes back the last packet placed for a node.
    fn take_back(&mut self, _: Node) {}

    /// Takes back all packets placed for a node.
    fn withdraw(&mut self, _: Node) {}

    /// Returns whether [`Self::try_send`] has no room for a packet of that size, to ask before fetching an
    /// expensive payload. After true, the fabric wakes its sleeper when there is room.
    fn is_full(&self, node: Node, header: usize, payload: usize) -> bool;

    /// Returns false if the node's process is known to have ended.
    fn is_alive(&mut self, node: Node) -> bool;

    /// Returns whether a signal has stopped the process at a node that has a link. False where the system does not show
    /// that: on the fabric of several hosts, and for a process of another PID namespace.
    fn is_stopped(&self, _: Node) -> bool {
        false
    }

    /// Returns the process at a node that has a link; 0 if it is unknown.
    fn process(&self, _: Node) -> u32 {
        0
    }

    /// Returns whether there is a link to that node, whose process has not ended.
    fn is_linked(&mut self, node: Node) -> bool;

    /// The end of the last packet that [`Self::try_send`] took, as a position on its link for [`Self::has_taken`].
    fn position(&self) -> u64 {
        0
    }

    /// Returns false while the packet to that node that ends at `position` waits for the process there, which
    /// is busy or stopped. While [`Self::is_alive`] is true, it may still take the packet. Always true on the
    /// fabric of several hosts, which cannot see that.
    fn has_taken(&self, _: Node, _position: u64) -> bool {
        true
    }

    /// The number of rounds of the card at a node; in each, it serves every queue pair that has something to
    /// send. `None` without a link to the node, and on the fabric of several hosts.
    fn rounds(&self, _: Node) -> Option<u64> {
        None
    }

    /// Counts a round of this card, for [`Self::rounds`] of the cards that send to it.
    fn end_round(&mut self) {}

    /// The end of the last packet that has arrived from a node, for [`Self::has_received`]. It covers all
    /// packets that the node sent before a round that [`Self::rounds`] has shown.
    fn arrived(&mut self, _: Node) -> u64 {
        0
    }

    /// Returns whether [`Self::poll`] has passed on everything from a node before `position`.
    fn has_received(&self, _: Node, _position: u64) -> bool {
        true
    }

    /// Passes at most `budget` packets to `sink`, settles the sink, and returns their number.
    fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> usize;

    /// Makes the card a member of a multicast group.
    ///
    /// # Errors
    /// The system's, if it gives no socket; [`io::ErrorKind::Unsupported`] without groups.
    fn join(&mut self, _: &Group) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reverts [`Self::join`].
    fn leave(&mut self, _: &Group) {}

    /// The nodes of the members of a multicast group, including this card if it is one.
    fn members(&self, _: &Group) -> Vec<Node> {
        Vec::new()
    }

    /// Leaves the fabric: every link ends as if the process had ended, and none is accepted.
    fn close(&mut self);

    /// Announces that the card will sleep: from now on peers wake the sleeper. Returns false if packets are
    /// waiting already.
    fn prepare_sleep(&mut self) -> bool;

    /// Ends the announcement of [`Self::prepare_sleep`], instead of sleeping or because another thread works.
    fn cancel_sleep(&mut self);

    /// Ends the announcement after sleeping, and looks at the sockets, which may have ended the sleep.
    fn finish_sleep(&mut self);

    /// The descriptors of its listener and its links.
    #[cfg(test)]
    fn sockets(&self) -> Vec<std::os::fd::RawFd> {
        Vec::new()
    }

    /// The number of connections that have not proven the key.
    #[cfg(test)]
    fn unproven(&self) -> usize {
        0
    }
}

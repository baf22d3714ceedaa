//! A card's access to the fabric, whichever fabric it is on.

use super::error::FabricError;
use super::groups::Group;
use super::packet::{Hole, Node, Part, SendOutcome, Sink};
use super::peers::OtherSpeed;
use super::shared::Shared;
use super::sleeper::Sleeper;
use super::tcp::Tcp;
use super::{key, listen};
use crate::speed::Speed;
use gdsync_auth::{Key, Limits};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A card's access to the fabric. Used by one thread at a time.
pub(crate) struct Fabric(Box<dyn Network>);

impl Fabric {
    /// Claims a free LID, or a free address if [`super::LISTEN_VARIABLE`] lists some, for a
    /// card with that speed.
    ///
    /// # Errors
    /// [`FabricError`].
    pub(crate) fn bind(speed: Speed) -> Result<Fabric, FabricError> {
        let addresses = listen::from_environment()?;
        if addresses.is_empty() {
            Self::on_host(speed)
        } else {
            Self::at(&addresses, key::for_addresses(&addresses)?, speed)
        }
    }

    /// Joins the fabric of this host.
    pub(crate) fn on_host(speed: Speed) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(Shared::bind(speed)?)))
    }

    /// Joins the fabric of several hosts, at the first of these addresses that is free. Cards that
    /// have the same key reach each other.
    pub(crate) fn at(addresses: &[SocketAddrV4], key: Key, speed: Speed) -> Result<Fabric, FabricError> {
        Ok(Fabric(Box::new(Tcp::bind(addresses, key, speed, Limits::default())?)))
    }
}

impl Deref for Fabric {
    type Target = dyn Network;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for Fabric {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

/// What either fabric does for a card. What only the fabric of one host has, is absent by default.
pub(crate) trait Network: Send {
    /// The LID; 0 on the fabric of several hosts.
    fn lid(&self) -> u16 {
        0
    }

    /// How fast the card's timers run. Cards with another speed are not reached.
    fn speed(&self) -> Speed;

    /// The cards to which there is no link because of their speed, each once.
    fn take_refused(&mut self) -> Vec<OtherSpeed>;

    /// The IPv4 address; `None` on the fabric of one host.
    fn ipv4(&self) -> Option<Ipv4Addr> {
        None
    }

    /// The object that the engine's thread sleeps on. Other threads wake it.
    fn sleeper(&self) -> Arc<Sleeper>;

    /// Sends a packet, without ever blocking.
    ///
    /// # Safety
    /// Each payload part is readable memory. The header is at most
    /// [`MAX_HEADER`](super::packet::MAX_HEADER) bytes, the payload [`MAX_PAYLOAD`](super::MAX_PAYLOAD).
    unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[Part]) -> SendOutcome;

    /// Whether it is that of one host: packets can be placed before their payload is there, and there are multicast
    /// groups.
    fn is_of_one_host(&self) -> bool {
        false
    }

    /// Places a packet, some of whose payload the caller has still to fill in: the parts at the null
    /// address, at the places that are added to `holes`. The node gets it, and all that were placed
    /// before, with [`Self::publish`]; a packet that is sent meanwhile publishes them, too. On the fabric
    /// of several hosts no node is reached so.
    ///
    /// # Safety
    /// As [`Self::try_send`]. Nothing is published before the holes are filled.
    unsafe fn place(
        &mut self,
        _: Node,
        _header: &[u8],
        _payload: &[Part],
        _holes: &mut Vec<Hole>,
    ) -> SendOutcome {
        SendOutcome::Unreachable
    }

    /// Publishes the packets that were placed on the way to a node.
    fn publish(&mut self, _: Node) {}

    /// Takes back the packet that was placed last on the way to a node.
    fn take_back(&mut self, _: Node) {}

    /// Takes back the packets that were placed on the way to a node.
    fn withdraw(&mut self, _: Node) {}

    /// Whether [`Self::try_send`] would find no room for a packet of that size. A caller asks
    /// before it fetches a payload that is expensive to fetch. If the answer is true, the fabric
    /// wakes its sleeper when there is room.
    fn is_full(&self, node: Node, header: usize, payload: usize) -> bool;

    /// False if the process of that node is known to have ended.
    fn is_alive(&mut self, node: Node) -> bool;

    /// Whether there is a link to that node, whose process has not ended.
    fn is_linked(&mut self, node: Node) -> bool;

    /// Where the last packet that [`Self::try_send`] took ends on the way to its node: a number for
    /// [`Self::has_taken`].
    fn position(&self) -> u64 {
        0
    }

    /// False if a packet to that node, which ends at `position`, waits for the process there to
    /// take it: the process is busy or stopped. As long as [`Self::is_alive`] is true, it may still
    /// take the packet. On the fabric of several hosts true: the fabric does not see that.
    fn has_taken(&self, _: Node, _position: u64) -> bool {
        true
    }

    /// The rounds of the card at a node: in each, it serves every queue pair that has something to
    /// send. The number grows while that card runs. `None` without a link to the node, and on the
    /// fabric of several hosts.
    fn rounds(&self, _: Node) -> Option<u64> {
        None
    }

    /// A round of this card has ended: the cards that send to it see that by [`Self::rounds`].
    fn end_round(&mut self) {}

    /// Where the last packet ends that has arrived from a node: a number for
    /// [`Self::has_received`]. It includes all packets that the node sent before a round that
    /// [`Self::rounds`] has shown.
    fn arrived(&mut self, _: Node) -> u64 {
        0
    }

    /// Whether [`Self::poll`] has passed on everything from a node before `position`.
    fn has_received(&self, _: Node, _position: u64) -> bool {
        true
    }

    /// Passes at most `budget` packets to `sink`. Returns how many. When it returns, the sink is settled.
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

    /// The nodes of the members of a multicast group, this card included if it is one.
    fn members(&self, _: &Group) -> Vec<Node> {
        Vec::new()
    }

    /// Leaves the fabric: every link ends, as if the process had ended, and none is accepted.
    fn close(&mut self);

    /// Announces that the card will sleep: from now on peers wake the sleeper. False if packets are
    /// waiting already.
    fn prepare_sleep(&mut self) -> bool;

    /// Ends the announcement of [`Self::prepare_sleep`], after sleeping or instead of it.
    fn finish_sleep(&mut self);

    /// Connections that have not proven the key.
    #[cfg(test)]
    fn unproven(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests;

//! A card's access to the fabric, whichever fabric it is on.

use super::error::FabricError;
use super::groups::{self, Group, Groups};
use super::key;
use super::listen;
use super::node::Node;
use super::packet::{Hole, Part, SendOutcome, Sink};
use super::shared::Shared;
use super::sleeper::Sleeper;
use super::speeds::OtherSpeed;
use super::tcp::Tcp;
use crate::speed::Speed;
use gdsync_auth::{Key, Limits};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

/// A card's access to the fabric. Used by one thread at a time.
pub(crate) struct Fabric {
    network: Network,
}

enum Network {
    Shared(Box<Shared>, Groups),
    Tcp(Box<Tcp>),
}

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
        Ok(Fabric { network: Network::Shared(Box::new(Shared::bind(speed)?), Groups::default()) })
    }

    /// Joins the fabric of several hosts, at the first of these addresses that is free. Cards that
    /// have the same key reach each other.
    pub(crate) fn at(addresses: &[SocketAddrV4], key: Key, speed: Speed) -> Result<Fabric, FabricError> {
        let tcp = Tcp::bind(addresses, key, speed, Limits::default())?;
        Ok(Fabric { network: Network::Tcp(Box::new(tcp)) })
    }

    /// The LID; 0 on the fabric of several hosts.
    pub(crate) fn lid(&self) -> u16 {
        match &self.network {
            Network::Shared(shared, _) => shared.lid(),
            Network::Tcp(_) => 0,
        }
    }

    /// How fast the card's timers run. Cards with another speed are not reached.
    pub(crate) fn speed(&self) -> Speed {
        match &self.network {
            Network::Shared(shared, _) => shared.speed(),
            Network::Tcp(tcp) => tcp.speed(),
        }
    }

    /// The cards to which there is no link because of their speed, each once.
    pub(crate) fn take_refused(&mut self) -> Vec<OtherSpeed> {
        match &mut self.network {
            Network::Shared(shared, _) => shared.take_refused(),
            Network::Tcp(tcp) => tcp.take_refused(),
        }
    }

    /// The IPv4 address; `None` on the fabric of one host.
    pub(crate) fn ipv4(&self) -> Option<Ipv4Addr> {
        match &self.network {
            Network::Shared(..) => None,
            Network::Tcp(tcp) => Some(tcp.address()),
        }
    }

    /// The object that the engine's thread sleeps on. Other threads wake it.
    pub(crate) fn sleeper(&self) -> Arc<Sleeper> {
        match &self.network {
            Network::Shared(shared, _) => shared.sleeper(),
            Network::Tcp(tcp) => tcp.sleeper(),
        }
    }

    /// Sends a packet, without ever blocking.
    ///
    /// # Safety
    /// Each payload part is readable memory. The header is at most
    /// [`MAX_HEADER`](super::packet::MAX_HEADER) bytes, the payload [`MAX_PAYLOAD`](super::MAX_PAYLOAD).
    pub(crate) unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[Part]) -> SendOutcome {
        match &mut self.network {
            Network::Shared(shared, _) => {
                let Ok(lid) = u16::try_from(node) else { return SendOutcome::Unreachable };
                // SAFETY: the caller's.
                unsafe { shared.try_send(lid, header, payload) }
            }
            // SAFETY: the caller's.
            Network::Tcp(tcp) => unsafe { tcp.try_send(node, header, payload) },
        }
    }

    /// Whether packets can be placed before their payload is there.
    pub(crate) fn can_place(&self) -> bool {
        matches!(self.network, Network::Shared(..))
    }

    /// Places a packet, some of whose payload the caller has still to fill in: the parts at the null
    /// address, at the places that are added to `holes`. The node gets it, and all that were placed
    /// before, with [`Self::publish`]; a packet that is sent meanwhile publishes them, too. On the fabric
    /// of several hosts no node is reached so.
    ///
    /// # Safety
    /// As [`Self::try_send`]. Nothing is published before the holes are filled.
    pub(crate) unsafe fn place(
        &mut self,
        node: Node,
        header: &[u8],
        payload: &[Part],
        holes: &mut Vec<Hole>,
    ) -> SendOutcome {
        match (&mut self.network, u16::try_from(node)) {
            // SAFETY: the caller's.
            (Network::Shared(shared, _), Ok(lid)) => unsafe { shared.place(lid, header, payload, holes) },
            _ => SendOutcome::Unreachable,
        }
    }

    /// Publishes the packets that were placed on the way to a node.
    pub(crate) fn publish(&mut self, node: Node) {
        if let (Network::Shared(shared, _), Ok(lid)) = (&mut self.network, u16::try_from(node)) {
            shared.publish(lid);
        }
    }

    /// Takes back the packet that was placed last on the way to a node.
    pub(crate) fn take_back(&mut self, node: Node) {
        if let (Network::Shared(shared, _), Ok(lid)) = (&mut self.network, u16::try_from(node)) {
            shared.take_back(lid);
        }
    }

    /// Takes back the packets that were placed on the way to a node.
    pub(crate) fn withdraw(&mut self, node: Node) {
        if let (Network::Shared(shared, _), Ok(lid)) = (&mut self.network, u16::try_from(node)) {
            shared.withdraw(lid);
        }
    }

    /// Whether [`Self::try_send`] would find no room for a packet of that size. A caller asks
    /// before it fetches a payload that is expensive to fetch. If the answer is true, the fabric
    /// wakes its sleeper when there is room.
    pub(crate) fn is_full(&self, node: Node, header: usize, payload: usize) -> bool {
        match &self.network {
            Network::Shared(shared, _) => {
                u16::try_from(node).is_ok_and(|lid| shared.is_full(lid, header, payload))
            }
            Network::Tcp(tcp) => tcp.is_full(node),
        }
    }

    /// False if the process of that node is known to have ended.
    pub(crate) fn is_alive(&mut self, node: Node) -> bool {
        match &mut self.network {
            Network::Shared(shared, _) => u16::try_from(node).is_ok_and(|lid| shared.is_alive(lid)),
            Network::Tcp(tcp) => tcp.is_alive(node),
        }
    }

    /// Whether there is a link to that node, whose process has not ended.
    pub(crate) fn is_linked(&mut self, node: Node) -> bool {
        match &mut self.network {
            Network::Shared(shared, _) => u16::try_from(node).is_ok_and(|lid| shared.is_linked(lid)),
            Network::Tcp(tcp) => tcp.is_linked(node),
        }
    }

    /// Where the last packet that [`Self::try_send`] took ends on the way to its node: a number for
    /// [`Self::has_taken`].
    pub(crate) fn position(&self) -> u64 {
        match &self.network {
            Network::Shared(shared, _) => shared.position(),
            Network::Tcp(_) => 0,
        }
    }

    /// False if a packet to that node, which ends at `position`, waits for the process there to
    /// take it: the process is busy or stopped. As long as [`Self::is_alive`] is true, it may still
    /// take the packet. On the fabric of several hosts true: the fabric does not see that.
    pub(crate) fn has_taken(&self, node: Node, position: u64) -> bool {
        match &self.network {
            Network::Shared(shared, _) => {
                u16::try_from(node).map_or(true, |lid| shared.has_taken(lid, position))
            }
            Network::Tcp(_) => true,
        }
    }

    /// The rounds of the card at a node: in each, it serves every queue pair that has something to
    /// send. The number grows while that card runs. `None` without a link to the node, and on the
    /// fabric of several hosts.
    pub(crate) fn rounds(&self, node: Node) -> Option<u64> {
        match &self.network {
            Network::Shared(shared, _) => u16::try_from(node).ok().and_then(|lid| shared.rounds(lid)),
            Network::Tcp(_) => None,
        }
    }

    /// A round of this card has ended: the cards that send to it see that by [`Self::rounds`].
    pub(crate) fn end_round(&mut self) {
        match &mut self.network {
            Network::Shared(shared, _) => shared.end_round(),
            Network::Tcp(_) => {}
        }
    }

    /// Where the last packet ends that has arrived from a node: a number for
    /// [`Self::has_received`]. It includes all packets that the node sent before a round that
    /// [`Self::rounds`] has shown.
    pub(crate) fn arrived(&mut self, node: Node) -> u64 {
        match &mut self.network {
            Network::Shared(shared, _) => u16::try_from(node).map_or(0, |lid| shared.arrived(lid)),
            Network::Tcp(_) => 0,
        }
    }

    /// Whether [`Self::poll`] has passed on everything from a node before `position`.
    pub(crate) fn has_received(&self, node: Node, position: u64) -> bool {
        match &self.network {
            Network::Shared(shared, _) => {
                u16::try_from(node).map_or(true, |lid| shared.has_received(lid, position))
            }
            Network::Tcp(_) => true,
        }
    }

    /// Passes at most `budget` packets to `sink`. Returns how many. When it returns, the sink is settled.
    pub(crate) fn poll(&mut self, budget: usize, mut sink: impl Sink) -> usize {
        match &mut self.network {
            Network::Shared(shared, _) => shared.poll(budget, &mut sink),
            Network::Tcp(tcp) => tcp.poll(budget, &mut sink),
        }
    }

    /// Whether it has multicast groups. That of several hosts has none.
    pub(crate) fn has_groups(&self) -> bool {
        matches!(self.network, Network::Shared(..))
    }

    /// Makes the card a member of a multicast group.
    ///
    /// # Errors
    /// The system's, if it gives no socket; [`io::ErrorKind::Unsupported`] without groups.
    pub(crate) fn join(&mut self, group: &Group) -> io::Result<()> {
        match &mut self.network {
            Network::Shared(shared, groups) => groups.join(group, shared.lid()),
            Network::Tcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Reverts [`Self::join`].
    pub(crate) fn leave(&mut self, group: &Group) {
        if let Network::Shared(_, groups) = &mut self.network {
            groups.leave(group);
        }
    }

    /// The nodes of the members of a multicast group, this card included if it is one.
    pub(crate) fn members(&self, group: &Group) -> Vec<Node> {
        match self.network {
            Network::Shared(..) => groups::members(group).into_iter().map(Node::from).collect(),
            Network::Tcp(_) => Vec::new(),
        }
    }

    /// Leaves the fabric: every link ends, as if the process had ended, and none is accepted.
    pub(crate) fn close(&mut self) {
        match &mut self.network {
            Network::Shared(shared, _) => shared.close(),
            Network::Tcp(tcp) => tcp.close(),
        }
    }

    /// Announces that the card will sleep: from now on peers wake the sleeper. False if packets are
    /// waiting already.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        match &mut self.network {
            Network::Shared(shared, _) => shared.prepare_sleep(),
            Network::Tcp(tcp) => tcp.prepare_sleep(),
        }
    }

    /// Ends the announcement of [`Self::prepare_sleep`], after sleeping or instead of it.
    pub(crate) fn finish_sleep(&mut self) {
        match &mut self.network {
            Network::Shared(shared, _) => shared.finish_sleep(),
            Network::Tcp(tcp) => tcp.finish_sleep(),
        }
    }
}

#[cfg(test)]
mod tests;

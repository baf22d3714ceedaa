//! The fabric of several hosts: TCP connections between cards that know each other by IPv4 address.
//!
//! Every card listens at an address of its own; what it sends to a peer goes through one connection, which it makes from that
//! address when it is first needed. So a link carries packets one way, and the peer knows their source without trusting a
//! word. A connection that ends is a peer that is gone.
//!
//! There is no authentication, as there is none in RDMA: whoever can reach the port can send packets, which queue pairs take from
//! their peer's address only. It is for networks whose hosts trust each other.

use super::listen;
use super::sleeper::Sleeper;
use super::tcp_link::{Incoming, Outgoing, PushError};
use super::{FORGET_DEAD_AFTER, FabricError, LISTENER, Node, OUTGOING, SendOutcome, node_of_address};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// Most links that others may have to one card: each takes some memory.
const MAX_INCOMING: usize = 1024;

pub(super) struct Tcp {
    address: SocketAddrV4,
    listener: TcpListener,
    outgoing: HashMap<Node, Outgoing>,
    incoming: Vec<Option<Incoming>>,
    /// Nodes that do not answer, and since when.
    dead: HashMap<Node, Instant>,
    sleeper: Arc<Sleeper>,
}

impl Tcp {
    /// Listens at the first address that is free.
    pub(super) fn bind(addresses: &[SocketAddrV4]) -> Result<Self, FabricError> {
        let mut last = io::Error::from(ErrorKind::AddrInUse);
        for &address in addresses {
            match TcpListener::bind(address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    let sleeper = Arc::new(Sleeper::new()?);
                    sleeper.epoll.watch(listener.as_fd(), LISTENER)?;
                    return Ok(Tcp {
                        address,
                        listener,
                        outgoing: HashMap::new(),
                        incoming: Vec::new(),
                        dead: HashMap::new(),
                        sleeper,
                    });
                }
                Err(error) => last = error,
            }
        }
        let list = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(FabricError::NoAddress { variable: listen::LISTEN_VARIABLE, list, last })
    }

    pub(super) fn address(&self) -> Ipv4Addr {
        *self.address.ip()
    }

    pub(super) fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    /// # Safety
    /// As [`super::Fabric::try_send`].
    pub(super) unsafe fn try_send(
        &mut self,
        node: Node,
        header: &[u8],
        payload: &[(*const u8, usize)],
    ) -> SendOutcome {
        if !self.outgoing.contains_key(&node) && !self.connect(node) {
            return SendOutcome::Unreachable;
        }
        let Some(link) = self.outgoing.get_mut(&node) else { return SendOutcome::Unreachable };
        // SAFETY: the caller's.
        match unsafe { link.push(header, payload) } {
            Ok(()) => SendOutcome::Sent,
            Err(PushError::Full) => SendOutcome::Full,
            Err(PushError::Broken) => {
                self.forget(node);
                SendOutcome::Unreachable
            }
        }
    }

    pub(super) fn is_full(&self, node: Node) -> bool {
        self.outgoing.get(&node).is_some_and(Outgoing::is_full)
    }

    pub(super) fn is_alive(&mut self, node: Node) -> bool {
        match self.outgoing.get(&node) {
            Some(link) if link.is_closed() => {
                self.forget(node);
                false
            }
            Some(_) => true,
            None => !self.is_dead(node),
        }
    }

    fn is_dead(&mut self, node: Node) -> bool {
        if self.dead.get(&node).is_some_and(|since| since.elapsed() > FORGET_DEAD_AFTER) {
            self.dead.remove(&node);
        }
        self.dead.contains_key(&node)
    }

    fn forget(&mut self, node: Node) {
        self.outgoing.remove(&node);
        self.dead.insert(node, Instant::now());
    }

    /// Begins a connection. False where nobody can be there.
    fn connect(&mut self, node: Node) -> bool {
        let address = Ipv4Addr::from(node);
        let own = node_of_address(self.address());
        if node_of_address(address) == 0 || node == own || self.is_dead(node) {
            return false;
        }
        let peer = SocketAddrV4::new(address, self.address.port());
        let begun = Outgoing::connect(self.address, peer, own).and_then(|link| {
            self.sleeper.epoll.watch_changes(link.as_fd(), OUTGOING | u64::from(node))?;
            Ok(link)
        });
        match begun {
            Ok(link) => {
                self.outgoing.insert(node, link);
                true
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "no card can be reached");
                self.dead.insert(node, Instant::now());
                false
            }
        }
    }

    pub(super) fn poll(
        &mut self,
        budget: usize,
        mut take: impl FnMut(Node, &[u8], [(*const u8, usize); 2]),
    ) -> usize {
        self.look_at_sockets();
        let mut taken = 0;
        for place in &mut self.incoming {
            let Some(link) = place else { continue };
            // Fair between links: none gets more than its share of a call.
            match link.poll((budget - taken).min(16), &mut take) {
                Ok(count) => {
                    taken += count;
                    if link.is_finished() {
                        tracing::debug!(node = link.source(), "a peer is gone");
                        *place = None;
                    }
                }
                Err(malformed) => {
                    tracing::warn!(node = link.source(), reason = malformed.0, "a link is closed");
                    *place = None;
                }
            }
            if taken == budget {
                break;
            }
        }
        taken
    }

    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        // What is on the sockets ends the sleep by itself.
        let empty = !self.incoming.iter().flatten().any(Incoming::has_packet);
        if !empty {
            self.finish_sleep();
        }
        empty
    }

    pub(super) fn finish_sleep(&mut self) {
        self.sleeper.woke();
    }

    fn look_at_sockets(&mut self) {
        for key in self.sleeper.epoll.ready() {
            match key {
                LISTENER => self.accept(),
                key if key & OUTGOING != 0 => {
                    let node = key as Node;
                    if self.outgoing.get_mut(&node).is_some_and(|link| !link.look()) {
                        self.forget(node);
                    }
                }
                key => {
                    let Some(place) = self.incoming.get_mut(key as usize) else { continue };
                    let Some(Err(error)) = place.as_mut().map(Incoming::fill) else { continue };
                    tracing::warn!(%error, "a link is refused");
                    *place = None;
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let (socket, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "the fabric cannot accept links");
                    return;
                }
            };
            let index = self.incoming.iter().position(Option::is_none).unwrap_or(self.incoming.len());
            if index >= MAX_INCOMING {
                tracing::warn!(%from, "{MAX_INCOMING} links are here, which is the limit: one more is refused");
                continue;
            }
            let link = Incoming::new(socket, from).and_then(|link| {
                self.sleeper.epoll.watch(link.as_fd(), index as u64)?;
                Ok(link)
            });
            match link {
                Ok(link) => {
                    if index == self.incoming.len() {
                        self.incoming.push(None);
                    }
                    self.incoming[index] = Some(link);
                }
                Err(error) => tracing::warn!(%from, %error, "a link is refused"),
            }
        }
    }
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;

//! The fabric of several hosts: TCP connections between cards that know each other by IPv4 address.
//!
//! Every card listens at an address of its own. It sends to a peer through one connection, which it
//! makes from that address for the first packet. So a link carries packets one way, and the kernel
//! vouches for their source. The end of a connection means that the peer has ended.
//!
//! There is no authentication, as there is none in RDMA: any process that reaches the port can send
//! packets. Queue pairs accept them from their peer's address only. Use it on networks whose hosts
//! trust each other.

use super::error::FabricError;
use super::listen;
use super::node::{Node, node_of_address};
use super::packet::{Part, SendOutcome};
use super::peers::{LISTENER, OUTGOING, Peers, free_slot};
use super::sleeper::Sleeper;
use super::tcp_link::{Incoming, Outgoing, PushError};
use crate::os::socket;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Most incoming links of a card. Each takes a receive buffer.
const MAX_INCOMING: usize = 1024;

/// A card's access to the fabric. Used by one thread at a time.
pub(super) struct Tcp {
    address: SocketAddrV4,
    listener: TcpListener,
    outgoing: Peers<Node, Outgoing>,
    incoming: Vec<Option<Incoming>>,
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
                        outgoing: Peers::new(),
                        incoming: Vec::new(),
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
    pub(super) unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[Part]) -> SendOutcome {
        if !self.outgoing.links.contains_key(&node) && !self.connect(node) {
            return SendOutcome::Unreachable;
        }
        let Some(link) = self.outgoing.links.get_mut(&node) else { return SendOutcome::Unreachable };
        // SAFETY: the caller's.
        match unsafe { link.push(header, payload) } {
            Ok(()) => SendOutcome::Sent,
            Err(PushError::Full) => SendOutcome::Full,
            Err(PushError::Broken) => {
                self.outgoing.mark_dead(node);
                SendOutcome::Unreachable
            }
        }
    }

    pub(super) fn is_full(&self, node: Node) -> bool {
        self.outgoing.links.get(&node).is_some_and(Outgoing::is_full)
    }

    pub(super) fn is_alive(&mut self, node: Node) -> bool {
        self.outgoing.is_alive(node, Outgoing::is_closed)
    }

    /// Starts to connect. False if no card can be at that node.
    fn connect(&mut self, node: Node) -> bool {
        let address = Ipv4Addr::from(node);
        let own = node_of_address(self.address());
        if node_of_address(address) == 0 || node == own || self.outgoing.is_dead(node) {
            return false;
        }
        let peer = SocketAddrV4::new(address, self.address.port());
        let connecting = Outgoing::connect(self.address, peer, own).and_then(|link| {
            self.sleeper.epoll.watch_changes(link.as_fd(), OUTGOING | u64::from(node))?;
            Ok(link)
        });
        match connecting {
            Ok(link) => {
                self.outgoing.links.insert(node, link);
                true
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "no card can be reached");
                self.outgoing.mark_dead(node);
                false
            }
        }
    }

    pub(super) fn poll(&mut self, budget: usize, mut take: impl FnMut(Node, &[u8], [Part; 2])) -> usize {
        self.poll_sockets();
        let mut taken = 0;
        for place in &mut self.incoming {
            let Some(link) = place else { continue };
            // Fairness: no link delivers more than 16 packets in one call.
            match link.poll((budget - taken).min(16), &mut take) {
                Ok(count) => {
                    taken += count;
                    if link.is_finished() {
                        tracing::debug!(node = link.source(), "the process of a peer has ended");
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

    /// As [`super::Fabric::close`].
    pub(super) fn close(&mut self) {
        socket::refuse_connections(self.listener.as_fd());
        self.outgoing.links.clear();
        self.incoming.clear();
    }

    pub(super) fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        // Data on a socket ends the sleep by itself.
        let empty = !self.incoming.iter().flatten().any(Incoming::has_packet);
        if !empty {
            self.finish_sleep();
        }
        empty
    }

    pub(super) fn finish_sleep(&mut self) {
        self.sleeper.woke();
    }

    fn poll_sockets(&mut self) {
        for key in self.sleeper.epoll.ready() {
            match key {
                LISTENER => self.accept(),
                key if key & OUTGOING != 0 => {
                    let node = key as Node;
                    if self.outgoing.links.get_mut(&node).is_some_and(|link| !link.handle_socket()) {
                        self.outgoing.mark_dead(node);
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
            if self.incoming.iter().flatten().count() >= MAX_INCOMING {
                tracing::warn!(%from, "{MAX_INCOMING} links exist, which is the limit: another is refused");
                continue;
            }
            let index = free_slot(&mut self.incoming);
            let link = Incoming::new(socket, from).and_then(|link| {
                self.sleeper.epoll.watch(link.as_fd(), index as u64)?;
                Ok(link)
            });
            match link {
                Ok(link) => self.incoming[index] = Some(link),
                Err(error) => tracing::warn!(%from, %error, "a link is refused"),
            }
        }
    }
}

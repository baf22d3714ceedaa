//! The fabric of several hosts: TCP connections between cards that know each other by IPv4 address and number.
//!
//! The cards of an address have different numbers: card n listens n above the address's base port, which no other process
//! can do meanwhile. A card sends to a peer through one connection, which it makes from its own address for the first
//! packet. A link therefore carries packets one way, and the kernel reports its source. The end of a connection means
//! that the peer has ended; a card that takes its number later is reached by a connection of its own.
//!
//! Addresses do not identify a process: any user of a host can connect from its addresses. Both cards
//! therefore prove a key that the job shares, for these two addresses and the listener's port, before any packet passes
//! ([`gdsync_auth`] documents its guarantees). A card then names its number, which it can only choose among those of its
//! address. Connections without a proof are few and short-lived. Packets themselves are neither authenticated nor
//! encrypted.

use super::error::FabricError;
use super::frame::Greeting;
use super::held::Held;
use super::names;
use super::network::Network;
use super::packet::{Node, PayloadPart, SendOutcome, Sink, address_of, is_unicast, node, number_of};
use super::peers::{
    ACCEPT_BUDGET, LISTENER, OUTGOING, OtherSpeed, Peers, RoundRobin, Speeds, UNPROVEN, WAKE, free_slot,
};
use super::sleeper::Sleeper;
use super::tcp_handshake::{Accepting, PACKETS, Route};
use super::tcp_link::{Incoming, Outgoing, PushError};
use crate::os::socket;
use crate::speed::Speed;
use gdsync_auth::{Key, Limits, Unproven};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of incoming links of a card. Each has a receive buffer.
const MAX_INCOMING: usize = 1024;

/// A card's access to the fabric, used by one thread at a time.
pub(super) struct Tcp {
    /// The address, and the base port.
    base: SocketAddrV4,
    number: u16,
    listener: Held<TcpListener>,
    key: Key,
    outgoing: Peers<Outgoing>,
    /// Destinations of the outgoing links that cannot take packets yet.
    connecting: Vec<Node>,
    /// Connections that have not proven the key.
    unproven: Unproven<Ipv4Addr, Accepting>,
    /// True if a connection was refused: further ones are logged at a lower level, as any host can make them.
    refused: bool,
    incoming: Vec<Option<Incoming>>,
    round_robin: RoundRobin,
    speeds: Speeds,
    sleeper: Arc<Sleeper>,
}

impl Tcp {
    /// Claims a free number at an address and a base port. The seed determines where the search starts.
    ///
    /// # Errors
    /// [`FabricError`].
    pub(super) fn bind(
        base: SocketAddrV4,
        seed: u32,
        key: Key,
        speed: Speed,
        limits: Limits,
    ) -> Result<Self, FabricError> {
        let no_port = |last| FabricError::NoPort { address: base, last };
        let claimed = names::first_free(seed, |number| listen(base, number)).map_err(no_port)?;
        let (number, listener) = claimed.ok_or_else(|| no_port(ErrorKind::AddrInUse.into()))?;
        let sleeper = Arc::new(Sleeper::new(true)?);
        sleeper.epoll.watch(listener.as_fd(), LISTENER)?;
        Ok(Tcp {
            base,
            number,
            listener,
            key,
            outgoing: Peers::new(),
            connecting: Vec::new(),
            unproven: Unproven::new(limits),
            refused: false,
            incoming: Vec::new(),
            round_robin: RoundRobin::default(),
            speeds: Speeds::new(speed),
            sleeper,
        })
    }

    fn greeting(&self) -> Greeting {
        Greeting { node: node(Some(*self.base.ip()), self.number), speed: self.speeds.own }
    }

    /// Begins to connect. Returns false if no card can have that node.
    fn connect(&mut self, node: Node) -> bool {
        let (Some(address), Some(number)) = (address_of(node), number_of(node)) else { return false };
        let greeting = self.greeting();
        if !is_unicast(address) || node == greeting.node || self.outgoing.is_dead(node) {
            return false;
        }
        let peer = at(SocketAddrV4::new(address, self.base.port()), number);
        let route = Route { own: *self.base.ip(), peer, key: self.key.clone(), speed: self.speeds.own };
        let connecting = Outgoing::connect(route, greeting).and_then(|link| {
            self.sleeper.epoll.watch_changes(link.as_fd(), OUTGOING | node)?;
            Ok(link)
        });
        match connecting {
            Ok(link) => {
                self.outgoing.links.insert(node, link);
                self.connecting.push(node);
                true
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "no card can be reached");
                self.outgoing.mark_dead(node);
                false
            }
        }
    }

    fn poll_sockets(&mut self) {
        for key in self.sleeper.epoll.ready() {
            match key {
                LISTENER => self.accept(),
                WAKE => {}
                key if key & OUTGOING != 0 => {
                    let node = key & !OUTGOING;
                    if self.outgoing.links.get_mut(&node).is_some_and(|link| !link.handle_socket()) {
                        self.drop_link(node);
                    }
                }
                key if key & UNPROVEN != 0 => self.advance_proof(key & !UNPROVEN),
                key => self.read(key as usize),
            }
        }
    }

    fn read(&mut self, index: usize) {
        let greeting = self.greeting();
        let Some(place) = self.incoming.get_mut(index) else { return };
        let Some(link) = place else { return };
        if let Err(error) = link.fill() {
            tracing::warn!(%error, "a link is refused");
            *place = None;
        } else if link.greeted.is_some_and(|(node, speed)| !self.speeds.admits(node, speed)) {
            link.refuse(greeting);
            *place = None;
        }
    }

    /// Gives up the link to a node that has closed it.
    fn drop_link(&mut self, node: Node) {
        if let Some(speed) = self.outgoing.links.get_mut(&node).and_then(Outgoing::peer_speed) {
            self.speeds.admits(node, speed);
        }
        self.outgoing.mark_dead(node);
    }

    /// Does the work that no socket announces: retries connections, and ends those that take too long.
    fn maintain(&mut self, now: Instant) {
        let late = self.unproven.expire(now);
        if late > 0 {
            tracing::debug!(late, "connections were closed that had not proven the key in time");
        }
        for node in std::mem::take(&mut self.connecting) {
            let Some(link) = self.outgoing.links.get_mut(&node) else { continue };
            let epoll = &self.sleeper.epoll;
            match link.maintain(now, |socket| epoll.watch_changes(socket, OUTGOING | node)) {
                Ok(true) => self.connecting.push(node),
                Ok(false) => {}
                Err(_) => self.outgoing.mark_dead(node),
            }
        }
    }

    fn accept(&mut self) {
        // Bounded, as any host can connect all the time.
        for _ in 0..ACCEPT_BUDGET {
            let accepted = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) => return self.refuse(&"any host", &error),
            };
            let from = accepted.1;
            if let Err(error) = self.accept_unproven(accepted) {
                self.refuse(&from.ip(), &error);
            }
        }
    }

    /// Accepts a connection, which must prove the key.
    fn accept_unproven(&mut self, accepted: (TcpStream, SocketAddr)) -> io::Result<()> {
        let accepting =
            Accepting::new(accepted, at(self.base, self.number), PACKETS, &self.key, self.speeds.own)?;
        let admitted = self.unproven.admit(accepting.from, accepting, Instant::now());
        let number =
            admitted.map_err(|_| io::Error::other("too many connections have not proven the key"))?;
        let Some(accepting) = self.unproven.get_mut(number) else { return Ok(()) };
        self.sleeper.epoll.watch(accepting.as_fd(), UNPROVEN | number).inspect_err(|_| {
            self.unproven.take(number);
        })
    }

    /// Advances a connection that has not proven the key.
    fn advance_proof(&mut self, number: u64) {
        let Some(accepting) = self.unproven.get_mut(number) else { return };
        let proven = accepting.advance();
        if matches!(proven, Ok(false)) {
            return;
        }
        let Some(accepting) = self.unproven.take(number) else { return };
        let from = accepting.from;
        if let Err(error) = proven {
            self.refuse(&from, &error);
        } else if let Err(error) = self.add_incoming(accepting) {
            tracing::warn!(%from, %error, "a link is refused");
        }
    }

    /// Makes a link of a connection that has proven the key.
    fn add_incoming(&mut self, accepting: Accepting) -> io::Result<()> {
        if self.incoming.iter().flatten().count() >= MAX_INCOMING {
            return Err(io::Error::other(format!("{MAX_INCOMING} links exist, which is the limit")));
        }
        let (index, from) = (free_slot(&mut self.incoming), accepting.from);
        self.sleeper.epoll.rename(accepting.as_fd(), index as u64)?;
        self.incoming[index] = Some(Incoming::over(accepting.into_socket(), from));
        Ok(())
    }

    fn refuse(&mut self, from: &dyn fmt::Display, error: &dyn fmt::Display) {
        if std::mem::replace(&mut self.refused, true) {
            tracing::debug!(%from, %error, "a connection is refused");
        } else {
            tracing::warn!(%from, %error, "a connection is refused; further ones are logged as debug messages");
        }
    }
}

/// Returns where the card with a number listens.
fn at(base: SocketAddrV4, number: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*base.ip(), base.port().saturating_add(number))
}

/// Takes a number at an address. `None` if another process listens there.
fn listen(base: SocketAddrV4, number: u16) -> io::Result<Option<Held<TcpListener>>> {
    match TcpListener::bind(at(base, number)) {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Some(Held::new(listener)))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

impl Network for Tcp {
    fn number(&self) -> u16 {
        self.number
    }

    fn ipv4(&self) -> Option<Ipv4Addr> {
        Some(*self.base.ip())
    }

    fn speed(&self) -> Speed {
        self.speeds.own
    }

    fn take_refused(&mut self) -> Vec<OtherSpeed> {
        self.speeds.take_refused()
    }

    fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[PayloadPart]) -> SendOutcome {
        if !self.outgoing.links.contains_key(&node) && !self.connect(node) {
            return SendOutcome::Unreachable;
        }
        let Some(link) = self.outgoing.links.get_mut(&node) else { return SendOutcome::Unreachable };
        // SAFETY: guaranteed by the caller.
        match unsafe { link.push(header, payload) } {
            Ok(()) => SendOutcome::Sent,
            Err(PushError::Full) => SendOutcome::Full,
            Err(PushError::Unreadable(gone)) => SendOutcome::Unreadable(gone),
            Err(PushError::Broken) => {
                self.drop_link(node);
                SendOutcome::Unreachable
            }
        }
    }

    fn is_full(&self, node: Node, _: usize, _: usize) -> bool {
        self.outgoing.links.get(&node).is_some_and(Outgoing::is_full)
    }

    fn is_alive(&mut self, node: Node) -> bool {
        self.outgoing.is_alive(node, Outgoing::is_closed)
    }

    fn is_linked(&mut self, node: Node) -> bool {
        self.is_alive(node) && self.outgoing.links.contains_key(&node)
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        self.poll_sockets();
        if !self.connecting.is_empty() || !self.unproven.is_empty() {
            self.maintain(Instant::now());
        }
        self.round_robin.poll(&mut self.incoming, budget, |link, share| match link.poll(share, sink) {
            Ok(count) if link.is_finished() => {
                tracing::debug!(node = ?link.greeted, "the process of a peer has ended");
                (count, false)
            }
            Ok(count) => (count, true),
            Err(malformed) => {
                tracing::warn!(node = ?link.greeted, reason = malformed.0, "a link is closed");
                (0, false)
            }
        })
    }

    fn close(&mut self) {
        socket::shut_down(self.listener.as_fd());
        self.outgoing.links.clear();
        self.connecting.clear();
        self.incoming.clear();
        self.unproven.clear();
    }

    fn prepare_sleep(&mut self) -> bool {
        self.sleeper.announce();
        // Data on a socket ends the sleep anyway.
        let empty = !self.incoming.iter().flatten().any(Incoming::has_packet);
        if !empty {
            self.cancel_sleep();
        }
        empty
    }

    fn cancel_sleep(&mut self) {
        self.sleeper.cancel();
    }

    fn finish_sleep(&mut self) {
        self.sleeper.withdraw();
    }

    #[cfg(test)]
    fn sockets(&self) -> Vec<std::os::fd::RawFd> {
        use std::os::fd::AsRawFd;
        let links = self.outgoing.links.values().map(Outgoing::as_fd);
        let links = links.chain(self.incoming.iter().flatten().map(Incoming::as_fd));
        links.chain([self.listener.as_fd()]).map(|socket| socket.as_raw_fd()).collect()
    }

    #[cfg(test)]
    fn unproven(&self) -> usize {
        self.unproven.len()
    }
}

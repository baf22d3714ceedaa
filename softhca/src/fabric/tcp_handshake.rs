//! Connections between two cards over TCP, until both cards have proven the key.

use super::held::Held;
use crate::os::socket;
use crate::speed::Speed;
use gdsync_auth::{Exchange, ExchangeError, Key, Limits};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Time limit without an answer of the other host while data is in flight, at hardware's timer speed.
const SILENCE: Duration = Duration::from_secs(10);
/// Time limit for a peer's proof of the key: its process may be busy.
const PROOF_TIME: Duration = Duration::from_secs(10);
/// Time before a connection that the peer closed for lack of room is retried.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// What a connection is for: packets from one card to another.
pub(super) const PACKETS: &str = "packets of software cards 2";

/// The context of a proof: its purpose, and the addresses, which both sides know from the connection. A proof for one card,
/// which has a port of its own, is useless with another.
pub(super) fn proof_context(purpose: &str, connector: Ipv4Addr, listener: SocketAddrV4) -> Vec<u8> {
    let mut context = purpose.as_bytes().to_vec();
    context.extend(connector.octets());
    context.extend(listener.ip().octets());
    context.extend(listener.port().to_be_bytes());
    context
}

/// Limits of connections that have not proven the key: all cards of a host may connect at the same time.
pub(super) fn limits() -> Limits {
    Limits { most: 128, of_source: 64, ..Limits::default() }
}

/// The addresses and the key of a link that is being made.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) own: Ipv4Addr,
    pub(super) peer: SocketAddrV4,
    pub(super) key: Key,
    pub(super) speed: Speed,
}

impl Route {
    /// Begins to connect from the card's own address, by which the peer identifies the card.
    fn connect(&self) -> io::Result<(Held<TcpStream>, Exchange)> {
        let socket = Held::new(socket::connect_tcp(self.own, self.peer)?);
        socket.set_nodelay(true)?;
        socket::limit_silence(&socket, self.speed.of(SILENCE))?;
        let exchange = Exchange::connecting(&self.key, &proof_context(PACKETS, self.own, self.peer))?;
        Ok((socket, exchange))
    }
}

/// The state of a link that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Proven,
    /// Events of the socket announce further work.
    Waiting,
    /// The connection is to be retried after a while.
    Closed,
}

/// The connecting side.
pub(super) struct Connecting {
    route: Route,
    exchange: Exchange,
    since: Instant,
    retry_at: Option<Instant>,
}

impl Connecting {
    pub(super) fn start(route: Route) -> io::Result<(Held<TcpStream>, Self)> {
        let (socket, exchange) = route.connect()?;
        Ok((socket, Connecting { route, exchange, since: Instant::now(), retry_at: None }))
    }

    /// Does what is possible without waiting.
    pub(super) fn advance(&mut self, mut socket: &TcpStream) -> Result<Progress, ExchangeError> {
        if self.retry_at.is_some() {
            return Ok(Progress::Closed);
        }
        // Until the connection is established, it takes no bytes.
        let limit = |exchange: &Exchange| if exchange.is_sending() { CONNECT_TIME } else { PROOF_TIME };
        match self.exchange.advance(&mut socket) {
            Ok(true) => Ok(Progress::Proven),
            Ok(false) if self.since.elapsed() < limit(&self.exchange) => Ok(Progress::Waiting),
            Ok(false) => Err(io::Error::from(ErrorKind::TimedOut).into()),
            Err(ExchangeError::Closed) if self.since.elapsed() < PROOF_TIME => {
                self.retry_at = Some(Instant::now() + RETRY_AFTER);
                Ok(Progress::Closed)
            }
            Err(error) => {
                if matches!(error, ExchangeError::OtherKey) {
                    let peer = self.route.peer;
                    tracing::warn!(
                        %peer,
                        "a card has another key: give all cards of the job the same SOFTHCA_KEY_FILE"
                    );
                }
                Err(error)
            }
        }
    }

    pub(super) fn retry(&mut self, now: Instant) -> io::Result<Option<Held<TcpStream>>> {
        if self.retry_at.is_none_or(|retry_at| now < retry_at) {
            return Ok(None);
        }
        let (socket, exchange) = self.route.connect()?;
        (self.exchange, self.retry_at) = (exchange, None);
        Ok(Some(socket))
    }
}

/// The listening side.
pub(super) struct Accepting {
    socket: Held<TcpStream>,
    /// The address that the connection comes from.
    pub(super) from: Ipv4Addr,
    exchange: Exchange,
}

impl Accepting {
    pub(super) fn new(
        (socket, from): (TcpStream, SocketAddr),
        own: SocketAddrV4,
        purpose: &str,
        key: &Key,
        speed: Speed,
    ) -> io::Result<Self> {
        let socket = Held::new(socket);
        let SocketAddr::V4(from) = from else { return Err(io::Error::other("not an IPv4 peer")) };
        let from = *from.ip();
        socket.set_nonblocking(true)?;
        socket::limit_silence(&socket, speed.of(SILENCE))?;
        let exchange = Exchange::accepting(key, &proof_context(purpose, from, own))?;
        Ok(Accepting { socket, from, exchange })
    }

    /// Returns whether the connection is proven.
    pub(super) fn advance(&mut self) -> Result<bool, ExchangeError> {
        self.exchange.advance(&mut &*self.socket)
    }

    pub(super) fn socket(&self) -> &Held<TcpStream> {
        &self.socket
    }

    pub(super) fn into_socket(self) -> Held<TcpStream> {
        self.socket
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

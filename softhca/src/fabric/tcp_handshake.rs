//! Connections between two cards over TCP, until both cards have proven the key.

use super::packet::{Node, node_of_address};
use crate::os::socket;
use crate::speed::Speed;
use gdsync_auth::{Exchange, ExchangeError, Key};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Time limit without an answer of the other host while data is in flight, at hardware's timer speed.
const SILENCE: Duration = Duration::from_secs(10);
/// Time limit for a peer's proof of the key: its process may be busy.
const PROOF_TIME: Duration = Duration::from_secs(10);
/// Time before a connection that the peer closed for lack of room is retried.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// The purpose of a proof: packets from one card to another. Both cards know the addresses from the
/// connection, so a proof for one card is useless with another.
pub(super) fn proof_context(connector: Node, listener: Node, port: u16) -> Vec<u8> {
    let mut context = b"packets of software cards 1".to_vec();
    context.extend(connector.to_be_bytes());
    context.extend(listener.to_be_bytes());
    context.extend(port.to_be_bytes());
    context
}

/// The addresses and the key of a link that is being made.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) own: SocketAddrV4,
    pub(super) peer: SocketAddrV4,
    pub(super) key: Key,
    pub(super) speed: Speed,
}

impl Route {
    /// Begins to connect from the card's own address, by which the peer identifies the card.
    fn connect(&self) -> io::Result<(TcpStream, Exchange)> {
        let socket = socket::connect_tcp(*self.own.ip(), self.peer)?;
        socket.set_nodelay(true)?;
        socket::limit_silence(&socket, self.speed.of(SILENCE))?;
        let [own, peer] = [self.own, self.peer].map(|address| node_of_address(*address.ip()));
        let exchange = Exchange::connecting(&self.key, &proof_context(own, peer, self.peer.port()))?;
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
    pub(super) fn start(route: Route) -> io::Result<(TcpStream, Self)> {
        let (socket, exchange) = route.connect()?;
        Ok((socket, Connecting { route, exchange, since: Instant::now(), retry_at: None }))
    }

    /// Does what is possible without waiting.
    pub(super) fn advance(&mut self, socket: &mut TcpStream) -> Result<Progress, ExchangeError> {
        if self.retry_at.is_some() {
            return Ok(Progress::Closed);
        }
        // Until the connection is established, it takes no bytes.
        let limit = |exchange: &Exchange| if exchange.is_sending() { CONNECT_TIME } else { PROOF_TIME };
        match self.exchange.advance(socket) {
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

    pub(super) fn retry(&mut self, now: Instant) -> io::Result<Option<TcpStream>> {
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
    socket: TcpStream,
    /// The node that the connection comes from.
    pub(super) from: Node,
    exchange: Exchange,
}

impl Accepting {
    pub(super) fn new(
        socket: TcpStream,
        from: SocketAddr,
        own: SocketAddrV4,
        key: &Key,
        speed: Speed,
    ) -> io::Result<Self> {
        let SocketAddr::V4(from) = from else { return Err(io::Error::other("not an IPv4 peer")) };
        let from = node_of_address(*from.ip());
        socket.set_nonblocking(true)?;
        socket::limit_silence(&socket, speed.of(SILENCE))?;
        let exchange =
            Exchange::accepting(key, &proof_context(from, node_of_address(*own.ip()), own.port()))?;
        Ok(Accepting { socket, from, exchange })
    }

    /// Returns whether the connection is proven.
    pub(super) fn advance(&mut self) -> Result<bool, ExchangeError> {
        self.exchange.advance(&mut self.socket)
    }

    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

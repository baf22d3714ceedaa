//! One-way links between two cards over TCP.

use super::frame::{self, GREETING_BYTES, LENGTHS, MAX_FRAME};
use super::node::{Node, node_of_address};
use super::packet::Part;
use crate::os::memory::append;
use crate::os::{socket, wait};
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Longest time until a connection is established.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longest time without an answer of the other host while data is in flight.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest time until a new connection has sent its greeting.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Bytes of the receive buffer: several frames.
const BUFFER: usize = 4 * MAX_FRAME;

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// No room now; epoll reports when there is.
    Full,
    /// The link has ended.
    Broken,
}

/// The sending end.
pub(super) struct Outgoing {
    socket: TcpStream,
    /// Bytes that the socket has not taken yet. They precede all further ones.
    pending: Vec<u8>,
    /// Deadline of the connection; `None` once it is established.
    connecting: Option<Instant>,
    closed: bool,
}

impl Outgoing {
    /// Starts to connect from the card's own address, by which the peer identifies the card.
    pub(super) fn connect(own: SocketAddrV4, peer: SocketAddrV4, node: Node) -> io::Result<Self> {
        let socket = socket::connect_tcp(*own.ip(), peer)?;
        socket.set_nodelay(true)?;
        socket::limit_silence(&socket, SILENCE)?;
        let pending = frame::greeting(node).to_vec();
        Ok(Outgoing { socket, pending, connecting: Some(Instant::now() + CONNECT_TIME), closed: false })
    }

    /// # Safety
    /// Each payload part is readable memory.
    pub(super) unsafe fn push(&mut self, header: &[u8], payload: &[Part]) -> Result<(), PushError> {
        let length = payload.iter().map(|part| part.1).sum();
        let lengths = frame::lengths(header.len(), length).ok_or(PushError::Broken)?;
        self.flush()?;
        let mut parts = Vec::with_capacity(payload.len() + 2);
        parts.extend([(lengths.as_ptr(), LENGTHS), (header.as_ptr(), header.len())]);
        parts.extend_from_slice(payload);
        // SAFETY: the caller's, and two slices that outlive the call.
        let sent = match unsafe { socket::send_parts(self.socket.as_fd(), &parts) } {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(PushError::Full),
            Err(error) => return Err(self.broken(&error)),
        };
        let mut skip = sent;
        for (at, count) in parts {
            let from = skip.min(count);
            skip -= from;
            // SAFETY: as above; the range lies in the part.
            unsafe { append(&mut self.pending, at.wrapping_add(from), count - from) };
        }
        Ok(())
    }

    /// Sends the pending bytes.
    pub(super) fn flush(&mut self) -> Result<(), PushError> {
        if self.closed {
            return Err(PushError::Broken);
        }
        while !self.pending.is_empty() {
            let part = [(self.pending.as_ptr(), self.pending.len())];
            // SAFETY: a buffer that outlives the call.
            match unsafe { socket::send_parts(self.socket.as_fd(), &part) } {
                Ok(sent) => {
                    self.connecting = None;
                    self.pending.drain(..sent);
                }
                Err(error) if is_in_progress(&error) => {
                    if self.connecting.is_some_and(|until| until <= Instant::now()) {
                        return Err(self.broken(&ErrorKind::TimedOut.into()));
                    }
                    return Err(PushError::Full);
                }
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn broken(&mut self, error: &io::Error) -> PushError {
        tracing::debug!(%error, "a link to another card has ended");
        self.closed = true;
        PushError::Broken
    }

    /// Whether a packet would find no room.
    pub(super) fn is_full(&self) -> bool {
        !self.closed && !self.pending.is_empty()
    }

    /// Handles an event of the socket. Peers send nothing there, so the connection is established,
    /// has room again, or has ended. False if the link has ended.
    pub(super) fn handle_socket(&mut self) -> bool {
        if self.connecting.is_none() && !wait::drain(self.socket.as_fd()) {
            self.closed = true;
        }
        self.flush() != Err(PushError::Broken)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the connection is being established, or the socket is full.
fn is_in_progress(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The rest of the last packet, as far as the socket has room.
        let _ = self.flush();
    }
}

/// The receiving end.
pub(super) struct Incoming {
    socket: TcpStream,
    /// Source address of the connection. The greeting must name it.
    address: Node,
    greeted: bool,
    since: Instant,
    /// Received bytes: `start..end` is not taken yet.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    closed: bool,
}

impl Incoming {
    pub(super) fn new(socket: TcpStream, from: SocketAddr) -> io::Result<Self> {
        let SocketAddr::V4(from) = from else { return Err(io::Error::other("not an IPv4 peer")) };
        socket.set_nonblocking(true)?;
        socket::limit_silence(&socket, SILENCE)?;
        let buffer = vec![0; BUFFER].into_boxed_slice();
        let address = node_of_address(*from.ip());
        let since = Instant::now();
        Ok(Incoming { socket, address, greeted: false, since, buffer, start: 0, end: 0, closed: false })
    }

    /// Reads from the socket as much as the buffer has room for.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        if self.start > BUFFER / 2 || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end < BUFFER && !self.closed {
            match self.socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.closed = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Packets received before the failure are still delivered.
                Err(_) => self.closed = true,
            }
        }
        self.greet().map_err(|frame::Malformed(reason)| io::Error::other(reason))
    }

    fn greet(&mut self) -> Result<(), frame::Malformed> {
        if self.greeted {
            return Ok(());
        }
        if let Some(node) = frame::parse_greeting(&self.buffer[self.start..self.end])? {
            if node != self.address {
                return Err(frame::Malformed("a card claims another address than it comes from"));
            }
            self.greeted = true;
            self.start += GREETING_BYTES;
        }
        Ok(())
    }

    /// The node that sends.
    pub(super) fn source(&self) -> Node {
        self.address
    }

    /// Passes at most `budget` complete packets to `take`. Returns how many.
    pub(super) fn poll(
        &mut self,
        budget: usize,
        take: &mut impl FnMut(Node, &[u8], [Part; 2]),
    ) -> Result<usize, frame::Malformed> {
        let mut taken = 0;
        while self.greeted && taken < budget {
            let Some(frame) = frame::parse(&self.buffer[self.start..self.end])? else { break };
            let none = (frame.payload.as_ptr(), 0);
            take(self.address, frame.header, [(frame.payload.as_ptr(), frame.payload.len()), none]);
            self.start += frame.len();
            taken += 1;
        }
        Ok(taken)
    }

    /// Whether a complete packet, or a malformed one, waits.
    pub(super) fn has_packet(&self) -> bool {
        self.greeted && !matches!(frame::parse(&self.buffer[self.start..self.end]), Ok(None))
    }

    /// Whether the peer has ended and all its packets are taken, or the greeting did not arrive in
    /// time.
    pub(super) fn is_finished(&self) -> bool {
        (self.closed && !self.has_packet()) || (!self.greeted && self.since.elapsed() > GREETING_TIME)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

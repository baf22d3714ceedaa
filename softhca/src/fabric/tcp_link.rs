//! One-way links between two cards over TCP.

use super::Node;
use super::frame::{self, GREETING_BYTES, LENGTHS, MAX_FRAME};
use super::sys;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long a connection may take to come about.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// How long data may be on its way without a sign of the other host.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a stranger may take to say who it is.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Bytes of what has come and is not taken yet: room for a frame behind another.
const BUFFER: usize = 4 * MAX_FRAME;

/// A packet did not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// No room now: the socket says when there is.
    Full,
    /// The link is of no use any more.
    Broken,
}

/// The sending end.
pub(super) struct Outgoing {
    socket: TcpStream,
    /// What the socket has not taken yet, before anything else may be sent.
    pending: Vec<u8>,
    /// Until when the connection must have come about; none once it has.
    connecting: Option<Instant>,
    closed: bool,
}

impl Outgoing {
    /// Begins to connect, from the card's own address: by it the peer knows who sends.
    pub(super) fn connect(own: SocketAddrV4, peer: SocketAddrV4, node: Node) -> io::Result<Self> {
        let socket = sys::connect_tcp(*own.ip(), peer)?;
        socket.set_nodelay(true)?;
        sys::limit_silence(&socket, SILENCE)?;
        let pending = frame::greeting(node).to_vec();
        Ok(Outgoing { socket, pending, connecting: Some(Instant::now() + CONNECT_TIME), closed: false })
    }

    /// # Safety
    /// Each payload part is readable memory.
    pub(super) unsafe fn push(
        &mut self,
        header: &[u8],
        payload: &[(*const u8, usize)],
    ) -> Result<(), PushError> {
        let length = payload.iter().map(|part| part.1).sum();
        let lengths = frame::lengths(header.len(), length).ok_or(PushError::Broken)?;
        self.flush()?;
        let mut parts = Vec::with_capacity(payload.len() + 2);
        parts.extend([(lengths.as_ptr(), LENGTHS), (header.as_ptr(), header.len())]);
        parts.extend_from_slice(payload);
        // SAFETY: the caller's, and two slices that live through the call.
        let sent = match unsafe { sys::send_parts(self.socket.as_fd(), &parts) } {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(PushError::Full),
            Err(error) => return Err(self.broken(&error)),
        };
        let mut skip = sent;
        for (at, count) in parts {
            let from = skip.min(count);
            skip -= from;
            // SAFETY: as above; the range lies in the part.
            unsafe { sys::append(&mut self.pending, at.wrapping_add(from), count - from) };
        }
        Ok(())
    }

    /// Sends what is pending.
    pub(super) fn flush(&mut self) -> Result<(), PushError> {
        if self.closed {
            return Err(PushError::Broken);
        }
        while !self.pending.is_empty() {
            let part = [(self.pending.as_ptr(), self.pending.len())];
            // SAFETY: a buffer that lives through the call.
            match unsafe { sys::send_parts(self.socket.as_fd(), &part) } {
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

    /// Something is on the socket. Peers say nothing there, so it is the end, or its connection has come about. False where the
    /// link is of no use any more.
    pub(super) fn look(&mut self) -> bool {
        if self.connecting.is_none() && !sys::drain(self.socket.as_fd()) {
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

/// A connection is under way, or the socket is full.
fn is_in_progress(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // What is left of the last packet, as far as there is room for it.
        let _ = self.flush();
    }
}

/// The receiving end.
pub(super) struct Incoming {
    socket: TcpStream,
    /// The address that it comes from: by it the greeting is checked.
    address: Node,
    greeted: bool,
    since: Instant,
    /// What has come; taken up to `start`, filled up to `end`.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    closed: bool,
}

impl Incoming {
    pub(super) fn new(socket: TcpStream, from: SocketAddr) -> io::Result<Self> {
        let SocketAddr::V4(from) = from else { return Err(io::Error::other("not an IPv4 peer")) };
        socket.set_nonblocking(true)?;
        sys::limit_silence(&socket, SILENCE)?;
        let buffer = vec![0; BUFFER].into_boxed_slice();
        let address = super::node_of_address(*from.ip());
        let since = Instant::now();
        Ok(Incoming { socket, address, greeted: false, since, buffer, start: 0, end: 0, closed: false })
    }

    /// Takes from the socket what there is room for.
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
                // What came before it broke is still delivered.
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

    /// Hands over packets that have come whole, at most `budget`.
    pub(super) fn poll(
        &mut self,
        budget: usize,
        take: &mut impl FnMut(Node, &[u8], [(*const u8, usize); 2]),
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

    /// Whether a whole packet, or one that makes no sense, waits to be taken.
    pub(super) fn has_packet(&self) -> bool {
        self.greeted && !matches!(frame::parse(&self.buffer[self.start..self.end]), Ok(None))
    }

    /// The sender is gone and everything it sent has been taken; or a stranger does not say who it is.
    pub(super) fn is_finished(&self) -> bool {
        (self.closed && !self.has_packet()) || (!self.greeted && self.since.elapsed() > GREETING_TIME)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

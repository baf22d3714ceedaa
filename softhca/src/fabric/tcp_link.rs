//! One-way links between two cards over TCP.

use super::frame::{self, GREETING_BYTES, Greeting, MAX_FRAME};
use super::held::Held;
use super::packet::{Node, PayloadPart, Sink, Use, address_of, number_of};
use super::tcp_handshake::{Connecting, Progress, Route};
use crate::os::host::{self, Gone};
use crate::speed::Speed;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Time limit for the greeting of a proven connection.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Bytes of the receive buffer: several frames.
const BUFFER: usize = 4 * MAX_FRAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// There is no room; epoll reports when there is.
    Full,
    Broken,
    /// The program has unmapped a part of the payload.
    Unreadable(Gone),
}

pub(super) struct Outgoing {
    socket: Held<TcpStream>,
    /// Bytes that the socket has not taken yet. They precede all further ones.
    pending: Vec<u8>,
    /// The handshake, until the link takes packets.
    connecting: Option<Connecting>,
    /// The beginning of the peer's answer.
    answer: Vec<u8>,
    closed: bool,
}

impl Outgoing {
    pub(super) fn connect(route: Route, greeting: Greeting) -> io::Result<Self> {
        let (socket, connecting) = Connecting::start(route)?;
        let pending = greeting.bytes().to_vec();
        Ok(Outgoing { socket, pending, connecting: Some(connecting), answer: Vec::new(), closed: false })
    }

    /// Continues the proof of the key. Nothing else is sent before both cards have proven it.
    fn join(&mut self) -> Result<(), PushError> {
        let Some(connecting) = &mut self.connecting else { return Ok(()) };
        match connecting.advance(&self.socket) {
            Ok(Progress::Proven) => {
                self.connecting = None;
                Ok(())
            }
            Ok(Progress::Waiting | Progress::Closed) => Err(PushError::Full),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Does the work that no event of the socket announces. Returns whether the link still cannot take
    /// packets. `watch` watches a new socket.
    pub(super) fn maintain(
        &mut self,
        now: Instant,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<bool, PushError> {
        let Some(connecting) = &mut self.connecting else { return Ok(false) };
        let again = connecting.retry(now).and_then(|socket| {
            let Some(socket) = socket else { return Ok(()) };
            watch(socket.as_fd())?;
            self.socket = socket;
            Ok(())
        });
        again.map_err(|error| self.broken(&error))?;
        match self.flush() {
            Err(PushError::Broken) => Err(PushError::Broken),
            _ => Ok(self.connecting.is_some()),
        }
    }

    /// # Safety
    /// Each payload part was readable when it was registered.
    pub(super) unsafe fn push(&mut self, header: &[u8], payload: &[PayloadPart]) -> Result<(), PushError> {
        let length = payload.iter().map(|part| part.1).sum();
        let lengths = frame::lengths(header.len(), length).ok_or(PushError::Broken)?;
        self.flush()?;
        self.pending.extend_from_slice(&lengths);
        self.pending.extend_from_slice(header);
        for &(from, count) in payload {
            let start = self.pending.len();
            self.pending.resize(start + count, 0);
            // SAFETY: guaranteed by the caller.
            if let Err(gone) = unsafe { host::read(from, &mut self.pending[start..]) } {
                self.pending.clear();
                return Err(PushError::Unreadable(gone));
            }
        }
        // What the socket does not take now leaves before the next packet.
        match self.flush() {
            Err(PushError::Full) => Ok(()),
            flushed => flushed,
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), PushError> {
        if self.closed {
            return Err(PushError::Broken);
        }
        self.join()?;
        while !self.pending.is_empty() {
            match (&*self.socket).write(&self.pending) {
                Ok(sent) => drop(self.pending.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(PushError::Full),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn broken(&mut self, error: &dyn fmt::Display) -> PushError {
        tracing::debug!(%error, "a link to another card has ended");
        self.closed = true;
        PushError::Broken
    }

    /// Returns whether a packet finds no room. The greeting is pending until the link takes packets.
    pub(super) fn is_full(&self) -> bool {
        !self.closed && !self.pending.is_empty()
    }

    /// Handles an event of the socket. After its proof a peer sends only the reason for a refusal, so the
    /// link has made progress, has room again, or has ended. Returns false if it has ended.
    pub(super) fn handle_socket(&mut self) -> bool {
        let outcome = self.flush();
        if self.connecting.is_none() && !self.read_answer() {
            self.closed = true;
        }
        !self.closed && outcome != Err(PushError::Broken)
    }

    /// Reads the peer's answer. Returns false if the peer has closed the link.
    fn read_answer(&mut self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match (&*self.socket).read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    let kept = count.min(GREETING_BYTES - self.answer.len());
                    self.answer.extend_from_slice(&bytes[..kept]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns the peer's speed if it is the reason of a refusal.
    pub(super) fn peer_speed(&mut self) -> Option<Speed> {
        if self.connecting.is_none() {
            self.read_answer();
        }
        frame::parse_greeting(&self.answer).ok()?.map(|greeting| greeting.speed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // The rest of the last packet, as far as the socket has room.
        let _ = self.flush();
    }
}

pub(super) struct Incoming {
    socket: Held<TcpStream>,
    /// The connection's source address, which the greeting must repeat.
    from: Ipv4Addr,
    /// The sending card, and its speed, after the greeting.
    pub(super) greeted: Option<(Node, Speed)>,
    since: Instant,
    /// Received bytes: `start..end` is not taken yet.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    closed: bool,
}

impl Incoming {
    /// Makes a link over a connection from that address, which has proven the key.
    pub(super) fn over(socket: Held<TcpStream>, from: Ipv4Addr) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        let since = Instant::now();
        Incoming { socket, from, greeted: None, since, buffer, start: 0, end: 0, closed: false }
    }

    /// Reads from the socket as much as the buffer has room for.
    pub(super) fn fill(&mut self) -> io::Result<()> {
        if self.start > BUFFER / 2 || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end < BUFFER && !self.closed {
            match (&*self.socket).read(&mut self.buffer[self.end..]) {
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
        if self.greeted.is_some() {
            return Ok(());
        }
        if let Some(Greeting { node, speed }) = frame::parse_greeting(&self.buffer[self.start..self.end])? {
            if address_of(node) != Some(self.from) || number_of(node).is_none() {
                return Err(frame::Malformed(
                    "a card claims another address than it comes from, or no number of one",
                ));
            }
            self.greeted = Some((node, speed));
            self.start += GREETING_BYTES;
        }
        Ok(())
    }

    /// Tells the peer the required speed before the link is dropped.
    pub(super) fn refuse(&mut self, greeting: Greeting) {
        // The peer may have ended.
        let _ = (&*self.socket).write(&greeting.bytes());
    }

    /// Passes at most `budget` complete packets to `sink`, and returns their number.
    pub(super) fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> Result<usize, frame::Malformed> {
        let mut taken = 0;
        while let Some((source, _)) = self.greeted
            && taken < budget
        {
            let Some(frame) = frame::parse(&self.buffer[self.start..self.end])? else { break };
            let none = (frame.payload.as_ptr(), 0);
            let payload = [(frame.payload.as_ptr(), frame.payload.len()), none];
            if sink.take(source, frame.header, payload) == Use::GoesOn {
                sink.settle();
            }
            self.start += frame.len();
            taken += 1;
        }
        Ok(taken)
    }

    #[cfg(test)]
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether a complete or malformed packet waits.
    pub(super) fn has_packet(&self) -> bool {
        self.greeted.is_some() && !matches!(frame::parse(&self.buffer[self.start..self.end]), Ok(None))
    }

    /// Returns whether the peer has ended and all its packets are taken, or the greeting is late.
    pub(super) fn is_finished(&self) -> bool {
        (self.closed && !self.has_packet())
            || (self.greeted.is_none() && self.since.elapsed() > GREETING_TIME)
    }
}

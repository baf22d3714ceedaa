//! One-way links between two cards of a host.

use super::held::Held;
use super::packet::{Node, PayloadPart, Sink, Use};
use super::ring::{Consumer, Corrupt, Packet, Producer, PushError, RING_BYTES};
use crate::os::memory::SharedMemory;
use crate::os::{socket, wait};
use crate::speed::Speed;
use gdsync_auth::own_user;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// First bytes on a link's socket, followed by the number of the sending card; the ring's descriptor is attached.
const GREETING: [u8; 6] = *b"gdsft3";
/// Greeting and source number, big endian.
const GREETING_BYTES: usize = GREETING.len() + 2;

pub(super) struct Outgoing {
    pub(super) ring: Producer,
    socket: Held<UnixStream>,
    /// The receiving process, if the kernel can watch it.
    process: Option<OwnedFd>,
    pub(super) closed: bool,
}

impl Outgoing {
    /// Makes a link over a connection to a process of this user. Only the secrecy of the ring's memory keeps
    /// other users from the packets, so it is created for and sent to such a process only.
    pub(super) fn over(socket: UnixStream, own_number: u16, speed: Speed) -> io::Result<Self> {
        let process = socket::peer_process(&socket)?;
        let (memory, fd) = SharedMemory::create(RING_BYTES)?;
        let ring = Producer::new(memory, speed).map_err(|Corrupt(reason)| io::Error::other(reason))?;
        let mut greeting = [0; GREETING_BYTES];
        greeting[..GREETING.len()].copy_from_slice(&GREETING);
        greeting[GREETING.len()..].copy_from_slice(&own_number.to_be_bytes());
        // A fresh socket has room for a few bytes: it takes all of them or fails.
        if socket::send_with_fd(&socket, &greeting, fd.as_fd())? != GREETING_BYTES {
            return Err(io::Error::other("the greeting was cut short"));
        }
        Ok(Outgoing { ring, socket: Held::new(socket), process, closed: false })
    }

    /// # Safety
    /// As [`Producer::push`].
    pub(super) unsafe fn push(&mut self, header: &[u8], payload: &[PayloadPart]) -> Result<(), PushError> {
        // SAFETY: guaranteed by the caller.
        let wake = unsafe { self.ring.push(header, payload) }?;
        if wake.0 {
            socket::poke(&self.socket);
        }
        Ok(())
    }

    pub(super) fn publish(&mut self) {
        if self.ring.publish().0 {
            socket::poke(&self.socket);
        }
    }

    /// Returns whether the ring has no room. A closed link is not full: no consumer will make room.
    pub(super) fn is_full(&self, header: usize, payload: usize) -> bool {
        !self.closed && self.ring.reserve(header, payload) == Err(PushError::Full)
    }

    /// Reads wake-up bytes. Returns false if the receiving process has ended.
    pub(super) fn drain(&mut self) -> bool {
        self.closed |= !wait::drain(self.socket.as_fd());
        !self.closed
    }

    /// Returns whether the receiving process has ended. Its forked child may keep the socket open.
    pub(super) fn has_ended(&self) -> bool {
        self.closed || self.process.as_ref().is_some_and(|process| wait::is_ready(process.as_fd()))
    }

    /// Returns whether a signal has stopped the receiving process.
    pub(super) fn is_stopped(&self) -> bool {
        socket::is_peer_stopped(&self.socket)
    }

    /// Returns the receiving process; 0 if it is unknown.
    pub(super) fn process(&self) -> u32 {
        socket::peer_id(&self.socket)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

pub(super) struct Incoming {
    socket: Held<UnixStream>,
    /// Source and ring, after the greeting.
    pub(super) greeted: Option<(Node, Consumer)>,
    closed: bool,
}

impl Incoming {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        let user = socket::peer_user(&socket)?;
        if user != own_user() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("a process of user {user} connected"),
            ));
        }
        socket.set_nonblocking(true)?;
        Ok(Incoming { socket: Held::new(socket), greeted: None, closed: false })
    }

    /// The source; 0 before the greeting.
    pub(super) fn source(&self) -> Node {
        self.greeted.as_ref().map_or(0, |(node, _)| *node)
    }

    /// Returns the sending process; 0 if it is unknown.
    pub(super) fn process(&self) -> u32 {
        socket::peer_id(&self.socket)
    }

    /// Handles the greeting, wake-up bytes, or the end of the connection. At the greeting, the link is closed
    /// unless `admits` accepts the card with its speed.
    pub(super) fn handle_socket(
        &mut self,
        own: Speed,
        admits: impl FnOnce(Node, Speed) -> bool,
    ) -> io::Result<()> {
        if self.greeted.is_none() {
            let mut greeting = [0; GREETING_BYTES];
            let (got, fd) = match socket::receive_with_fd(&self.socket, &mut greeting) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                result => result?,
            };
            let Some(fd) = fd.filter(|_| got == GREETING_BYTES && greeting.starts_with(&GREETING)) else {
                return Err(io::Error::other("a stranger connected"));
            };
            let memory = SharedMemory::receive(fd.as_fd(), RING_BYTES)?;
            let (ring, speed) =
                Consumer::new(memory, own).map_err(|Corrupt(reason)| io::Error::other(reason))?;
            let [.., high, low] = greeting;
            let node = Node::from(u16::from_be_bytes([high, low]));
            if !admits(node, speed) {
                self.closed = true;
                return Ok(());
            }
            self.greeted = Some((node, ring));
        }
        self.closed |= !wait::drain(self.socket.as_fd());
        Ok(())
    }

    /// Returns whether the sending process has ended and all its packets are taken.
    pub(super) fn is_finished(&self) -> bool {
        self.closed && self.greeted.as_ref().is_none_or(|(_, ring)| ring.is_empty())
    }

    pub(super) fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> Result<usize, Corrupt> {
        let Some((source, ring)) = &mut self.greeted else { return Ok(0) };
        let (mut taken, mut last) = (0, Use::Over);
        let outcome = loop {
            if taken == budget {
                break Ok(taken);
            }
            let take = |packet: Packet<'_>| {
                last = sink.take(*source, packet.header, packet.payload);
                last
            };
            match ring.pop(take) {
                Ok(None) => break Ok(taken),
                Ok(Some(wake)) => {
                    taken += 1;
                    if wake.0 {
                        socket::poke(&self.socket);
                    }
                }
                Err(corrupt) => break Err(corrupt),
            }
        };
        // Before the producer, or the end of a broken ring, reclaims the bytes.
        if last == Use::GoesOn {
            sink.settle();
            if ring.release().0 {
                socket::poke(&self.socket);
            }
        }
        outcome
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

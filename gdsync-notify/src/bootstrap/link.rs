//! A connection between two processes of a job; every wait has a deadline, where `None` is no limit.

use super::frame::{Frame, Malformed, Reader};
use gdsync_auth::{Exchange, ExchangeError};
use gdsync_sys::local::ready;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A stream socket of either family.
pub(super) trait Socket: Read + Write + AsFd + Send {}

impl Socket for TcpStream {}
impl Socket for UnixStream {}

pub(super) struct Link {
    socket: Box<dyn Socket>,
    /// The exchange of keys, until it is done.
    exchange: Option<Exchange>,
    reader: Reader,
}

/// The reason why a message cannot be sent or received.
#[derive(Debug)]
pub(super) enum LinkError {
    /// The other process has closed it or has ended.
    Closed,
    TimedOut,
    Malformed(Malformed),
    OtherKey,
    Io(io::Error),
}

impl From<ExchangeError> for LinkError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Closed => LinkError::Closed,
            ExchangeError::OtherKey => LinkError::OtherKey,
            ExchangeError::Io(error) => error.into(),
            other => LinkError::Malformed(Malformed(other.to_string())),
        }
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match error.kind() {
            ConnectionReset | ConnectionAborted | BrokenPipe => LinkError::Closed,
            _ => LinkError::Io(error),
        }
    }
}

impl Link {
    /// Uses a non-blocking socket that no other user can reach; `limit` is the longest payload.
    pub(super) fn new(socket: Box<dyn Socket>, limit: usize) -> Self {
        Link { socket, exchange: None, reader: Reader::new(limit) }
    }

    /// As [`Self::new`], over a socket that others can reach, after an exchange of keys.
    pub(super) fn with_exchange(socket: Box<dyn Socket>, exchange: Exchange, limit: usize) -> Self {
        Link { exchange: Some(exchange), ..Link::new(socket, limit) }
    }

    /// Continues the exchange of keys. Returns true once it is done.
    fn prove(&mut self) -> Result<bool, LinkError> {
        if let Some(exchange) = &mut self.exchange {
            if !exchange.advance(&mut *self.socket)? {
                return Ok(false);
            }
            self.exchange = None;
        }
        Ok(true)
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.reader.set_limit(limit);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn send(&mut self, frame: &Frame, deadline: Option<Instant>) -> Result<(), LinkError> {
        while !self.prove()? {
            let sends = self.exchange.as_ref().is_some_and(Exchange::is_sending);
            let events = if sends { libc::POLLOUT } else { libc::POLLIN };
            if !wait(&[(self.fd(), events)], deadline)?[0] {
                return Err(LinkError::TimedOut);
            }
        }
        let bytes = frame.encode();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match self.socket.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !wait(&[(self.fd(), libc::POLLOUT)], deadline)?[0] {
                        return Err(LinkError::TimedOut);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Returns the next frame if it has arrived.
    pub(super) fn try_receive(&mut self) -> Result<Option<Frame>, LinkError> {
        if !self.prove()? {
            return Ok(None);
        }
        loop {
            if let Some(frame) = self.reader.next().map_err(LinkError::Malformed)? {
                return Ok(Some(frame));
            }
            let mut bytes = [0; 1 << 14];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => self.reader.feed(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn receive(&mut self, deadline: Option<Instant>) -> Result<Frame, LinkError> {
        loop {
            if let Some(frame) = self.try_receive()? {
                return Ok(frame);
            }
            // The deadline holds even if bytes keep arriving one by one.
            if !wait(&[(self.fd(), libc::POLLIN)], deadline)?[0] || left(deadline).is_zero() {
                return Err(LinkError::TimedOut);
            }
        }
    }
}

/// Returns the end of a time that begins now; `None` if the clock does not reach it.
pub(super) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Returns the time until a deadline.
pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
}

/// Waits until a file is ready for its events (`POLLIN`, `POLLOUT`) or has failed: true for each such file.
pub(super) fn wait(files: &[(BorrowedFd<'_>, i16)], deadline: Option<Instant>) -> io::Result<Vec<bool>> {
    loop {
        let left = left(deadline);
        let ready = ready(files, left)?;
        if left.is_zero() || ready.contains(&true) {
            return Ok(ready);
        }
    }
}

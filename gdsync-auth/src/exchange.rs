//! The exchange by which both sides of a connection prove the key.
//!
//! | message | from | content |
//! |---|---|---|
//! | hello | the side that connected | magic (8 bytes), its random number (32) |
//! | answer | the side that listened | magic (8), its random number (32), its code (32) |
//! | proof | the side that connected | its code (32) |
//!
//! A code is HMAC-SHA256 under the key over the role of its sender, the context (the purpose, and what else both
//! sides know of the connection), and both random numbers. The side that listens reads exactly these bytes, so what
//! follows them is the connection's own.

use super::key::{CODE_BYTES, Key};
use super::source::fill;
use hmac::Mac;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

/// First bytes of a hello and of an answer. The last one is the version.
const MAGIC: [u8; 8] = *b"gdsauth\x01";
const RANDOM_BYTES: usize = 32;
/// Bytes of a hello, and of an answer before its code.
const OPENING_BYTES: usize = MAGIC.len() + RANDOM_BYTES;

/// The random number of one side.
type Nonce = [u8; RANDOM_BYTES];

/// The roles that codes are bound to.
const CONNECTOR: u8 = b'c';
const LISTENER: u8 = b'l';

/// Why a connection was not proven.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The other side speaks another protocol, or another version of this one.
    #[error("the other side does not speak this version of the exchange of keys")]
    Stranger,
    /// The other side has another key, or means another connection.
    #[error("the other side has another key")]
    OtherKey,
    /// The other side has closed the connection.
    #[error("the other side has closed the connection before it was proven")]
    Closed,
    /// The connection failed.
    #[error("the connection failed before it was proven: {0}")]
    Io(#[from] io::Error),
}

impl ExchangeError {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                ExchangeError::Closed
            }
            _ => ExchangeError::Io(error),
        }
    }
}

/// What is awaited of the other side.
#[derive(Clone, Copy)]
enum Step {
    Hello,
    Answer,
    Proof { theirs: Nonce },
    Nothing,
}

/// One side of an exchange over a connection. It never waits: the caller calls [`Self::advance`] again when the
/// connection is ready.
pub struct Exchange {
    key: Key,
    context: Vec<u8>,
    own: Nonce,
    step: Step,
    /// The part of the awaited message that has arrived.
    incoming: Vec<u8>,
    /// What the connection has not taken yet.
    outgoing: Vec<u8>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awaited = match self.step {
            Step::Hello => "a hello",
            Step::Answer => "an answer",
            Step::Proof { .. } => "a proof",
            Step::Nothing => "nothing",
        };
        write!(f, "Exchange(awaits {awaited})")
    }
}

impl Exchange {
    /// The side that connected. Both sides give the same context: the purpose of the connection, and what both know
    /// of it, such as addresses.
    ///
    /// # Errors
    /// The operating system's, if it gives no random bytes.
    pub fn connecting(key: &Key, context: &[u8]) -> io::Result<Self> {
        let mut exchange = Exchange::awaiting(Step::Answer, key, context)?;
        exchange.outgoing.extend(MAGIC);
        exchange.outgoing.extend(exchange.own);
        Ok(exchange)
    }

    /// The side that listened. Context as [`Self::connecting`].
    ///
    /// # Errors
    /// As [`Self::connecting`].
    pub fn accepting(key: &Key, context: &[u8]) -> io::Result<Self> {
        Exchange::awaiting(Step::Hello, key, context)
    }

    fn awaiting(step: Step, key: &Key, context: &[u8]) -> io::Result<Self> {
        let mut own = [0; RANDOM_BYTES];
        fill(&mut own)?;
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(Exchange { key: key.clone(), context: context.to_vec(), own, step, incoming, outgoing })
    }

    /// Does what is possible without waiting, on a connection that does not block. True once the other side has
    /// proven the key and has been sent the own proof; from then on the connection's bytes are the caller's.
    ///
    /// # Errors
    /// [`ExchangeError`]. The connection is of no use then.
    pub fn advance(&mut self, connection: &mut (impl Read + Write + ?Sized)) -> Result<bool, ExchangeError> {
        loop {
            if !self.flush(connection)? {
                return Ok(false);
            }
            let missing = self.awaited().saturating_sub(self.incoming.len());
            if missing == 0 {
                return Ok(true);
            }
            let mut bytes = [0; OPENING_BYTES + CODE_BYTES];
            match connection.read(&mut bytes[..missing]) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => self.take(&bytes[..count])?,
                Err(error) if is_not_ready(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::of(error)),
            }
        }
    }

    /// Whether bytes wait for the connection to take them.
    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends what is to be sent. Returns whether the connection has taken all of it.
    fn flush(&mut self, connection: &mut (impl Write + ?Sized)) -> Result<bool, ExchangeError> {
        while !self.outgoing.is_empty() {
            match connection.write(&self.outgoing) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if is_not_ready(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::of(error)),
            }
        }
        Ok(true)
    }

    /// Bytes of the awaited message.
    fn awaited(&self) -> usize {
        match self.step {
            Step::Hello => OPENING_BYTES,
            Step::Answer => OPENING_BYTES + CODE_BYTES,
            Step::Proof { .. } => CODE_BYTES,
            Step::Nothing => 0,
        }
    }

    /// Takes bytes of the awaited message, at most as many as are missing. Strangers are refused at their first wrong
    /// byte.
    fn take(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        self.incoming.extend_from_slice(bytes);
        let opens = matches!(self.step, Step::Hello | Step::Answer);
        if opens && self.incoming.iter().zip(MAGIC).any(|(byte, expected)| *byte != expected) {
            return Err(ExchangeError::Stranger);
        }
        if self.incoming.len() < self.awaited() {
            return Ok(());
        }
        let message = std::mem::take(&mut self.incoming);
        match self.step {
            Step::Hello => {
                let theirs = nonce_of(&message)?;
                self.outgoing.extend(MAGIC);
                self.outgoing.extend(self.own);
                self.outgoing.extend(self.code(LISTENER, &theirs, &self.own).finalize().into_bytes());
                self.step = Step::Proof { theirs };
            }
            Step::Answer => {
                let theirs = nonce_of(&message)?;
                let code = message.get(OPENING_BYTES..).unwrap_or_default();
                self.verify(LISTENER, &self.own, &theirs, code)?;
                self.outgoing.extend(self.code(CONNECTOR, &self.own, &theirs).finalize().into_bytes());
                self.step = Step::Nothing;
            }
            Step::Proof { theirs } => {
                self.verify(CONNECTOR, &theirs, &self.own, &message)?;
                self.step = Step::Nothing;
            }
            Step::Nothing => {}
        }
        Ok(())
    }

    /// The code of a role for the random numbers of the connector and of the listener.
    fn code(&self, role: u8, connector: &Nonce, listener: &Nonce) -> impl Mac + use<> {
        self.key.code(role, &self.context, &[connector, listener])
    }

    /// Compares in constant time.
    fn verify(
        &self,
        role: u8,
        connector: &Nonce,
        listener: &Nonce,
        code: &[u8],
    ) -> Result<(), ExchangeError> {
        self.code(role, connector, listener).verify_slice(code).map_err(|_| ExchangeError::OtherKey)
    }
}

/// The random number in a hello or an answer.
fn nonce_of(message: &[u8]) -> Result<Nonce, ExchangeError> {
    let nonce = message.get(MAGIC.len()..OPENING_BYTES).and_then(|nonce| nonce.try_into().ok());
    nonce.ok_or(ExchangeError::Stranger)
}

/// Whether the connection is being made, or has no bytes or no room now.
fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests;

//! The exchange in which both sides of a connection prove the key.
//!
//! | message | from | content |
//! |---|---|---|
//! | hello | the side that connected | magic (8 bytes), its random number (32) |
//! | answer | the side that listened | magic (8), its random number (32), its code (32) |
//! | proof | the side that connected | its code (32) |
//!
//! A code is HMAC-SHA256 under the key over the sender's role, the context (the purpose, and other facts about the
//! connection that both sides know), and both random numbers. The listener reads exactly these bytes; everything
//! after them belongs to the connection's user.

use super::key::{CODE_BYTES, Key, fill_random};
use hmac::Mac;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};

/// First bytes of a hello and of an answer. The last byte is the version.
const MAGIC: [u8; 8] = *b"gdsauth\x01";
const RANDOM_BYTES: usize = 32;
/// Bytes of a hello, and of an answer before its code.
const OPENING_BYTES: usize = MAGIC.len() + RANDOM_BYTES;

type Nonce = [u8; RANDOM_BYTES];

/// The roles that codes are bound to.
const ROLE_CONNECTOR: u8 = b'c';
const ROLE_LISTENER: u8 = b'l';

/// Reasons why a proof failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The peer speaks another protocol, or another version of this one.
    #[error("the other side does not speak this version of the exchange of keys")]
    Stranger,
    /// The peer has another key, or refers to another connection.
    #[error("the other side has another key")]
    OtherKey,
    /// The peer has closed the connection.
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

#[derive(Clone, Copy)]
enum Step {
    Hello,
    Answer,
    Proof { theirs: Nonce },
    Nothing,
}

/// One side of an exchange over a connection. It never blocks: the caller calls [`Self::advance`] again when the
/// connection is ready.
pub struct Exchange {
    key: Key,
    context: Vec<u8>,
    own: Nonce,
    step: Step,
    /// The received part of the awaited message.
    incoming: Vec<u8>,
    /// Bytes that are not sent yet.
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
    /// Creates the connecting side. Both sides pass the same context: the purpose of the connection, and facts that
    /// both know, such as addresses.
    ///
    /// # Errors
    /// The operating system's, if it returns no random bytes.
    pub fn connecting(key: &Key, context: &[u8]) -> io::Result<Self> {
        let mut exchange = Exchange::awaiting(Step::Answer, key, context)?;
        exchange.outgoing.extend(MAGIC);
        exchange.outgoing.extend(exchange.own);
        Ok(exchange)
    }

    /// Creates the listening side. Context as in [`Self::connecting`].
    ///
    /// # Errors
    /// As [`Self::connecting`].
    pub fn accepting(key: &Key, context: &[u8]) -> io::Result<Self> {
        Exchange::awaiting(Step::Hello, key, context)
    }

    fn awaiting(step: Step, key: &Key, context: &[u8]) -> io::Result<Self> {
        let mut own = [0; RANDOM_BYTES];
        fill_random(&mut own)?;
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(Exchange { key: key.clone(), context: context.to_vec(), own, step, incoming, outgoing })
    }

    /// Makes progress without blocking, on a non-blocking connection. Returns true once the peer has proven the key
    /// and this side's proof is sent; the connection's further bytes are the caller's.
    ///
    /// # Errors
    /// [`ExchangeError`]. The connection is then unusable.
    pub fn advance(&mut self, connection: &mut (impl Read + Write + ?Sized)) -> Result<bool, ExchangeError> {
        loop {
            if !self.flush(connection)? {
                return Ok(false);
            }
            let missing = self.expected_length().saturating_sub(self.incoming.len());
            if missing == 0 {
                return Ok(true);
            }
            let mut bytes = [0; OPENING_BYTES + CODE_BYTES];
            match connection.read(&mut bytes[..missing]) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => self.take(&bytes[..count])?,
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::of(error)),
            }
        }
    }

    /// Returns true if bytes wait to be sent.
    pub fn is_sending(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Sends pending bytes. Returns true if all are sent.
    fn flush(&mut self, connection: &mut (impl Write + ?Sized)) -> Result<bool, ExchangeError> {
        while !self.outgoing.is_empty() {
            match connection.write(&self.outgoing) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if would_block(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::of(error)),
            }
        }
        Ok(true)
    }

    fn expected_length(&self) -> usize {
        match self.step {
            Step::Hello => OPENING_BYTES,
            Step::Answer => OPENING_BYTES + CODE_BYTES,
            Step::Proof { .. } => CODE_BYTES,
            Step::Nothing => 0,
        }
    }

    /// Appends bytes of the awaited message, at most the missing ones. Strangers are rejected at their first wrong
    /// byte.
    fn take(&mut self, bytes: &[u8]) -> Result<(), ExchangeError> {
        self.incoming.extend_from_slice(bytes);
        let opens = matches!(self.step, Step::Hello | Step::Answer);
        if opens && self.incoming.iter().zip(MAGIC).any(|(byte, expected)| *byte != expected) {
            return Err(ExchangeError::Stranger);
        }
        if self.incoming.len() < self.expected_length() {
            return Ok(());
        }
        let message = std::mem::take(&mut self.incoming);
        match self.step {
            Step::Hello => {
                let theirs = nonce_of(&message)?;
                self.outgoing.extend(MAGIC);
                self.outgoing.extend(self.own);
                self.outgoing.extend(self.code(ROLE_LISTENER, &theirs, &self.own).finalize().into_bytes());
                self.step = Step::Proof { theirs };
            }
            Step::Answer => {
                let theirs = nonce_of(&message)?;
                let code = message.get(OPENING_BYTES..).unwrap_or_default();
                self.verify(ROLE_LISTENER, &self.own, &theirs, code)?;
                self.outgoing.extend(self.code(ROLE_CONNECTOR, &self.own, &theirs).finalize().into_bytes());
                self.step = Step::Nothing;
            }
            Step::Proof { theirs } => {
                self.verify(ROLE_CONNECTOR, &theirs, &self.own, &message)?;
                self.step = Step::Nothing;
            }
            Step::Nothing => {}
        }
        Ok(())
    }

    /// Returns a role's code for the random numbers of connector and listener.
    fn code(&self, role: u8, connector: &Nonce, listener: &Nonce) -> impl Mac + use<> {
        self.key.code(role, &self.context, &[connector, listener])
    }

    /// Verifies a code in constant time.
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

/// Returns the random number of a hello or an answer.
fn nonce_of(message: &[u8]) -> Result<Nonce, ExchangeError> {
    let nonce = message.get(MAGIC.len()..OPENING_BYTES).and_then(|nonce| nonce.try_into().ok());
    nonce.ok_or(ExchangeError::Stranger)
}

/// Returns true if the connection is not established yet, or has no bytes or no room.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

#[cfg(test)]
mod tests;

//! Services of other hosts: the question which card at an address serves a port number.
//!
//! Every process with services listens at the base port of the host's addresses, and the kernel gives each question to one
//! of them: so one that is stopped or has ended keeps none from being asked again. The process asks the holder of the
//! port number for the other host. Both hosts prove the key first, as cards do. A process of another user
//! that has the base port keeps other hosts from the services here, and learns nothing.

use super::config;
use super::held::Held;
use super::services::{self, MAX_ANSWER, ServiceCard};
use super::tcp_handshake::{Accepting, limits, proof_context};
use crate::os::socket;
use crate::speed::Speed;
use gdsync_auth::{Exchange, ExchangeError, Key, Unproven};
use gdsync_sys::{local, thread};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// What a connection is for.
const QUESTION: &str = "services of software cards 1";
/// Bytes of a question: port space and number, big endian.
const QUESTION_BYTES: usize = 4;
/// First byte of an answer: whether a process holds the port number. Its cards follow.
const NONE: u8 = 0;
const HELD: u8 = 1;
/// Time limit for the holder of a port number to name its cards.
const HOLDER_TIME: Duration = Duration::from_millis(500);
/// Time limit for the first answer of another host. Then it is asked again, perhaps another process, with twice the time.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// Time before a question is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The listeners of this process for other hosts that ask for its user's services, until this is dropped.
#[derive(Debug)]
pub struct Door(Arc<Vec<Held<TcpListener>>>);

impl Door {
    /// Listens at the base port of this host's addresses. `None` on the fabric of one host, or if another user listens
    /// there.
    ///
    /// # Errors
    /// That of the key, or the system's, if it gives no descriptor or thread.
    pub fn open() -> io::Result<Option<Door>> {
        let addresses = config::addresses_of_host();
        let mut listeners = Vec::new();
        for &address in &addresses {
            match socket::listen_shared(address) {
                Ok(listener) => listeners.push(Held::new(listener)),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    tracing::warn!(%address, "another user listens there: other hosts find no services at this address");
                }
                Err(error) => return Err(error),
            }
        }
        if listeners.is_empty() {
            return Ok(None);
        }
        let key = config::key_for_addresses(&addresses).map_err(io::Error::other)?;
        let (door, host) = (Door(Arc::new(listeners)), config::host());
        let listeners = door.0.clone();
        let body = move || answer_all(&listeners, host, &key);
        thread::start(Builder::new().name("softhca-services".to_owned()), body)?;
        Ok(Some(door))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.iter().for_each(|listener| socket::shut_down(listener.as_fd()));
    }
}

/// Answers questions until the listeners end.
fn answer_all(listeners: &[Held<TcpListener>], host: Option<Ipv4Addr>, key: &Key) {
    let mut asking: Unproven<Ipv4Addr, Asking> = Unproven::new(limits());
    loop {
        asking.expire(Instant::now());
        let left = asking.next_end().map(|end| end.saturating_duration_since(Instant::now()));
        let connections = asking.iter().map(|(_, one)| one.accepting.as_fd());
        let files: Vec<BorrowedFd<'_>> = listeners.iter().map(|one| one.as_fd()).chain(connections).collect();
        // Fails only for want of memory.
        let _ = local::readable(&files, left.unwrap_or(Duration::MAX));
        for listener in listeners {
            match listener.accept() {
                Ok(accepted) => admit(&mut asking, accepted, listener, key),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                    ) => {}
                // It has ended.
                Err(error) if error.kind() == ErrorKind::InvalidInput => return,
                Err(error) => {
                    tracing::warn!(%error, "a question for a service is not taken");
                    std::thread::sleep(ASK_AGAIN);
                }
            }
        }
        let numbers: Vec<u64> = asking.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let question = asking.get_mut(number).map_or(Ok(None), Asking::question);
            match question {
                Ok(None) => continue,
                Ok(Some((space, port))) => {
                    if let Some(asked) = asking.take(number) {
                        asked.answer(services::find(host, space, port, HOLDER_TIME));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a question for a service is refused");
                    asking.take(number);
                }
            }
        }
    }
}

fn admit(
    asking: &mut Unproven<Ipv4Addr, Asking>,
    accepted: (TcpStream, SocketAddr),
    listener: &TcpListener,
    key: &Key,
) {
    let own = match listener.local_addr() {
        Ok(SocketAddr::V4(own)) => own,
        _ => return,
    };
    let accepting = Accepting::new(accepted, own, QUESTION, key, Speed::default());
    let admitted = accepting.map(|accepting| {
        let (from, asked) = (accepting.from, Asking { accepting, question: Vec::new() });
        asking.admit(from, asked, Instant::now()).is_ok()
    });
    if !matches!(admitted, Ok(true)) {
        tracing::debug!(?admitted, "a question for a service is refused: too many wait");
    }
}

/// A connection of another host that asks.
struct Asking {
    accepting: Accepting,
    question: Vec<u8>,
}

impl Asking {
    /// Returns the port space and number that it asks for, once it has proven the key.
    fn question(&mut self) -> Result<Option<(u16, u16)>, ExchangeError> {
        if !self.accepting.advance()? {
            return Ok(None);
        }
        let mut bytes = [0; QUESTION_BYTES];
        let missing = QUESTION_BYTES - self.question.len();
        match (&**self.accepting.socket()).read(&mut bytes[..missing]) {
            Ok(0) => return Err(ExchangeError::Closed),
            Ok(count) => self.question.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let question = self.question.first_chunk::<QUESTION_BYTES>();
        Ok(question.map(|&[a, b, c, d]| (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))))
    }

    /// Answers. Without an answer of the holder there is none, and the other host asks again.
    fn answer(self, found: io::Result<Option<Vec<ServiceCard>>>) {
        let bytes = match found {
            Ok(None) => vec![NONE],
            Ok(Some(cards)) => [&[HELD], &*services::encode_all(&cards)].concat(),
            Err(error) => return tracing::debug!(%error, "the holder of a port number does not answer"),
        };
        // The buffer of a new socket has room for the few bytes. A peer that has gone needs none.
        let _ = (&**self.accepting.socket()).write_all(&bytes);
    }
}

/// Returns the cards of the process at an address of another host that has claimed a port number; `None` if none has.
///
/// # Errors
/// EACCES if the host has another key, ETIMEDOUT if it does not answer in time, or the system's.
pub fn find_service_at(
    address: Ipv4Addr,
    space: u16,
    port: u16,
    patience: Duration,
) -> io::Result<Option<Vec<ServiceCard>>> {
    let addresses = config::addresses().map_err(io::Error::other)?;
    let base = addresses.first().ok_or_else(|| io::Error::from(ErrorKind::AddrNotAvailable))?.port();
    let key = config::key_for_addresses(&addresses).map_err(io::Error::other)?;
    ask_until_answered(SocketAddrV4::new(address, base), &key, (space, port), patience)
}

fn ask_until_answered(
    door: SocketAddrV4,
    key: &Key,
    service: (u16, u16),
    patience: Duration,
) -> io::Result<Option<Vec<ServiceCard>>> {
    let (end, mut time) = (Instant::now() + patience, ANSWER_TIME);
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let answer = ask(door, key, service, left.min(time));
        time = time.saturating_mul(2).min(patience);
        match answer {
            Ok(found) => return Ok(found),
            Err(ExchangeError::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error @ (ExchangeError::OtherKey | ExchangeError::Stranger)) => {
                tracing::warn!(%door, %error, "the services of a host are not found: give all cards of the job the same SOFTHCA_KEY_FILE");
                return Err(io::Error::from_raw_os_error(libc::EACCES));
            }
            Err(ExchangeError::Io(error)) if !is_late(&error) => return Err(error),
            Err(_) if left > ASK_AGAIN => std::thread::sleep(ASK_AGAIN),
            Err(_) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        }
    }
}

/// Returns whether the answer may come if the question is asked again.
fn is_late(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof, WouldBlock};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted | TimedOut | UnexpectedEof | WouldBlock
    )
}

fn ask(
    door: SocketAddrV4,
    key: &Key,
    (space, port): (u16, u16),
    time: Duration,
) -> Result<Option<Vec<ServiceCard>>, ExchangeError> {
    let socket = Held::new(TcpStream::connect_timeout(&door.into(), time)?);
    let SocketAddr::V4(own) = socket.local_addr()? else { return Err(ExchangeError::Stranger) };
    socket.set_read_timeout(Some(time))?;
    socket.set_write_timeout(Some(time))?;
    let mut exchange = Exchange::connecting(key, &proof_context(QUESTION, *own.ip(), door))?;
    let mut connection: &TcpStream = &socket;
    if !exchange.advance(&mut connection)? {
        return Err(io::Error::from(ErrorKind::TimedOut).into());
    }
    connection.write_all(&[space.to_be_bytes(), port.to_be_bytes()].concat())?;
    let mut answer = Vec::new();
    connection.take(1 + MAX_ANSWER).read_to_end(&mut answer)?;
    match answer.split_first() {
        Some((&NONE, [])) => Ok(None),
        Some((&HELD, cards)) => Ok(Some(services::decode_all(cards))),
        _ => Err(ExchangeError::Closed),
    }
}

#[cfg(test)]
mod tests;

//! Services of this host: the cards that serve a port number.
//!
//! The cards of a host share the host's IP addresses, so an address alone does not identify the card that
//! serves a port. The process that binds a port holds an abstract socket name with the port's number, as
//! cards hold their numbers. A process that connects to it receives the nodes of its holder. Processes of
//! other hosts ask at a TCP port.

use super::config;
use super::names::{self, Name};
use super::packet::Node;
use crate::os::wait::Epoll;
use gdsync_auth::own_user;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of cards of a service: more than one process has.
const MAX_CARDS: usize = 64;
/// Bytes of a card in an answer: the link layer, and the node.
const CARD_BYTES: usize = 9;
/// Maximum bytes of an answer.
pub(super) const MAX_ANSWER: u64 = (MAX_CARDS * CARD_BYTES) as u64;
/// Maximum number of requests that one call answers.
const ANSWER_BUDGET: usize = 64;

/// A card that serves a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCard {
    /// True if its port is Ethernet.
    pub is_ethernet: bool,
    /// Its address in the fabric.
    pub node: Node,
}

/// The claims of a process on port numbers of this host.
#[derive(Clone, Debug)]
pub struct Services {
    epoll: Arc<Epoll>,
    /// The host's first address on the fabric of several hosts, and the host of its claims.
    host: Option<Ipv4Addr>,
}

/// A claim on a port number of this host, which ends when this is dropped: no thread that sleeps until a process asks
/// keeps it.
#[derive(Debug)]
pub struct Service {
    name: Name,
    epoll: Arc<Epoll>,
}

/// Returns the name that the holder of a port number has. Loopback addresses may stand for several hosts.
fn name(host: Option<Ipv4Addr>, space: u16, port: u16) -> Vec<u8> {
    let host = host.map(|host| format!("{host}/")).unwrap_or_default();
    format!("gdsync-softhca/{}/{host}service/{space:x}/{port}", own_user()).into_bytes()
}

impl Services {
    /// # Errors
    /// The system's, if it gives no descriptor.
    pub fn new() -> io::Result<Services> {
        Ok(Services { epoll: Arc::new(Epoll::new(false)?), host: config::host() })
    }

    /// The claims of a host on this machine, at which no other host asks.
    #[cfg(test)]
    pub(super) fn at(host: Ipv4Addr) -> Services {
        Services { host: Some(host), ..Services::new().unwrap() }
    }

    /// Claims a port number of a port space. `None` if a process, this one included, has it already.
    ///
    /// # Errors
    /// EAGAIN if the process that had it has given it up, but a program that it is starting still has a copy of its
    /// socket; the system's, if it gives no socket.
    pub fn claim(&self, space: u16, port: u16) -> io::Result<Option<Service>> {
        let wanted = name(self.host, space, port);
        let Some(name) = names::listen(&wanted)? else {
            return if names::is_given_up(&wanted) {
                Err(io::Error::from_raw_os_error(libc::EAGAIN))
            } else {
                Ok(None)
            };
        };
        self.epoll.watch(name.as_fd(), 0)?;
        Ok(Some(Service { name, epoll: self.epoll.clone() }))
    }
}

impl AsFd for Services {
    /// Readable while a process waits for an answer of one of the services.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Service {
    /// Answers the processes that wait for this service's cards. Never blocks.
    pub fn answer(&self, cards: &[ServiceCard]) {
        let bytes = encode_all(cards);
        for _ in 0..ANSWER_BUDGET {
            let Ok((mut socket, _)) = self.name.accept() else { return };
            // The buffer of a new socket has room for the few bytes. A peer that has gone needs none.
            let _ = socket.set_nonblocking(true).and_then(|()| socket.write_all(&bytes));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.epoll.ignore(self.name.as_fd());
    }
}

pub(super) fn encode_all(cards: &[ServiceCard]) -> Vec<u8> {
    cards.iter().take(MAX_CARDS).flat_map(encode).collect()
}

pub(super) fn decode_all(bytes: &[u8]) -> Vec<ServiceCard> {
    bytes.as_chunks().0.iter().map(decode).collect()
}

fn encode(card: &ServiceCard) -> [u8; CARD_BYTES] {
    let mut bytes = [card.is_ethernet.into(); CARD_BYTES];
    bytes[1..].copy_from_slice(&card.node.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8; CARD_BYTES]) -> ServiceCard {
    let [is_ethernet, node @ ..] = *bytes;
    ServiceCard { is_ethernet: is_ethernet != 0, node: Node::from_be_bytes(node) }
}

/// Returns the cards of the process of this host that has claimed a port number; `None` if no process of this user has.
///
/// # Errors
/// ETIMEDOUT if the process does not answer in time, or the system's.
pub fn find_service(space: u16, port: u16, patience: Duration) -> io::Result<Option<Vec<ServiceCard>>> {
    find(config::host(), space, port, patience)
}

/// As [`find_service`], on the host whose first device has that address.
pub(super) fn find(
    host: Option<Ipv4Addr>,
    space: u16,
    port: u16,
    patience: Duration,
) -> io::Result<Option<Vec<ServiceCard>>> {
    let socket = match names::reach(&name(host, space, port)) {
        Ok(socket) => socket,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
    let mut bytes = Vec::new();
    match socket.take(MAX_ANSWER).read_to_end(&mut bytes) {
        Ok(_) => Ok(Some(decode_all(&bytes))),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
        }
        // The process has ended.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port space that no program uses, so that tests do not collide.
    const SPACE: u16 = 0xeee0;
    const CARDS: [ServiceCard; 2] =
        [ServiceCard { is_ethernet: true, node: 0x7f00_0002 }, ServiceCard { is_ethernet: false, node: 9 }];

    #[test]
    fn a_port_is_claimed_once_and_leads_to_its_cards() {
        let (services, port) = (Services::new().unwrap(), std::process::id() as u16);
        let patience = Duration::from_secs(20);
        assert_eq!(find_service(SPACE, port, patience).unwrap(), None);
        let service = services.claim(SPACE, port).unwrap().unwrap();
        assert!(services.claim(SPACE, port).unwrap().is_none());
        assert!(services.claim(SPACE + 1, port).unwrap().is_some(), "another space has its own ports");
        let asked = std::thread::spawn(move || find_service(SPACE, port, patience).unwrap());
        while !asked.is_finished() {
            service.answer(&CARDS);
            std::thread::yield_now();
        }
        assert_eq!(asked.join().unwrap().unwrap(), CARDS);
        drop(service);
        assert_eq!(find_service(SPACE, port, patience).unwrap(), None);
    }

    #[test]
    fn a_port_that_is_given_up_is_free_once_no_program_that_starts_has_its_socket() {
        let (services, port) = (Services::new().unwrap(), std::process::id() as u16);
        let claim = || services.claim(SPACE + 3, port);
        // A thread that sleeps until a process asks does not keep it.
        let sleeping = services.clone();
        std::thread::spawn(move || gdsync_sys::local::readable(&[sleeping], Duration::from_secs(600)));
        for _ in 0..100 {
            drop(claim().unwrap().unwrap());
        }
        let service = claim().unwrap().unwrap();
        let copy = service.name.try_clone().unwrap();
        assert!(claim().unwrap().is_none());
        drop(service);
        assert_eq!(claim().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        let ready = gdsync_sys::local::readable(std::slice::from_ref(&services), Duration::ZERO).unwrap();
        assert_eq!(ready, [false], "no process asks");
        drop(copy);
        assert!(claim().unwrap().is_some());
    }

    #[test]
    fn a_process_that_does_not_answer_ends_the_wait_and_one_that_ends_is_none() {
        let (services, port) = (Services::new().unwrap(), std::process::id() as u16);
        let service = services.claim(SPACE + 2, port).unwrap().unwrap();
        let late = find_service(SPACE + 2, port, Duration::from_millis(1)).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let asked = std::thread::spawn(move || find_service(SPACE + 2, port, Duration::from_secs(60)));
        std::thread::sleep(Duration::from_millis(20));
        drop(service);
        assert!(matches!(asked.join().unwrap(), Ok(None)));
    }
}

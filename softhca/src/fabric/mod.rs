//! The fabric: packets between software cards, in order and without loss, until a process dies.
//!
//! On one host cards find each other by LID, and packets go through shared memory (`shared.rs`); that is what a program gets that
//! asks for nothing. Between hosts they find each other by IPv4 address, which their GIDs end with, and packets go through TCP
//! (`tcp.rs`), where [`LISTEN_VARIABLE`] gives the process addresses.

mod frame;
mod link;
mod listen;
mod ring;
mod shared;
mod sleeper;
mod sys;
mod tcp;
mod tcp_link;

pub use listen::{DEFAULT_PORT, LISTEN_VARIABLE, is_tcp};
pub use ring::{MAX_HEADER, MAX_PAYLOAD};
pub use sleeper::Sleeper;
pub(crate) use sys::{MemoryFile, SharedMemory};

use shared::{LIDS, Shared};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;
use tcp::Tcp;

/// Where a card is: its LID, or its IPv4 address as a number. Those begin behind all LIDs, so that one is never the other; 0
/// is nobody.
pub type Node = u32;

/// The node at an IPv4 address; 0, nobody, where it is one that no host has.
pub(crate) fn node_of_address(address: Ipv4Addr) -> Node {
    let number = u32::from(address);
    if number > u32::from(u16::MAX) { number } else { 0 }
}

/// How long a node that nobody answers at is not asked again.
const FORGET_DEAD_AFTER: Duration = Duration::from_millis(20);
/// Keys of epoll events: incoming links from 0 on, outgoing ones with this bit, and the listener.
const OUTGOING: u64 = 1 << 32;
const LISTENER: u64 = u64::MAX;

/// Why there is no fabric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Every LID is taken.
    #[error("no LID is free: {} software cards are on this host, or abstract sockets are not permitted ({last})", LIDS.len())]
    NoLid {
        /// The last error.
        last: io::Error,
    },
    /// No address that cards may have is free, or of this host.
    #[error(
        "{variable} gives no address that is free: {list} (the last: {last}); a card takes one each: give more of this host's"
    )]
    NoAddress {
        /// The environment variable with the addresses.
        variable: &'static str,
        /// The addresses.
        list: String,
        /// The last error.
        last: io::Error,
    },
    /// The addresses that cards may have make no sense.
    #[error("{variable} makes no sense: {problem}")]
    Addresses {
        /// The environment variable with the addresses.
        variable: &'static str,
        /// What is wrong with them.
        problem: String,
    },
    /// A system call failed.
    #[error("the fabric cannot be set up: {0}")]
    System(#[from] io::Error),
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is on its way.
    Sent,
    /// There is no room now; the fabric wakes its sleeper when there is.
    Full,
    /// No card is there, or its process is gone.
    Unreachable,
}

/// A card's access to the fabric. Used by one thread at a time.
pub struct Fabric {
    network: Network,
}

enum Network {
    Shared(Shared),
    Tcp(Box<Tcp>),
}

impl Fabric {
    /// Claims a LID that is free, or an address, where the environment gives some.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn bind() -> Result<Fabric, FabricError> {
        let variable = LISTEN_VARIABLE;
        let addresses =
            listen::from_environment().map_err(|problem| FabricError::Addresses { variable, problem })?;
        if addresses.is_empty() { Self::on_host() } else { Self::at(&addresses) }
    }

    /// On the fabric of this host.
    pub(crate) fn on_host() -> Result<Fabric, FabricError> {
        Ok(Fabric { network: Network::Shared(Shared::bind()?) })
    }

    /// On the fabric of several hosts, at the first of these addresses that is free.
    pub(crate) fn at(addresses: &[SocketAddrV4]) -> Result<Fabric, FabricError> {
        Ok(Fabric { network: Network::Tcp(Box::new(Tcp::bind(addresses)?)) })
    }

    /// The LID; 0 between hosts.
    pub fn lid(&self) -> u16 {
        match &self.network {
            Network::Shared(shared) => shared.lid(),
            Network::Tcp(_) => 0,
        }
    }

    /// The address; none on the fabric of one host.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        match &self.network {
            Network::Shared(_) => None,
            Network::Tcp(tcp) => Some(tcp.address()),
        }
    }

    /// What the engine's thread sleeps on; usable by other threads, too.
    pub fn sleeper(&self) -> Arc<Sleeper> {
        match &self.network {
            Network::Shared(shared) => shared.sleeper(),
            Network::Tcp(tcp) => tcp.sleeper(),
        }
    }

    /// Sends a packet, without ever blocking.
    ///
    /// # Safety
    /// Each payload part is readable memory. The header is at most [`MAX_HEADER`] bytes, the payload [`MAX_PAYLOAD`].
    pub unsafe fn try_send(
        &mut self,
        node: Node,
        header: &[u8],
        payload: &[(*const u8, usize)],
    ) -> SendOutcome {
        match &mut self.network {
            Network::Shared(shared) => {
                let Ok(lid) = u16::try_from(node) else { return SendOutcome::Unreachable };
                // SAFETY: the caller's.
                unsafe { shared.try_send(lid, header, payload) }
            }
            // SAFETY: the caller's.
            Network::Tcp(tcp) => unsafe { tcp.try_send(node, header, payload) },
        }
    }

    /// Whether [`Self::try_send`] would find no room for a packet of that size: for those who ask before they fetch a payload
    /// at a price. If so, the fabric wakes its sleeper when there is room.
    pub fn is_full(&self, node: Node, header: usize, payload: usize) -> bool {
        match &self.network {
            Network::Shared(shared) => {
                u16::try_from(node).is_ok_and(|lid| shared.is_full(lid, header, payload))
            }
            Network::Tcp(tcp) => tcp.is_full(node),
        }
    }

    /// False where the process there is known to be gone.
    pub fn is_alive(&mut self, node: Node) -> bool {
        match &mut self.network {
            Network::Shared(shared) => u16::try_from(node).is_ok_and(|lid| shared.is_alive(lid)),
            Network::Tcp(tcp) => tcp.is_alive(node),
        }
    }

    /// Hands over at most `budget` packets: source, header, payload in two parts. Returns how many.
    ///
    /// The payload parts are memory that the sender can still write to: copy, do not trust twice.
    pub fn poll(
        &mut self,
        budget: usize,
        mut take: impl FnMut(Node, &[u8], [(*const u8, usize); 2]),
    ) -> usize {
        match &mut self.network {
            Network::Shared(shared) => {
                shared.poll(budget, |lid, header, payload| take(lid.into(), header, payload))
            }
            Network::Tcp(tcp) => tcp.poll(budget, take),
        }
    }

    /// Before sleeping: peers will wake the sleeper from now on. False where packets are there already, or the sleeper was
    /// woken meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        match &mut self.network {
            Network::Shared(shared) => shared.prepare_sleep(),
            Network::Tcp(tcp) => tcp.prepare_sleep(),
        }
    }

    /// After sleeping, or after [`Self::prepare_sleep`] when work was found meanwhile.
    pub fn finish_sleep(&mut self) {
        match &mut self.network {
            Network::Shared(shared) => shared.finish_sleep(),
            Network::Tcp(tcp) => tcp.finish_sleep(),
        }
    }
}

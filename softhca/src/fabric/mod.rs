//! The fabric: packets between software cards, in order and without loss, until a process dies.
//!
//! On one host cards find each other by LID, and packets go through shared memory ([`shared`]); that is what a program gets that
//! asks for nothing.

mod link;
mod ring;
mod shared;
mod sleeper;
mod sys;

pub use ring::{MAX_HEADER, MAX_PAYLOAD};
pub use sleeper::Sleeper;
pub(crate) use sys::SharedMemory;

use shared::{LIDS, Shared};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

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
    shared: Shared,
}
impl Fabric {
    /// Claims a LID that is free.
    ///
    /// # Errors
    /// [`FabricError`].
    pub fn bind() -> Result<Fabric, FabricError> {
        Ok(Fabric { shared: Shared::bind()? })
    }

    /// The LID.
    pub fn lid(&self) -> u16 {
        self.shared.lid()
    }

    /// What the engine's thread sleeps on; usable by other threads, too.
    pub fn sleeper(&self) -> Arc<Sleeper> {
        self.shared.sleeper()
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
        let Ok(lid) = u16::try_from(node) else { return SendOutcome::Unreachable };
        // SAFETY: the caller's.
        unsafe { self.shared.try_send(lid, header, payload) }
    }

    /// Whether [`Self::try_send`] would find no room for a packet of that size: for those who ask before they fetch a payload
    /// at a price. If so, the fabric wakes its sleeper when there is room.
    pub fn is_full(&self, node: Node, header: usize, payload: usize) -> bool {
        u16::try_from(node).is_ok_and(|lid| self.shared.is_full(lid, header, payload))
    }

    /// False where the process there is known to be gone.
    pub fn is_alive(&mut self, node: Node) -> bool {
        u16::try_from(node).is_ok_and(|lid| self.shared.is_alive(lid))
    }

    /// Hands over at most `budget` packets: source, header, payload in two parts. Returns how many.
    ///
    /// The payload parts are memory that the sender can still write to: copy, do not trust twice.
    pub fn poll(
        &mut self,
        budget: usize,
        mut take: impl FnMut(Node, &[u8], [(*const u8, usize); 2]),
    ) -> usize {
        self.shared.poll(budget, |lid, header, payload| take(lid.into(), header, payload))
    }

    /// Before sleeping: peers will wake the sleeper from now on. False where packets are there already, or the sleeper was
    /// woken meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        self.shared.prepare_sleep()
    }

    /// After sleeping, or after [`Self::prepare_sleep`] when work was found meanwhile.
    pub fn finish_sleep(&mut self) {
        self.shared.finish_sleep();
    }
}

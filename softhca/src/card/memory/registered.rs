//! Registered memory.

use super::copy::Place;
use super::mapped::is_mapped;
use super::pieces::Refusal;
use crate::card::config::{Access, InvalidValue, RegionConfig};
use crate::peer_memory::{self, PeerMapping, PeerMemoryError};
use std::sync::Arc;

/// The reason why memory cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The memory is not mapped, or not with the right access.
    #[error("{len} bytes at {addr:#x} are not mapped with the access asked for")]
    Unmapped {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The memory belongs to a peer-memory client, which refuses it.
    #[error("{len} bytes at {addr:#x} are peer memory that cannot be registered, says {client}: {error}")]
    Peer {
        /// The client's name.
        client: String,
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// Its reason.
        error: PeerMemoryError,
    },
}

/// A range of memory that was checked and can be registered.
#[derive(Debug)]
pub(crate) struct Memory {
    addr: u64,
    /// Address by which requests name the first byte.
    iova: u64,
    len: u64,
    pub(crate) access: Access,
    /// The client that reaches it; `None` for host memory.
    peer: Option<Arc<PeerMapping>>,
}

impl Memory {
    /// Checks a range. Peer-memory clients are asked first.
    pub(crate) fn acquire(config: &RegionConfig) -> Result<Self, RegionError> {
        let RegionConfig { addr, len, iova, access, .. } = *config;
        let invalid = |what, value, limit| RegionError::Invalid(InvalidValue { what, value, limit });
        if len == 0 {
            return Err(invalid("length", 0, "at least one byte"));
        }
        let remote_change = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let writable = access.contains(Access::LOCAL_WRITE);
        if access.intersects(remote_change) && !writable {
            let limit = "remote writes and atomics need local write";
            return Err(invalid("access flags", access.bits().into(), limit));
        }
        let is_on_demand = access.contains(Access::ON_DEMAND);
        let peer = match is_on_demand {
            // A page fault leads to host memory.
            true => None,
            false => peer_memory::acquire(addr, len, writable).map_err(|failure| RegionError::Peer {
                client: failure.client,
                addr,
                len,
                error: failure.error,
            })?,
        };
        // The card relies on a client for the bytes, but checks the bounds itself. In an on-demand region each access
        // checks that the memory is mapped.
        let is_there = match peer.is_some() || is_on_demand {
            true => addr.checked_add(len).is_some(),
            false => is_mapped(addr, len, writable),
        };
        if !is_there {
            return Err(RegionError::Unmapped { addr, len });
        }
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if iova.checked_add(len).is_none() {
            return Err(invalid("I/O address", iova, "the region must end below 2^64"));
        }
        Ok(Memory { addr, iova, len, access, peer: peer.map(Arc::new) })
    }

    /// Returns the place of a range, if the region allows that access.
    pub(crate) fn place(&self, addr: u64, len: u64, wanted: Access) -> Result<Place<'_>, Refusal> {
        let inside =
            addr >= self.iova && addr.checked_add(len).is_some_and(|end| end <= self.iova + self.len);
        if !inside {
            return Err(Refusal::Bounds { addr, len, region_addr: self.iova, region_len: self.len });
        }
        if !self.access.contains(wanted) {
            return Err(Refusal::Access { allowed: self.access, wanted });
        }
        let at = self.addr + (addr - self.iova);
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if self.access.contains(Access::ON_DEMAND) && !is_mapped(at, len, wanted.intersects(writes)) {
            return Err(Refusal::Unmapped { addr, len });
        }
        Ok(match &self.peer {
            None => Place::Host(at as *mut u8),
            Some(peer) => Place::Peer(peer, at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_registered_is_refused() {
        let bytes = [0u8; 64];
        let here = bytes.as_ptr() as u64;
        let refused =
            |addr, len, access| Memory::acquire(&RegionConfig::new(1, addr, len, access)).unwrap_err();
        assert!(matches!(refused(here, 0, Access::empty()), RegionError::Invalid(_)));
        assert!(matches!(refused(here, 64, Access::REMOTE_WRITE), RegionError::Invalid(_)));
        for addr in [0, u64::MAX] {
            assert!(matches!(refused(addr, 64, Access::empty()), RegionError::Unmapped { .. }));
        }
    }
}

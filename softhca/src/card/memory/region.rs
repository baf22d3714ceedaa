//! Memory regions and their keys.

use super::copy::Place;
use super::mapped::is_mapped;
use crate::card::config::{Access, InvalidValue, LIMITS, RegionConfig};
use crate::faults::{Faults, Side};
use crate::peer_memory::{self, PeerMapping, PeerMemoryError};
use std::sync::Arc;

/// Why an access by key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("key {key:#x} names no memory region")]
    Key { key: u32 },
    #[error("the memory region belongs to another protection domain ({region:#x}, not {wanted:#x})")]
    Domain { region: u32, wanted: u32 },
    #[error("{len} bytes at {addr:#x} leave the memory region of {region_len} bytes at {region_addr:#x}")]
    Bounds { addr: u64, len: u64, region_addr: u64, region_len: u64 },
    #[error("the memory region allows {allowed:?}, not {wanted:?}")]
    Access { allowed: Access, wanted: Access },
}

/// Why memory cannot be registered.
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
    access: Access,
    /// The client that reaches it; `None` for memory of the host.
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
        let peer = peer_memory::acquire(addr, len, writable).map_err(|failure| RegionError::Peer {
            client: failure.client,
            addr,
            len,
            error: failure.error,
        })?;
        // The card relies on a client for its bytes, but checks the bounds itself.
        let is_there = match &peer {
            Some(_) => addr.checked_add(len).is_some(),
            None => is_mapped(addr, len, writable),
        };
        if !is_there {
            return Err(RegionError::Unmapped { addr, len });
        }
        if iova.checked_add(len).is_none() {
            return Err(invalid("I/O address", iova, "the region must end below 2^64"));
        }
        Ok(Memory { addr, iova, len, access, peer: peer.map(Arc::new) })
    }
}

#[derive(Debug)]
struct Region {
    key: u32,
    pdn: u32,
    memory: Memory,
}

/// All memory regions of a card. A key is an index and a tag that changes when the index is reused,
/// so a stale key names no region.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: Vec<Option<Region>>,
    tags: Vec<u8>,
    free: Vec<usize>,
    /// `None` in tests without a card.
    faults: Option<Faults>,
}

impl Regions {
    /// Registers memory with a key whose last 8 bits are `tag`, if there is one. `None` if the
    /// table is full.
    pub(crate) fn register(&mut self, pdn: u32, memory: Memory, tag: Option<u8>) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() >= LIMITS.max_mr as usize => return None,
            None => {
                self.table.push(None);
                self.tags.push(0x10);
                self.table.len() - 1
            }
        };
        if let Some(tag) = tag {
            self.tags[index] = tag;
        }
        // Keys start with 2, as 0x100 is the key that ends scatter lists.
        let key = (index as u32 + 2) << 8 | u32::from(self.tags[index]);
        self.table[index] = Some(Region { key, pdn, memory });
        Some(key)
    }

    fn index_of(key: u32) -> Option<usize> {
        usize::try_from((key >> 8).checked_sub(2)?).ok()
    }

    fn find(&self, key: u32) -> Option<&Region> {
        self.table.get(Self::index_of(key)?)?.as_ref().filter(|region| region.key == key)
    }

    /// Removes a region. Returns its domain and its memory; `None` if no region has that key.
    pub(crate) fn deregister(&mut self, key: u32) -> Option<(u32, Memory)> {
        let index = Self::index_of(key)?;
        let region = self.table.get_mut(index)?.take_if(|region| region.key == key)?;
        self.tags[index] = self.tags[index].wrapping_add(1);
        self.free.push(index);
        Some((region.pdn, region.memory))
    }

    /// Regions of a card with these faults.
    pub(crate) fn with(faults: Faults) -> Self {
        Regions { faults: Some(faults), ..Regions::default() }
    }

    /// The memory that a key names, if it allows that access.
    pub(crate) fn resolve(
        &self,
        key: u32,
        pdn: u32,
        addr: u64,
        len: u64,
        wanted: Access,
    ) -> Result<Place<'_>, Refusal> {
        if self.faults.as_ref().is_some_and(|faults| faults.is_on() && faults.is_gone(key, side_of(wanted))) {
            return Err(Refusal::Key { key });
        }
        let region = self.find(key).ok_or(Refusal::Key { key })?;
        if region.pdn != pdn {
            return Err(Refusal::Domain { region: region.pdn, wanted: pdn });
        }
        let memory = &region.memory;
        let inside =
            addr >= memory.iova && addr.checked_add(len).is_some_and(|end| end <= memory.iova + memory.len);
        if !inside {
            return Err(Refusal::Bounds { addr, len, region_addr: memory.iova, region_len: memory.len });
        }
        if !memory.access.contains(wanted) {
            return Err(Refusal::Access { allowed: memory.access, wanted });
        }
        let addr = memory.addr + (addr - memory.iova);
        Ok(match &memory.peer {
            None => Place::Host(addr as *mut u8),
            Some(peer) => Place::Peer(peer, addr),
        })
    }
}

/// The side that accesses: only requests of a peer need remote rights.
fn side_of(wanted: Access) -> Side {
    let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if wanted.intersects(remote) { Side::Remote } else { Side::Local }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(
        regions: &mut Regions,
        pdn: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u32, RegionError> {
        let memory = Memory::acquire(&RegionConfig::new(pdn, addr, len, access))?;
        Ok(regions.register(pdn, memory, None).expect("the table is not full"))
    }

    #[test]
    fn keys_open_what_was_registered_and_nothing_else() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        let key = register(&mut regions, 1, addr, 64, Access::REMOTE_READ).unwrap();
        let read = Access::REMOTE_READ;
        assert!(
            regions.resolve(key, 1, addr, 64, read).is_ok()
                && regions.resolve(key, 1, addr + 63, 1, read).is_ok()
        );
        assert!(matches!(regions.resolve(key, 1, addr, 65, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(regions.resolve(key, 1, addr - 1, 2, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(regions.resolve(key, 1, u64::MAX, 2, read), Err(Refusal::Bounds { .. })));
        assert!(matches!(
            regions.resolve(key, 2, addr, 1, read),
            Err(Refusal::Domain { region: 1, wanted: 2 })
        ));
        let write = Access::REMOTE_WRITE;
        assert!(matches!(regions.resolve(key, 1, addr, 1, write), Err(Refusal::Access { .. })));
        assert_eq!(regions.deregister(key).unwrap().0, 1);
        assert!(regions.deregister(key).is_none());
        let again = register(&mut regions, 1, addr, 64, read).unwrap();
        assert_ne!(again, key, "a stale key opens nothing");
        assert!(matches!(regions.resolve(key, 1, addr, 1, read), Err(Refusal::Key { .. })));
        for stale in [0, 0x100, 0x200, u32::MAX] {
            assert!(regions.resolve(stale, 1, addr, 1, read).is_err());
        }
    }

    #[test]
    fn a_region_is_known_by_the_address_that_it_was_given() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        let read = Access::REMOTE_READ;
        let config = RegionConfig::new(1, addr, 64, read);
        for iova in [0, 0x1000, u64::MAX - 64] {
            let memory = Memory::acquire(&RegionConfig { iova, ..config }).unwrap();
            let key = regions.register(1, memory, Some(0xab)).unwrap();
            assert_eq!(key & 0xff, 0xab);
            let place = regions.resolve(key, 1, iova + 60, 4, read).unwrap();
            assert!(matches!(place, Place::Host(at) if at as u64 == addr + 60));
            assert!(matches!(regions.resolve(key, 1, iova + 60, 5, read), Err(Refusal::Bounds { .. })));
            assert!(matches!(regions.resolve(key, 1, addr, 1, read), Err(Refusal::Bounds { .. })));
        }
        let beyond = Memory::acquire(&RegionConfig { iova: u64::MAX - 10, ..config });
        assert!(matches!(beyond, Err(RegionError::Invalid(InvalidValue { what: "I/O address", .. }))));
    }

    #[test]
    fn unacceptable_registrations_are_refused() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        assert!(matches!(register(&mut regions, 1, addr, 0, Access::empty()), Err(RegionError::Invalid(_))));
        assert!(matches!(
            register(&mut regions, 1, addr, 64, Access::REMOTE_WRITE),
            Err(RegionError::Invalid(_))
        ));
        assert!(matches!(
            register(&mut regions, 1, 0, 64, Access::empty()),
            Err(RegionError::Unmapped { .. })
        ));
        assert!(matches!(
            register(&mut regions, 1, u64::MAX, 64, Access::empty()),
            Err(RegionError::Unmapped { .. })
        ));
    }
}

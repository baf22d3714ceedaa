//! Memory regions and their keys.

use super::config::{Access, LIMITS};
use super::dma::{self, Place};
use super::error::CardError;
use crate::faults::{Faults, Side};
use crate::peer_memory::{self, PeerMapping};
use std::sync::Arc;

/// Why an access by key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("key {key:#x} names no memory region")]
    Key { key: u32 },
    #[error("the memory region belongs to another protection domain ({region:#x}, not {wanted:#x})")]
    Domain { region: u32, wanted: u32 },
    #[error("{len} bytes at {addr:#x} leave the memory region of {region_len} bytes at {region_addr:#x}")]
    Bounds { addr: u64, len: u64, region_addr: u64, region_len: u64 },
    #[error("the memory region allows {allowed:?}, not {wanted:?}")]
    Access { allowed: Access, wanted: Access },
}

/// What a registration is about: a range that was looked at, and may be put behind a key.
#[derive(Debug)]
pub(super) struct Memory {
    addr: u64,
    /// Address that requests know its beginning by.
    iova: u64,
    len: u64,
    access: Access,
    /// The client that reaches it, where the CPU does not.
    peer: Option<Arc<PeerMapping>>,
}

impl Memory {
    /// Looks at a range: peer-memory clients are asked first.
    pub(super) fn acquire(addr: u64, len: u64, iova: u64, access: Access) -> Result<Self, CardError> {
        if len == 0 {
            return Err(CardError::Invalid { what: "length", value: 0, limit: "at least one byte" });
        }
        let remote_change = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let writable = access.contains(Access::LOCAL_WRITE);
        if access.intersects(remote_change) && !writable {
            let limit = "remote writes and atomics need local write";
            return Err(CardError::Invalid { what: "access flags", value: access.bits().into(), limit });
        }
        let peer = peer_memory::acquire(addr, len, writable).map_err(|failure| CardError::PeerMemory {
            client: failure.client,
            addr,
            len,
            error: failure.error,
        })?;
        // A client is trusted with its bytes, but not with the arithmetic of bounds.
        let is_there = match &peer {
            Some(_) => addr.checked_add(len).is_some(),
            None => dma::is_mapped(addr, len, writable),
        };
        if !is_there {
            return Err(CardError::Unmapped { addr, len });
        }
        if iova.checked_add(len).is_none() {
            let limit = "the region must end below 2^64";
            return Err(CardError::Invalid { what: "I/O address", value: iova, limit });
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

/// All memory regions of a card. A key is an index and a tag that changes when the index is used again, so that a stale
/// key opens nothing.
#[derive(Debug, Default)]
pub(super) struct Regions {
    table: Vec<Option<Region>>,
    tags: Vec<u8>,
    free: Vec<usize>,
    /// None where nobody asks for faults.
    faults: Option<Faults>,
}

impl Regions {
    /// Puts memory behind a key; its last 8 bits are `tag`, where somebody asks for one.
    pub(super) fn register(&mut self, pdn: u32, memory: Memory, tag: Option<u8>) -> Result<u32, CardError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.table.len() >= LIMITS.max_mr as usize => {
                return Err(CardError::TooMany { what: "memory regions", limit: LIMITS.max_mr });
            }
            None => {
                self.table.push(None);
                self.tags.push(0x10);
                self.table.len() - 1
            }
        };
        if let Some(tag) = tag {
            self.tags[index] = tag;
        }
        // Index 0 is left out of keys: 0x100 is the key that ends scatter lists.
        let key = (index as u32 + 2) << 8 | u32::from(self.tags[index]);
        self.table[index] = Some(Region { key, pdn, memory });
        Ok(key)
    }

    fn index_of(key: u32) -> Option<usize> {
        usize::try_from((key >> 8).checked_sub(2)?).ok()
    }

    fn find(&self, key: u32) -> Option<&Region> {
        self.table.get(Self::index_of(key)?)?.as_ref().filter(|region| region.key == key)
    }

    /// The domain whose region it was, and its memory.
    pub(super) fn deregister(&mut self, key: u32) -> Result<(u32, Memory), CardError> {
        let found = Self::index_of(key).and_then(|index| {
            let region = self.table.get_mut(index)?.take_if(|region| region.key == key)?;
            Some((index, region))
        });
        let (index, region) = found.ok_or(CardError::NotFound { what: "memory region", number: key })?;
        self.tags[index] = self.tags[index].wrapping_add(1);
        self.free.push(index);
        Ok((region.pdn, region.memory))
    }

    /// Regions of a card with those faults.
    pub(super) fn with(faults: Faults) -> Self {
        Regions { faults: Some(faults), ..Regions::default() }
    }

    /// The memory behind a key, if that access is allowed.
    pub(super) fn resolve(
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

/// Whose access it is: only requests of a peer need remote rights.
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
    ) -> Result<u32, CardError> {
        regions.register(pdn, Memory::acquire(addr, len, addr, access)?, None)
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
        assert!(regions.deregister(key).is_err());
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
        for iova in [0, 0x1000, u64::MAX - 64] {
            let memory = Memory::acquire(addr, 64, iova, read).unwrap();
            let key = regions.register(1, memory, Some(0xab)).unwrap();
            assert_eq!(key & 0xff, 0xab);
            let place = regions.resolve(key, 1, iova + 60, 4, read).unwrap();
            assert!(matches!(place, Place::Host(at) if at as u64 == addr + 60));
            assert!(matches!(regions.resolve(key, 1, iova + 60, 5, read), Err(Refusal::Bounds { .. })));
            assert!(matches!(regions.resolve(key, 1, addr, 1, read), Err(Refusal::Bounds { .. })));
        }
        let beyond = Memory::acquire(addr, 64, u64::MAX - 10, read);
        assert!(matches!(beyond, Err(CardError::Invalid { what: "I/O address", .. })));
    }

    #[test]
    fn unacceptable_registrations_are_refused() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        assert!(matches!(
            register(&mut regions, 1, addr, 0, Access::empty()),
            Err(CardError::Invalid { .. })
        ));
        assert!(matches!(
            register(&mut regions, 1, addr, 64, Access::REMOTE_WRITE),
            Err(CardError::Invalid { .. })
        ));
        assert!(matches!(register(&mut regions, 1, 0, 64, Access::empty()), Err(CardError::Unmapped { .. })));
        assert!(matches!(
            register(&mut regions, 1, u64::MAX, 64, Access::empty()),
            Err(CardError::Unmapped { .. })
        ));
    }
}

//! Memory regions and their keys.

use super::config::{Access, LIMITS};
use super::dma;
use super::error::CardError;

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

#[derive(Clone, Copy, Debug)]
struct Region {
    key: u32,
    pdn: u32,
    addr: u64,
    len: u64,
    access: Access,
}

/// All memory regions of a card. A key is an index and a tag that changes when the index is used again, so that a stale
/// key opens nothing.
#[derive(Debug, Default)]
pub(super) struct Regions {
    table: Vec<Option<Region>>,
    tags: Vec<u8>,
    free: Vec<usize>,
}

impl Regions {
    pub(super) fn register(
        &mut self,
        pdn: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<u32, CardError> {
        if len == 0 {
            return Err(CardError::Invalid { what: "length", value: 0, limit: "at least one byte" });
        }
        let remote_change = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_change) && !access.contains(Access::LOCAL_WRITE) {
            let limit = "remote writes and atomics need local write";
            return Err(CardError::Invalid { what: "access flags", value: access.bits().into(), limit });
        }
        if !dma::is_mapped(addr, len, access.contains(Access::LOCAL_WRITE)) {
            return Err(CardError::Unmapped { addr, len });
        }
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
        // Index 0 is left out of keys: 0x100 is the key that ends scatter lists.
        let key = (index as u32 + 2) << 8 | u32::from(self.tags[index]);
        self.table[index] = Some(Region { key, pdn, addr, len, access });
        Ok(key)
    }

    fn index_of(key: u32) -> Option<usize> {
        usize::try_from((key >> 8).checked_sub(2)?).ok()
    }

    fn find(&self, key: u32) -> Option<&Region> {
        self.table.get(Self::index_of(key)?)?.as_ref().filter(|region| region.key == key)
    }

    /// The domain whose region it was.
    pub(super) fn deregister(&mut self, key: u32) -> Result<u32, CardError> {
        let pdn = self.find(key).ok_or(CardError::NotFound { what: "memory region", number: key })?.pdn;
        if let Some(index) = Self::index_of(key) {
            self.table[index] = None;
            self.tags[index] = self.tags[index].wrapping_add(1);
            self.free.push(index);
        }
        Ok(pdn)
    }

    /// The memory behind a key, if that access is allowed.
    pub(super) fn resolve(
        &self,
        key: u32,
        pdn: u32,
        addr: u64,
        len: u64,
        wanted: Access,
    ) -> Result<*mut u8, Refusal> {
        let region = self.find(key).ok_or(Refusal::Key { key })?;
        if region.pdn != pdn {
            return Err(Refusal::Domain { region: region.pdn, wanted: pdn });
        }
        let inside =
            addr >= region.addr && addr.checked_add(len).is_some_and(|end| end <= region.addr + region.len);
        if !inside {
            return Err(Refusal::Bounds { addr, len, region_addr: region.addr, region_len: region.len });
        }
        if !region.access.contains(wanted) {
            return Err(Refusal::Access { allowed: region.access, wanted });
        }
        Ok(addr as *mut u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_open_what_was_registered_and_nothing_else() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        let key = regions.register(1, addr, 64, Access::REMOTE_READ).unwrap();
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
        assert_eq!(regions.deregister(key).unwrap(), 1);
        assert!(regions.deregister(key).is_err());
        let again = regions.register(1, addr, 64, read).unwrap();
        assert_ne!(again, key, "a stale key opens nothing");
        assert!(matches!(regions.resolve(key, 1, addr, 1, read), Err(Refusal::Key { .. })));
        for stale in [0, 0x100, 0x200, u32::MAX] {
            assert!(regions.resolve(stale, 1, addr, 1, read).is_err());
        }
    }

    #[test]
    fn unacceptable_registrations_are_refused() {
        let bytes = [0u8; 64];
        let addr = bytes.as_ptr() as u64;
        let mut regions = Regions::default();
        assert!(matches!(regions.register(1, addr, 0, Access::empty()), Err(CardError::Invalid { .. })));
        assert!(matches!(
            regions.register(1, addr, 64, Access::REMOTE_WRITE),
            Err(CardError::Invalid { .. })
        ));
        assert!(matches!(regions.register(1, 0, 64, Access::empty()), Err(CardError::Unmapped { .. })));
        assert!(matches!(
            regions.register(1, u64::MAX, 64, Access::empty()),
            Err(CardError::Unmapped { .. })
        ));
    }
}

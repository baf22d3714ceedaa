//! Registered memory, and the check that memory is mapped.

use super::copy::Location;
use super::translation::{Pieces, Refusal};
use crate::card::config::{Access, InvalidValue, RegionConfig};
use crate::os::maps::mappings;
use crate::os::memory::KeptPages;
use crate::peer_memory::{self, PeerMapping, PeerMemoryError};
use gdsync_sys::prm::doorbell::UAR_PAGE;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = UAR_PAGE as u64;

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

#[derive(Debug)]
pub(crate) struct Memory {
    addr: u64,
    /// Address by which requests name the first byte.
    iova: u64,
    len: u64,
    pub(crate) access: Access,
    /// The client that reaches it; `None` for host memory.
    peer: Option<Arc<PeerMapping>>,
    /// Where its bytes are now, in order, once the program has moved or unmapped some of them. Empty before.
    extents: Vec<Extent>,
}

/// A part of a region whose bytes are together.
#[derive(Clone, Debug)]
struct Extent {
    at: u64,
    len: u64,
    /// The pages, if the program has unmapped them.
    kept: Option<Arc<KeptPages>>,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { addr, len, access, .. } = self;
        write!(f, "{len} bytes at {addr:#x}, registered with {access:?}")
    }
}

impl Memory {
    /// Checks a range. Peer-memory clients are asked first.
    pub(crate) fn acquire(config: &RegionConfig) -> Result<Self, RegionError> {
        let RegionConfig { addr, len, iova, access, .. } = *config;
        let invalid = |what, value, limit| RegionError::Invalid(InvalidValue { what, value, limit });
        // Device memory, which begins at 0, may be registered without a byte.
        if len == 0 && !access.contains(Access::ZERO_BASED) {
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
        Ok(Memory { addr, iova, len, access, peer: peer.map(Arc::new), extents: Vec::new() })
    }

    /// Returns whether it is host memory with that address of the program.
    pub(crate) fn has(&self, at: u64) -> bool {
        self.ranges().any(|range| range.contains(&at))
    }

    /// Returns the pages of the program's own mappings that the card uses, as ranges. A page fault of an on-demand
    /// region finds what is mapped at that time.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let pages = |at: u64, len: u64| at / PAGE * PAGE..(at + len).next_multiple_of(PAGE);
        let is_used = self.peer.is_none() && !self.access.contains(Access::ON_DEMAND);
        let whole = (is_used && self.extents.is_empty()).then(|| pages(self.addr, self.len));
        let own = self.extents.iter().filter(|extent| extent.kept.is_none());
        whole.into_iter().chain(own.map(move |extent| pages(extent.at, extent.len)))
    }

    /// Follows the pages of the program's mappings in a range to another address. Returns whether it uses some.
    pub(crate) fn moved(&mut self, from: &Range<u64>, to: u64, kept: Option<&Arc<KeptPages>>) -> bool {
        let is_used = self.ranges().any(|range| range.start < from.end && from.start < range.end);
        if !is_used || to == from.start {
            return false;
        }
        if self.extents.is_empty() {
            self.extents.push(Extent { at: self.addr, len: self.len, kept: None });
        }
        for extent in std::mem::take(&mut self.extents) {
            let end = extent.at + extent.len;
            let (first, last) = (extent.at.max(from.start), end.min(from.end));
            if extent.kept.is_some() || first >= last {
                self.extents.push(extent);
                continue;
            }
            let mut push = |at: u64, len: u64, kept: Option<&Arc<KeptPages>>| {
                if len > 0 {
                    self.extents.push(Extent { at, len, kept: kept.cloned() });
                }
            };
            push(extent.at, first - extent.at, None);
            push(to + (first - from.start), last - first, kept);
            push(last, end - last, None);
        }
        true
    }

    /// Returns the pieces of a range, if the region allows that access.
    pub(crate) fn pieces(&self, addr: u64, len: u64, wanted: Access) -> Result<Pieces<'_>, Refusal> {
        let location = self.location(addr, len, wanted)?;
        if self.extents.is_empty() {
            return Ok(Pieces::one(location, len));
        }
        let (mut pieces, mut first) = (Vec::new(), 0);
        let wanted = addr - self.iova..addr - self.iova + len;
        for extent in &self.extents {
            let part = wanted.start.max(first)..wanted.end.min(first + extent.len);
            if part.start < part.end {
                let at = extent.at + (part.start - first);
                pieces.push((Location::Host(at as *mut u8), (part.end - part.start) as usize));
            }
            first += extent.len;
        }
        Ok(Pieces::Many(pieces.into_iter()))
    }

    /// Checks a range and that the region allows that access. Returns its location as registered.
    pub(crate) fn location(&self, addr: u64, len: u64, wanted: Access) -> Result<Location<'_>, Refusal> {
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
            None => Location::Host(at as *mut u8),
            Some(peer) => Location::Peer(peer, at),
        })
    }
}

/// Returns whether the card can reach a range with the access that a registration needs: a peer-memory client has it,
/// or it is mapped.
pub fn is_reachable(addr: u64, len: u64, writable: bool) -> bool {
    match peer_memory::acquire(addr, len, writable) {
        Ok(Some(_)) => addr.checked_add(len).is_some(),
        Ok(None) => is_mapped(addr, len, writable),
        Err(failure) => {
            tracing::warn!(%failure, addr, len, "peer memory that cannot be reached");
            false
        }
    }
}

/// Returns whether a range is mapped with the access that a registration needs. Populates its pages, as pinning would.
pub fn is_mapped(addr: u64, len: u64, writable: bool) -> bool {
    let start = addr / PAGE * PAGE;
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE)) else {
        return false;
    };
    let (Ok(length), Ok(base)) = (usize::try_from(end - start), usize::try_from(start)) else { return false };
    let populate = |advice| {
        // SAFETY: populating changes no content; unmapped ranges are reported, not touched.
        match unsafe { libc::madvise(base as *mut libc::c_void, length, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error()),
        }
    };
    match populate(if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ }) {
        Ok(()) => return true,
        Err(Some(libc::EINVAL)) => {}
        Err(_) => return false,
    }
    // EINVAL has four causes: the range is not writable; it is not readable; the kernel is older than 5.14; or the
    // mapping is a device's, which cannot be populated. The rights in the list of mappings decide.
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    has_rights(&maps, start..end, writable)
}

/// Returns whether `/proc/self/maps` allows reading (and writing) all of a range.
fn has_rights(maps: &str, range: Range<u64>, writable: bool) -> bool {
    let mut left = range.start;
    for (mapping, rest) in mappings(maps).filter(|(mapping, _)| mapping.end > range.start) {
        let allowed = rest.starts_with(if writable { "rw" } else { "r" });
        if mapping.start > left || !allowed {
            return false;
        }
        left = mapping.end;
        if left >= range.end {
            return true;
        }
    }
    left >= range.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory::SharedMemory;

    #[test]
    fn memory_without_rights_is_not_mapped() {
        let maps = "1000-3000 rw-p 0 00:00 0\n3000-4000 r--p 0 00:00 0 [x]\n6000-7000 ---p 0 00:00 0\n7000-8000 rw-p 0";
        assert!(has_rights(maps, 0x1000..0x3000, true) && has_rights(maps, 0x1000..0x4000, false));
        for (range, writable) in [
            (0x1000..0x4000, true),
            (0x0000..0x2000, false),
            (0x3000..0x5000, false),
            (0x5000..0x6000, false),
            (0x6000..0x7000, false),
            (0x6000..0x8000, false),
            (0x7000..0x9000, true),
        ] {
            assert!(!has_rights(maps, range.clone(), writable), "{range:x?}");
        }
        assert!(has_rights(maps, 0x7000..0x8000, true) && !has_rights("rubbish\n-\nx-y z", 1..2, false));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let reserved = unsafe { libc::mmap(std::ptr::null_mut(), UAR_PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(reserved, libc::MAP_FAILED);
        assert!(!is_mapped(reserved as u64, 8, false) && !is_mapped(reserved as u64, 8, true));
        // SAFETY: mapped above, and not used.
        assert_eq!(unsafe { libc::munmap(reserved, UAR_PAGE) }, 0);
    }

    #[test]
    fn only_mapped_memory_is_mapped() {
        let (page, _file) = SharedMemory::create(UAR_PAGE).unwrap();
        let addr = page.base() as u64;
        assert!(is_mapped(addr, 4096, true) && is_mapped(addr + 100, 1, false));
        assert!(!is_mapped(u64::MAX - 10, 20, false) && !is_mapped(0, 4096, false));
        // SAFETY: our own page, not used meanwhile.
        unsafe { libc::mprotect(page.base().cast(), UAR_PAGE, libc::PROT_READ) };
        assert!(is_mapped(addr, 4096, false) && !is_mapped(addr, 4096, true));
    }

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

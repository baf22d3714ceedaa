//! Checks that memory is mapped.

use crate::peer_memory;
use gdsync_sys::prm::doorbell::UAR_PAGE;
use std::io;
use std::ops::Range;

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
    let page = UAR_PAGE as u64;
    let start = addr & !(page - 1);
    let Some(end) = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page)) else {
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

/// Returns whether `/proc/self/maps` (proc_pid_maps(5)) allows reading (and writing) all of a range. Its lines are
/// ordered by address: `first-end rwxp ...`.
fn has_rights(maps: &str, range: Range<u64>, writable: bool) -> bool {
    let mut left = range.start;
    for line in maps.lines() {
        let Some((place, rest)) = line.split_once(' ') else { continue };
        let Some((first, end)) = place.split_once('-') else { continue };
        let number = |text| u64::from_str_radix(text, 16);
        let (Ok(first), Ok(end)) = (number(first), number(end)) else { continue };
        if end <= left {
            continue;
        }
        let allowed = rest.starts_with(if writable { "rw" } else { "r" });
        if first > left || !allowed {
            return false;
        }
        left = end;
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
}

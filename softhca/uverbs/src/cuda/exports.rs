//! GPU memory that this process has exported as files (dma-bufs). The CPU cannot map such a file, so the card
//! reaches the memory by its address in this process.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// Maximum number of exports; beyond it the oldest is forgotten.
const MAX_EXPORTS: usize = 1 << 16;

/// The exports, by device and inode of their files. A duplicate of a descriptor has the same inode, and a new
/// dma-buf has a higher one.
static EXPORTS: Mutex<BTreeMap<(u64, u64), Exported>> = Mutex::new(BTreeMap::new());

fn identity(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the place is valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, &raw mut stat) };
    (result == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Records the memory of a descriptor's file.
pub(crate) fn note(fd: RawFd, addr: u64, len: u64) {
    let Some(identity) = identity(fd) else { return };
    tracing::debug!(fd, addr, len, "GPU memory is exported as a file");
    let mut exports = EXPORTS.lock();
    if exports.len() >= MAX_EXPORTS {
        exports.pop_first();
    }
    exports.insert(identity, Exported { addr, len });
}

/// Returns the memory that this process has exported as the file of a descriptor.
pub(crate) fn exported(fd: RawFd) -> Option<Exported> {
    EXPORTS.lock().get(&identity(fd)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    fn file() -> OwnedFd {
        // SAFETY: the name is a C string, and the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC)) }
    }

    #[test]
    fn a_file_is_known_by_every_descriptor_of_it() {
        let (one, other) = (file(), file());
        let memory = Exported { addr: 0x7000_0000, len: 4096 };
        note(one.as_raw_fd(), memory.addr, memory.len);
        let again = one.try_clone().unwrap();
        drop(one);
        assert_eq!(exported(again.as_raw_fd()), Some(memory));
        assert_eq!(exported(other.as_raw_fd()), None);
        assert_eq!(exported(-1), None);
        note(-1, 1, 1);
    }
}

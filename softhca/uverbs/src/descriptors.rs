//! The file descriptors that belong to the library: open devices and completion channels.
//!
//! The hooks ask here for every file that the program, its libraries and this library touch. The
//! answer takes no lock, because code that holds a lock of this library may itself touch files.

use crate::errno::{Errno, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Devices and channels have file descriptors below this limit.
const MAX_FD: usize = 1 << 16;
/// One bit for each file descriptor that belongs to the library.
static OURS: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];

/// Id of the process that owns the descriptors; 0 before the first one.
///
/// A child of vfork(2) or posix_spawn(3) shares its parent's memory until it executes another
/// program, and may close files before that. Those files are its own copies, and the parent's
/// devices stay open. The child runs no handler of pthread_atfork(3), so only the id tells it
/// apart.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn process_id() -> libc::pid_t {
    // SAFETY: the call has no preconditions.
    unsafe { libc::getpid() }
}

fn bit(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether a file descriptor is a device or a channel of this process.
pub(crate) fn is_ours(fd: RawFd) -> bool {
    bit(fd).is_some_and(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
        && OWNER.load(Ordering::Acquire) == process_id()
}

/// Makes this process the owner. False if another process is.
pub(crate) fn claim() -> bool {
    let id = process_id();
    let before = OWNER.compare_exchange(0, id, Ordering::AcqRel, Ordering::Acquire);
    before.is_ok() || before == Err(id)
}

/// Marks a file descriptor as the library's.
pub(crate) fn add(fd: RawFd) -> Result<()> {
    let (word, mask) = bit(fd).ok_or(Errno(libc::EMFILE))?;
    word.fetch_or(mask, Ordering::AcqRel);
    Ok(())
}

/// Marks a new file that the library hands to the program, with the flags of the call that opens it.
pub(crate) fn adopt(fd: &OwnedFd, flags: i32) -> Result<()> {
    add(fd.as_raw_fd())?;
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    let set = |command: i32, value: i32| {
        // SAFETY: the call changes flags of the file only.
        unsafe { libc::fcntl(fd.as_raw_fd(), command, value) }
    };
    if set(libc::F_SETFD, close_on_exec) < 0 || set(libc::F_SETFL, flags & libc::O_NONBLOCK) < 0 {
        remove(fd.as_raw_fd());
        return Err(Errno::last());
    }
    Ok(())
}

/// Whether calls on the program's file do not wait.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: the call accesses no memory of the process.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Removes the mark: the program is about to close the file.
pub(crate) fn remove(fd: RawFd) {
    if let Some((word, mask)) = bit(fd) {
        word.fetch_and(!mask, Ordering::AcqRel);
    }
}

/// Removes all marks and the owner, in the child of a fork.
///
/// Only stores to atomics: any thread of the parent may have held any lock.
pub(crate) fn reset() {
    OWNER.store(0, Ordering::Release);
    for word in &OURS {
        word.store(0, Ordering::Release);
    }
}

//! System calls that the standard library lacks.

pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod guard;
pub(crate) mod host;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod socket;
pub(crate) mod symbol;
pub(crate) mod wait;
pub(crate) mod watch;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Turns -1 into the last error.
fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// Takes the descriptor that a system call returned, or its error.
///
/// # Safety
/// `rc` is -1, or a descriptor that was just opened and that nothing else owns.
unsafe fn owned(rc: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: guaranteed by the caller.
    check(rc).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

//! Duplicates of file descriptors: one of a device is the same device.

use super::define::returned;
use super::next;
use crate::descriptors;
use crate::errno::preserving;
use crate::process;
use libc::{c_int, c_ulong};
use std::os::fd::RawFd;

/// Makes the new descriptor `to` what `from` is, or closes it.
fn duplicated(from: RawFd, to: RawFd) -> RawFd {
    if to < 0 || descriptors::kind(from).is_none() {
        return to;
    }
    returned(preserving(|| process::duplicate(from, to)).map(|()| to).inspect_err(|_| {
        // SAFETY: the descriptor is new, and the program does not know it yet.
        unsafe { libc::syscall(libc::SYS_close, to) };
    }))
}

/// What `to` was before the system has replaced it ends.
fn replaced(from: RawFd, to: RawFd) -> RawFd {
    if to >= 0 && to != from && descriptors::kind(to).is_some() {
        preserving(|| process::close(to));
    }
    if to == from { to } else { duplicated(from, to) }
}

/// # Safety
/// As `fcntl(2)`.
unsafe fn fcntl_any(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { next::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        _ => result,
    }
}

c_functions! {
    /// `dup(2)`.
    dup(fd: c_int) -> c_int {
        duplicated(fd, next::dup(fd))
    }

    /// `dup2(2)`.
    dup2(fd: c_int, to: c_int) -> c_int {
        replaced(fd, next::dup2(fd, to))
    }

    /// `dup3(2)`.
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        replaced(fd, next::dup3(fd, to, flags))
    }

    /// `fcntl(2)`. A variadic call passes the argument in the register of this parameter.
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_any(fd, command, argument)
    }

    /// `fcntl64(3)`.
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_any(fd, command, argument)
    }
}

//! Duplicates and closes of file descriptors, single and in ranges: a duplicate of a device is the same
//! device, which closes with its last descriptor.

use super::live;
use super::next;
use super::next::returned;
use crate::descriptors;
use crate::errno::preserving;
use crate::process;
use libc::{c_int, c_uint, c_ulong};
use std::os::fd::RawFd;

/// Gives the new descriptor `to` the kind of `from`, or closes it.
fn duplicated(from: RawFd, to: RawFd) -> RawFd {
    live::duplicated(from, to);
    if to < 0 || descriptors::kind(from).is_none() {
        return to;
    }
    returned(preserving(|| process::duplicate(from, to)).map(|()| to).inspect_err(|_| {
        // SAFETY: the descriptor is new, and the program does not know it yet.
        unsafe { libc::syscall(libc::SYS_close, to) };
    }))
}

/// Ends the library's use of `to`, which the system has replaced, and makes it a duplicate of `from`.
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

/// Ends the library's use of a range of descriptors that is about to be closed.
fn closing(first: u32, last: u32) {
    preserving(|| descriptors::between(first, last).for_each(process::close));
}

/// # Safety
/// As `close_range(2)`.
unsafe fn close_range_any(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With any other flag the system refuses, or only marks the files.
    if flags & !(libc::CLOSE_RANGE_UNSHARE as c_int) == 0 {
        closing(first, last);
    }
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// # Safety
/// As `closefrom(3)`.
unsafe fn closefrom_any(first: c_int) {
    let first = u32::try_from(first).unwrap_or(0);
    closing(first, u32::MAX);
    // SAFETY: the calls access no memory of the process.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) != 0 {
            // A system older than Linux 5.9.
            (first as c_int..libc::getdtablesize()).for_each(|fd| _ = libc::syscall(libc::SYS_close, fd));
        }
    }
}

c_functions! {
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_range_any(first, last, flags)
    }

    closefrom(first: c_int) -> () {
        closefrom_any(first)
    }

    dup(fd: c_int) -> c_int {
        duplicated(fd, next::dup(fd))
    }

    dup2(fd: c_int, to: c_int) -> c_int {
        replaced(fd, next::dup2(fd, to))
    }

    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        replaced(fd, next::dup3(fd, to, flags))
    }

    /// A variadic call passes the argument in the register of this parameter.
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_any(fd, command, argument)
    }

    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        fcntl_any(fd, command, argument)
    }
}

//! Reads of files, some of which the running card answers.

use super::live::{self, Part};
use super::next;
use super::next::returned;
use crate::errno::preserving;
use crate::process;
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use std::ptr;

/// Returns the answer for a live file, or that of the C library's function, which a cancelled thread may end in.
fn answered(
    fd: c_int,
    places: impl FnOnce() -> Option<Vec<Part>>,
    offset: Option<off_t>,
    call: impl FnOnce() -> ssize_t,
) -> ssize_t {
    live::read(fd, places, offset).map_or_else(call, returned)
}

/// Reads an event of DEVX. `None` for other files.
fn read_event(fd: c_int, addr: u64, count: size_t) -> Option<ssize_t> {
    loop {
        match preserving(|| process::read_event(fd, addr, count))? {
            Ok(Some(length)) => return Some(length as ssize_t),
            Err(errno) => return Some(returned(Err(errno))),
            // Waits for the next event, unless the file is non-blocking. A cancelled thread may end here.
            // SAFETY: no byte is received.
            Ok(None) => unsafe {
                if next::recv(fd, ptr::null_mut(), 0, libc::MSG_PEEK) < 0 {
                    return Some(-1);
                }
            },
        }
    }
}

/// # Safety
/// As `read(2)`.
pub(super) unsafe fn read_any(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    if let Some(read) = read_event(fd, buffer as u64, count) {
        return read;
    }
    // SAFETY: the caller vouches for the arguments.
    answered(fd, || Some(vec![(buffer as u64, count)]), None, || unsafe { next::read(fd, buffer, count) })
}

/// # Safety
/// As `pread(2)`.
unsafe fn pread_any(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the caller vouches for the arguments.
    let call = || unsafe { next::pread(fd, buffer, count, offset) };
    answered(fd, || Some(vec![(buffer as u64, count)]), Some(offset), call)
}

/// # Safety
/// As `preadv2(2)`.
unsafe fn preadv_any(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller vouches for the arguments.
    let call = || unsafe { next::preadv2(fd, parts, count, offset, flags) };
    answered(fd, || live::parts(parts as u64, count), (offset != -1).then_some(offset), call)
}

/// Gives a live file a new content before a call that copies from it.
fn refreshed(fd: c_int) -> c_int {
    if live::may_be_live(fd) {
        preserving(|| live::refresh(fd));
    }
    fd
}

c_functions! {
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
        read_any(fd, buffer, count)
    }

    /// `read` of programs built with checks.
    __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t {
        if count > room { next::__read_chk(fd, buffer, count, room) } else { read_any(fd, buffer, count) }
    }

    pread(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        pread_any(fd, buffer, count, offset)
    }

    pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t) -> ssize_t {
        pread_any(fd, buffer, count, offset)
    }

    /// `pread` of programs built with checks.
    __pread_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, room: size_t) -> ssize_t {
        if count > room { next::__pread_chk(fd, buffer, count, offset, room) } else { pread_any(fd, buffer, count, offset) }
    }

    __pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off_t, room: size_t) -> ssize_t {
        if count > room { next::__pread_chk(fd, buffer, count, offset, room) } else { pread_any(fd, buffer, count, offset) }
    }

    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        answered(fd, || live::parts(parts as u64, count), None, || next::readv(fd, parts, count))
    }

    preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        answered(fd, || live::parts(parts as u64, count), Some(offset), || next::preadv(fd, parts, count, offset))
    }

    preadv64(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t {
        answered(fd, || live::parts(parts as u64, count), Some(offset), || next::preadv(fd, parts, count, offset))
    }

    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        preadv_any(fd, parts, count, offset, flags)
    }

    preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        preadv_any(fd, parts, count, offset, flags)
    }

    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        next::sendfile(to, refreshed(from), offset, count)
    }

    sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        next::sendfile(to, refreshed(from), offset, count)
    }

    copy_file_range(
        from: c_int, offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: libc::c_uint
    ) -> ssize_t {
        next::copy_file_range(refreshed(from), offset, to, to_offset, count, flags)
    }

    splice(
        from: c_int, offset: *mut off_t, to: c_int, to_offset: *mut off_t, count: size_t, flags: libc::c_uint
    ) -> ssize_t {
        next::splice(refreshed(from), offset, to, to_offset, count, flags)
    }
}

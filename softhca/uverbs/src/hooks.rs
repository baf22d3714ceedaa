//! The C functions that stand before the C library's.
//!
//! They make the real calls as raw system calls: the C library's functions of these names lead back here. Each of them may be
//! called by this library itself, too (a file is closed, a card's memory mapped): whatever is not a device or a channel
//! passes without a lock.

use crate::attributes::Request;
use crate::errno::{Errno, Result, preserving};
use crate::files;
use crate::uapi::ioctl::RDMA_VERBS_IOCTL;
use crate::uar;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t, off_t, size_t};
use std::ffi::CStr;
use std::os::fd::AsRawFd;

/// What devices are called, before their number.
const DEVICE_PREFIX: &[u8] = b"/dev/infiniband/uverbs";
/// The file that stands in for a device: a character device, as libibverbs wants to see. The stand-in for sysfs says its number.
const STAND_IN: &CStr = c"/dev/null";
/// Protocol of RDMA's netlink sockets (`NETLINK_RDMA`).
const NETLINK_RDMA: c_int = 20;

/// The device that a path names.
///
/// # Safety
/// `path` is null, or a C string. (A system call would answer EFAULT to what is not mapped; here it is a signal.)
unsafe fn device_of(path: *const c_char) -> Option<usize> {
    if path.is_null() {
        return None;
    }
    // Byte by byte: the program's string may end before the prefix does, where a page ends.
    for (i, expected) in DEVICE_PREFIX.iter().enumerate() {
        // SAFETY: no byte before it was the terminating one.
        if unsafe { *path.add(i) } as u8 != *expected {
            return None;
        }
    }
    // SAFETY: the prefix has no zero byte, so the string goes on behind it.
    let number = unsafe { CStr::from_ptr(path.add(DEVICE_PREFIX.len())) };
    let index = number.to_str().ok()?.parse().ok()?;
    (index < softhca::devices::MAX_DEVICES).then_some(index)
}

/// -1 with `errno` set, or the value.
fn returned<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        errno.set();
        T::from(-1)
    })
}

fn open_device(index: usize, flags: c_int) -> Result<c_int> {
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, STAND_IN.as_ptr(), flags, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(Errno::last)?;
    files::open(fd, index).inspect_err(|_| {
        // SAFETY: our own descriptor.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    })?;
    Ok(fd)
}

/// # Safety
/// As `openat(2)`.
unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    match unsafe { device_of(path) } {
        Some(index) => returned(preserving(|| open_device(index, flags))),
        // SAFETY: the caller's.
        None => unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode as c_uint) as c_int },
    }
}

/// `open(2)`. The mode is there whether the caller gave one or not: it is in a register that variable arguments use, too.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_any(libc::AT_FDCWD, path, flags, mode) }
}

/// `open64(3)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_any(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) }
}

/// `openat(2)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_any(directory, path, flags, mode) }
}

/// `openat64(3)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat64(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_any(directory, path, flags | libc::O_LARGEFILE, mode) }
}

/// # Safety
/// As `fstatat(2)`.
unsafe fn stat_any(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller's.
    let path = if unsafe { device_of(path) }.is_some() { STAND_IN.as_ptr() } else { path };
    // SAFETY: the caller's; on 64-bit machines the kernel's structure is the C library's.
    unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, buffer, flags) as c_int }
}

/// `stat(2)`: a device looks like the file that stands in for it.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn stat(path: *const c_char, buffer: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { stat_any(libc::AT_FDCWD, path, buffer, 0) }
}

/// `stat64(3)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn stat64(path: *const c_char, buffer: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { stat_any(libc::AT_FDCWD, path, buffer, 0) }
}

/// `stat` of programs built before glibc 2.33.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __xstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { stat_any(libc::AT_FDCWD, path, buffer, 0) }
}

/// `stat64` of programs built before glibc 2.33.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __xstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
    // SAFETY: the caller's.
    unsafe { stat_any(libc::AT_FDCWD, path, buffer, 0) }
}

/// `fstatat(2)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fstatat(
    directory: c_int,
    path: *const c_char,
    buffer: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { stat_any(directory, path, buffer, flags) }
}

/// `close(2)`: closing a device destroys everything in it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn close(fd: c_int) -> c_int {
    if files::is_ours(fd) {
        preserving(|| files::forget(fd));
    }
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// `ioctl(2)`: commands to a device are performed here.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, number: c_ulong, argument: *mut c_void) -> c_int {
    if number == RDMA_VERBS_IOCTL
        && let Some(context) = files::context(fd)
    {
        let perform = || Request::read(argument as u64).and_then(|request| context.perform(&request));
        return returned(preserving(perform).map(|()| 0));
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, number, argument) as c_int }
}

/// # Safety
/// As `mmap(2)`.
unsafe fn map(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let found = preserving(|| files::context(fd).map(|context| uar::mapping(&context, offset as u64, len)));
    let page = match found {
        Some(Ok(page)) => page,
        Some(Err(errno)) => {
            errno.set();
            return libc::MAP_FAILED;
        }
        None => None,
    };
    let (fd, offset) =
        page.as_ref().map_or((fd, offset), |(file, place)| (file.as_raw_fd(), *place as off_t));
    // SAFETY: the caller's.
    let mapped: c_long = unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    mapped as *mut c_void
}

/// `mmap(2)`: a device's pages are those of its card.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(at, len, protection, flags, fd, offset) }
}

/// `mmap64(3)`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(at, len, protection, flags, fd, offset) }
}

/// `socket(2)`: there is no RDMA netlink, so that libibverbs looks into sysfs instead, of which there is a stand-in.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return returned(Err(Errno::UNKNOWN));
    }
    // SAFETY: no memory is involved.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

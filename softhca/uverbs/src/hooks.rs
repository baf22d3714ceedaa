//! The C functions that the library puts before those of the C library.
//!
//! They make system calls directly: the C library's functions of these names would lead back here.
//! This library calls them, too, when it closes a file or maps memory of a card, possibly with a
//! lock held. So a call for any file that is not a device or a channel takes no lock.

use crate::attributes::Request;
use crate::commands;
use crate::descriptors;
use crate::errno::{Errno, Result, preserving};
use crate::process;
use crate::uapi::ioctl::RDMA_VERBS_IOCTL;
use crate::verbs::uar;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::os::fd::AsRawFd;

/// The path of a device, without its number.
const DEVICE_PREFIX: &[u8] = b"/dev/infiniband/uverbs";
/// The path of the connection manager.
const CM_PATH: &CStr = c"/dev/infiniband/rdma_cm";
/// The file that stands in for a device: a character device, as libibverbs requires. The stand-in
/// for sysfs has its device number.
const STAND_IN: &CStr = c"/dev/null";
/// Protocol of RDMA's netlink sockets (`NETLINK_RDMA`).
const NETLINK_RDMA: c_int = 20;

/// The index of the device that a path names.
///
/// # Safety
/// `path` must be null or a C string. (For memory that is not mapped, a system call returns EFAULT;
/// this function raises a signal.)
unsafe fn device_of(path: *const c_char) -> Option<usize> {
    if path.is_null() {
        return None;
    }
    // Byte by byte: the program's string may end before the prefix does, at the end of a page.
    for (i, expected) in DEVICE_PREFIX.iter().enumerate() {
        // SAFETY: the bytes before this one equal the prefix, so none of them ended the string.
        if unsafe { *path.add(i) } as u8 != *expected {
            return None;
        }
    }
    // SAFETY: the prefix has no zero byte, so the string continues after it.
    let number = unsafe { CStr::from_ptr(path.add(DEVICE_PREFIX.len())) };
    let index = number.to_str().ok()?.parse().ok()?;
    (index < softhca::devices::MAX_DEVICES).then_some(index)
}

/// Whether a path names the connection manager.
///
/// # Safety
/// As [`device_of`].
unsafe fn is_cm(path: *const c_char) -> bool {
    // The comparison ends at the first byte that differs, or at the end of a string.
    // SAFETY: the caller vouches for `path`.
    !path.is_null() && unsafe { libc::strcmp(path, CM_PATH.as_ptr()) } == 0
}

/// The value, or -1 with `errno` set.
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
    process::open(fd, index).inspect_err(|_| {
        // SAFETY: the call above has opened the descriptor, and nothing else owns it.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    })?;
    Ok(fd)
}

/// # Safety
/// As `openat(2)`.
unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller vouches for `path`.
    match unsafe { device_of(path) } {
        Some(index) => returned(preserving(|| open_device(index, flags))),
        // SAFETY: the caller vouches for `path`.
        None if unsafe { is_cm(path) } => returned(preserving(|| process::open_cm(flags))),
        // SAFETY: the caller vouches for the arguments.
        None => unsafe { libc::syscall(libc::SYS_openat, directory, path, flags, mode as c_uint) as c_int },
    }
}

/// # Safety
/// As `fstatat(2)`.
unsafe fn stat_any(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for `path`.
    let path = if unsafe { device_of(path).is_some() || is_cm(path) } { STAND_IN.as_ptr() } else { path };
    // SAFETY: the caller vouches for the arguments; on 64-bit machines the C library's structure is
    // the kernel's.
    unsafe { libc::syscall(libc::SYS_newfstatat, directory, path, buffer, flags) as c_int }
}

/// # Safety
/// As `fstat(2)`.
unsafe fn stat_open(fd: c_int, buffer: *mut libc::stat) -> c_int {
    if process::cm_file(fd).is_some() {
        // A pipe for the kernel, and a character device for librdmacm.
        // SAFETY: the path is a C string; the caller vouches for the buffer.
        return unsafe { stat_any(libc::AT_FDCWD, STAND_IN.as_ptr(), buffer, 0) };
    }
    // SAFETY: the caller vouches for the arguments.
    unsafe { libc::syscall(libc::SYS_fstat, fd, buffer) as c_int }
}

/// # Safety
/// As `mmap(2)`.
unsafe fn map_any(
    at: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let found = preserving(|| process::context(fd).map(|context| uar::mapping(&context, offset as u64, len)));
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
    // SAFETY: the caller vouches for the arguments; the file of a page replaces only `fd` and
    // `offset`.
    let mapped: c_long = unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    mapped as *mut c_void
}

/// Defines C functions whose safety is that of the C library's function of the same name.
macro_rules! c_functions {
    ($($(#[$doc:meta])+ $name:ident($($argument:ident: $type:ty),+) -> $result:ty { $call:expr })+) => {
        $(
            $(#[$doc])+
            ///
            /// # Safety
            /// As the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),+) -> $result {
                // SAFETY: the caller vouches for the arguments, as for those of the C function.
                unsafe { $call }
            }
        )+
    };
}

c_functions! {
    /// `open(2)`. A variadic call passes `mode` in the register of this parameter. Without a mode
    /// the value is arbitrary, and the kernel ignores it.
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, flags, mode)
    }

    /// `open64(3)`.
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode)
    }

    /// `openat(2)`.
    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(directory, path, flags, mode)
    }

    /// `openat64(3)`.
    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(directory, path, flags | libc::O_LARGEFILE, mode)
    }

    /// `stat(2)`. A device has the attributes of its stand-in.
    stat(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    /// `stat64(3)`.
    stat64(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    /// `stat` of programs built before glibc 2.33.
    __xstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    /// `stat64` of programs built before glibc 2.33.
    __xstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    /// `fstatat(2)`.
    fstatat(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
        stat_any(directory, path, buffer, flags)
    }

    /// `fstat(2)`. The connection manager has the attributes of its stand-in.
    fstat(fd: c_int, buffer: *mut libc::stat) -> c_int {
        stat_open(fd, buffer)
    }

    /// `fstat64(3)`.
    fstat64(fd: c_int, buffer: *mut libc::stat) -> c_int {
        stat_open(fd, buffer)
    }

    /// `fstat` of programs built before glibc 2.33.
    __fxstat(_version: c_int, fd: c_int, buffer: *mut libc::stat) -> c_int {
        stat_open(fd, buffer)
    }

    /// `fstat64` of programs built before glibc 2.33.
    __fxstat64(_version: c_int, fd: c_int, buffer: *mut libc::stat) -> c_int {
        stat_open(fd, buffer)
    }

    /// `write(2)`. Commands of the connection manager are written to its file.
    write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
        match process::cm_file(fd) {
            Some(file) => returned(preserving(|| process::command_cm(fd, &file, bytes as u64, count)).map(|n| n as ssize_t)),
            None => libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t,
        }
    }

    /// `mmap(2)`. The pages of a device are those of its card.
    mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map_any(at, len, protection, flags, fd, offset)
    }

    /// `mmap64(3)`.
    mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map_any(at, len, protection, flags, fd, offset)
    }
}

/// `close(2)`. Closing a device destroys its objects.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn close(fd: c_int) -> c_int {
    if descriptors::is_ours(fd) {
        preserving(|| process::close(fd));
    }
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// `ioctl(2)`. The library performs the commands of its devices.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, number: c_ulong, argument: *mut c_void) -> c_int {
    if number == RDMA_VERBS_IOCTL
        && let Some(context) = process::context(fd)
    {
        let perform =
            || Request::read(argument as u64).and_then(|request| commands::perform(&context, &request));
        return returned(preserving(perform).map(|()| 0));
    }
    // SAFETY: the caller vouches for the arguments.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, number, argument) as c_int }
}

/// `socket(2)`. Refuses RDMA netlink, so that libibverbs reads sysfs, which has a stand-in.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return returned(Err(Errno::UNKNOWN));
    }
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as c_int }
}

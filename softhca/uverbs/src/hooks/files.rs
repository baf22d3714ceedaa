//! Calls with paths: those of device files lead to the private folder.

use super::live;
use super::next;
use super::next::returned;
use crate::errno::{Errno, preserving};
use crate::paths::{self, Private};
use crate::process;
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::ptr;

/// The file whose attributes an open device has: those that stat(2) finds at the device's path, a character
/// device, as libibverbs requires.
const STAND_IN: &CStr = c"/dev/null";

/// The path to pass on: in the private folder, or the program's.
pub(super) struct PassedPath {
    private: Option<Private>,
    path: *const c_char,
}

impl PassedPath {
    /// # Safety
    /// `path` must be null or a C string.
    pub(super) unsafe fn of(path: *const c_char) -> Self {
        // SAFETY: guaranteed by the caller.
        PassedPath { private: unsafe { paths::private(path) }, path }
    }

    pub(super) fn as_ptr(&self) -> *const c_char {
        self.private.as_ref().map_or(self.path, Private::as_ptr)
    }

    /// Returns whether it is in the stand-in for sysfs.
    pub(super) fn is_sysfs(&self) -> bool {
        self.private.as_ref().is_some_and(Private::is_sysfs)
    }
}

/// # Safety
/// As `fstatat(2)`.
unsafe fn stat_any(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for `path`.
    if flags & libc::AT_EMPTY_PATH != 0 && directory >= 0 && unsafe { path.is_null() || *path == 0 } {
        // SAFETY: the caller vouches for `buffer`.
        return unsafe { fstat_any(directory, buffer) };
    }
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    // A device is no link.
    let is_device = passed.private.as_ref().is_some_and(Private::is_device);
    let flags = if is_device { flags & !libc::AT_SYMLINK_NOFOLLOW } else { flags };
    // SAFETY: the caller vouches for the arguments; on 64-bit machines the C library's structure is the kernel's.
    unsafe { libc::syscall(libc::SYS_newfstatat, directory, passed.as_ptr(), buffer, flags) as c_int }
}

/// Returns the path of the file whose attributes a descriptor has, if it is not the descriptor's own.
fn attributes_of(fd: RawFd, links: impl Into<u64>) -> Option<CString> {
    if is_device(fd, links) { Some(STAND_IN.to_owned()) } else { live::attributes_of(fd) }
}

/// Returns whether a descriptor's file is an open device or a file of the connection manager. If the program
/// has closed the device unnoticed by the hooks, the descriptor may be another file by now, which has links.
fn is_device(fd: RawFd, links: impl Into<u64>) -> bool {
    preserving(|| match links.into() {
        0 => process::is_device(fd),
        // A pipe.
        1 => process::cm_file(fd).is_some(),
        _ => false,
    })
}

/// # Safety
/// As `fstat(2)`.
unsafe fn fstat_any(fd: c_int, buffer: *mut libc::stat) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { libc::syscall(libc::SYS_fstat, fd, buffer) as c_int };
    // SAFETY: the kernel has just filled the buffer.
    let other = if result == 0 { attributes_of(fd, unsafe { (*buffer).st_nlink }) } else { None };
    other.map_or(result, |path| {
        // SAFETY: the path is a C string, and the buffer the caller's.
        unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), buffer, 0) as c_int }
    })
}

/// # Safety
/// As `statx(2)`.
unsafe fn statx_any(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: libc::c_uint,
    buffer: *mut libc::statx,
) -> c_int {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    let follows = passed.private.as_ref().is_some_and(Private::is_device);
    let flags = if follows { flags & !libc::AT_SYMLINK_NOFOLLOW } else { flags };
    // SAFETY: the caller vouches for the arguments.
    let result =
        unsafe { libc::syscall(libc::SYS_statx, directory, passed.as_ptr(), flags, mask, buffer) as c_int };
    if result != 0 || flags & libc::AT_EMPTY_PATH == 0 {
        return result;
    }
    // SAFETY: the caller vouches for `path`; the kernel has just filled the buffer.
    let (is_empty, links) = unsafe { (path.is_null() || *path == 0, (*buffer).stx_nlink) };
    let other = if is_empty { attributes_of(directory, links) } else { None };
    other.map_or(result, |path| {
        // SAFETY: the path is a C string, and the buffer the caller's.
        unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path.as_ptr(), 0, mask, buffer) as c_int }
    })
}

/// # Safety
/// As `access(2)`.
unsafe fn access_any(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    // SAFETY: the caller vouches for the arguments.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, passed.as_ptr(), mode) as c_int }
}

/// # Safety
/// As `faccessat(2)`.
unsafe fn faccessat_any(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    // SAFETY: the caller vouches for the arguments.
    unsafe { next::faccessat(directory, passed.as_ptr(), mode, flags) }
}

/// # Safety
/// As `readlinkat(2)`.
unsafe fn readlink_any(directory: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    if passed.private.as_ref().is_some_and(Private::is_device) {
        // Fails as for a character device, or because there is none.
        // SAFETY: the path is a C string.
        let exists = unsafe { access_any(path, libc::F_OK) } == 0;
        return if exists { returned(Err(Errno::INVALID)) } else { -1 };
    }
    // SAFETY: the caller vouches for the arguments.
    unsafe { libc::syscall(libc::SYS_readlinkat, directory, passed.as_ptr(), buffer, len) as ssize_t }
}

/// # Safety
/// As `realpath(3)`.
unsafe fn realpath_any(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    // SAFETY: the caller vouches for the arguments.
    let found = unsafe { next::realpath(passed.as_ptr(), resolved) };
    if found.is_null() {
        return found;
    }
    // SAFETY: the C library's function has returned a C string.
    let whole = unsafe { CStr::from_ptr(found) }.to_bytes();
    let device = passed.private.as_ref().filter(|private| private.is_device());
    let public = device.map_or_else(|| paths::public(whole), Private::named);
    if public.len() <= whole.len() {
        // SAFETY: the place has room for the longer path and its zero; the shorter may be part of it, which
        // `copy` allows.
        unsafe {
            ptr::copy(public.as_ptr(), found.cast(), public.len());
            *found.add(public.len()) = 0;
        }
        return found;
    }
    // A device's stand-in has a shorter path.
    if resolved.is_null() {
        // SAFETY: the C library has allocated it for the caller, who gets another.
        unsafe {
            libc::free(found.cast());
            libc::strdup(path)
        }
    } else {
        // SAFETY: the caller's place has room for PATH_MAX bytes.
        unsafe { libc::strcpy(resolved, path) }
    }
}

/// # Safety
/// As `opendir(3)`.
unsafe fn opendir_any(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    // SAFETY: as above.
    unsafe { next::opendir(passed.as_ptr()) }
}

c_functions! {
    /// A device has the attributes of its stand-in.
    stat(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    stat64(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    // Programs built before glibc 2.33 call `__xstat` and its variants.
    __xstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    __xstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, 0)
    }

    lstat(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW)
    }

    lstat64(path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW)
    }

    __lxstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW)
    }

    __lxstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int {
        stat_any(libc::AT_FDCWD, path, buffer, libc::AT_SYMLINK_NOFOLLOW)
    }

    fstatat(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
        stat_any(directory, path, buffer, flags)
    }

    fstatat64(directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int {
        stat_any(directory, path, buffer, flags)
    }

    __fxstatat(
        _version: c_int, directory: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int
    ) -> c_int {
        stat_any(directory, path, buffer, flags)
    }

    /// An open device has the attributes of its path.
    fstat(fd: c_int, buffer: *mut libc::stat) -> c_int {
        fstat_any(fd, buffer)
    }

    fstat64(fd: c_int, buffer: *mut libc::stat) -> c_int {
        fstat_any(fd, buffer)
    }

    __fxstat(_version: c_int, fd: c_int, buffer: *mut libc::stat) -> c_int {
        fstat_any(fd, buffer)
    }

    __fxstat64(_version: c_int, fd: c_int, buffer: *mut libc::stat) -> c_int {
        fstat_any(fd, buffer)
    }

    statx(
        directory: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, buffer: *mut libc::statx
    ) -> c_int {
        statx_any(directory, path, flags, mask, buffer)
    }

    access(path: *const c_char, mode: c_int) -> c_int {
        access_any(path, mode)
    }

    faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        faccessat_any(directory, path, mode, flags)
    }

    euidaccess(path: *const c_char, mode: c_int) -> c_int {
        faccessat_any(libc::AT_FDCWD, path, mode, libc::AT_EACCESS)
    }

    eaccess(path: *const c_char, mode: c_int) -> c_int {
        faccessat_any(libc::AT_FDCWD, path, mode, libc::AT_EACCESS)
    }

    readlink(path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        readlink_any(libc::AT_FDCWD, path, buffer, len)
    }

    /// `readlink` of programs built with checks.
    __readlink_chk(path: *const c_char, buffer: *mut c_char, len: size_t, _room: size_t) -> ssize_t {
        readlink_any(libc::AT_FDCWD, path, buffer, len)
    }

    readlinkat(directory: c_int, path: *const c_char, buffer: *mut c_char, len: size_t) -> ssize_t {
        readlink_any(directory, path, buffer, len)
    }

    /// The result is also a path of the system.
    realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
        realpath_any(path, resolved)
    }

    /// `realpath` of programs built with checks.
    __realpath_chk(path: *const c_char, resolved: *mut c_char, _room: size_t) -> *mut c_char {
        realpath_any(path, resolved)
    }

    canonicalize_file_name(path: *const c_char) -> *mut c_char {
        realpath_any(path, ptr::null_mut())
    }

    /// `getxattr(2)`: `ls` asks for access lists.
    getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        libc::syscall(libc::SYS_getxattr, PassedPath::of(path).as_ptr(), name, value, size) as ssize_t
    }

    lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t {
        libc::syscall(libc::SYS_lgetxattr, PassedPath::of(path).as_ptr(), name, value, size) as ssize_t
    }

    opendir(path: *const c_char) -> *mut libc::DIR {
        opendir_any(path)
    }

    scandir(
        path: *const c_char, list: *mut *mut *mut c_void, filter: next::Filter, compare: next::Compare
    ) -> c_int {
        next::scandir(PassedPath::of(path).as_ptr(), list, filter, compare)
    }

    scandir64(
        path: *const c_char, list: *mut *mut *mut c_void, filter: next::Filter, compare: next::Compare
    ) -> c_int {
        next::scandir64(PassedPath::of(path).as_ptr(), list, filter, compare)
    }
}

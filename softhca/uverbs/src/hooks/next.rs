//! Definitions of hooks, and the C library's functions that they replace, if these do more than a system call.

use crate::errno::Result;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the value, or -1 with `errno` set.
pub(super) fn returned<T: From<i8>>(result: Result<T>) -> T {
    result.unwrap_or_else(|errno| {
        errno.set();
        T::from(-1)
    })
}

/// Defines C functions whose safety contract is that of the C library's function of the same name.
macro_rules! c_functions {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),+) -> $result:ty { $call:expr })+) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the C library.")]
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function.
            #[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $type),+) -> $result {
                // SAFETY: the caller vouches for the arguments, as for those of the C function.
                unsafe { $call }
            }
        )+
    };
}

/// A function of a library that was loaded after this one, looked up at its first use.
pub(super) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Next { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns its address; null if there is no such function.
    pub(super) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
        found
    }
}

/// Defines a function that calls the next one of its name, and fails with ENOSYS if there is none.
macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),+) -> $result:ty, or $failed:expr;)+) => {
        $(
            /// # Safety
            /// As the C function.
            pub(super) unsafe fn $name($($argument: $type),+) -> $result {
                static NEXT: Next = {
                    const NAME: &str = concat!(stringify!($name), "\0");
                    match CStr::from_bytes_with_nul(NAME.as_bytes()) {
                        Ok(name) => Next::new(name),
                        Err(_) => unreachable!(),
                    }
                };
                let address = NEXT.address();
                if address.is_null() {
                    $crate::errno::Errno(libc::ENOSYS).set();
                    return $failed;
                }
                // SAFETY: the C library's function of this name has this signature; the caller vouches for
                // the arguments.
                unsafe {
                    let function: unsafe extern "C" fn($($type),+) -> $result = std::mem::transmute(address);
                    function($($argument),+)
                }
            }
        )+
    };
}

/// A function of `scandir(3)`, which this library only passes on.
pub(super) type Filter = Option<unsafe extern "C" fn(*const c_void) -> c_int>;
/// As [`Filter`].
pub(super) type Compare = Option<unsafe extern "C" fn(*mut *const c_void, *mut *const c_void) -> c_int>;

/// A function that `glob(3)` calls for each folder that it cannot read.
pub(super) type Unreadable = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;
/// A function of `ftw(3)`.
pub(super) type Visit = unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int;
/// A function of `nftw(3)`.
pub(super) type VisitAt =
    unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut Position) -> c_int;

/// `struct FTW`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Position {
    /// Offset of the file's name in its path.
    pub(super) base: c_int,
    pub(super) level: c_int,
}

type Strings = *const *const c_char;

next! {
    execvp(program: *const c_char, arguments: Strings) -> c_int, or -1;
    execvpe(program: *const c_char, arguments: Strings, environment: Strings) -> c_int, or -1;
    posix_spawn(
        pid: *mut libc::pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Strings,
        environment: Strings
    ) -> c_int, or libc::ENOSYS;
    posix_spawnp(
        pid: *mut libc::pid_t,
        program: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Strings,
        environment: Strings
    ) -> c_int, or libc::ENOSYS;
    glob(pattern: *const c_char, flags: c_int, unreadable: Unreadable, found: *mut libc::glob_t) -> c_int, or libc::GLOB_ABORTED;
    glob64(pattern: *const c_char, flags: c_int, unreadable: Unreadable, found: *mut libc::glob_t) -> c_int, or libc::GLOB_ABORTED;
    ftw(path: *const c_char, visit: Visit, files: c_int) -> c_int, or -1;
    ftw64(path: *const c_char, visit: Visit, files: c_int) -> c_int, or -1;
    nftw(path: *const c_char, visit: VisitAt, files: c_int, flags: c_int) -> c_int, or -1;
    nftw64(path: *const c_char, visit: VisitAt, files: c_int, flags: c_int) -> c_int, or -1;
    getcwd(buffer: *mut c_char, size: usize) -> *mut c_char, or ptr::null_mut();
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, or ptr::null_mut();
    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE, or ptr::null_mut();
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE, or ptr::null_mut();
    fileno(file: *mut libc::FILE) -> c_int, or -1;
    read(fd: c_int, buffer: *mut c_void, count: usize) -> isize, or -1;
    __read_chk(fd: c_int, buffer: *mut c_void, count: usize, room: usize) -> isize, or -1;
    pread(fd: c_int, buffer: *mut c_void, count: usize, offset: libc::off_t) -> isize, or -1;
    __pread_chk(fd: c_int, buffer: *mut c_void, count: usize, offset: libc::off_t, room: usize) -> isize, or -1;
    readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize, or -1;
    preadv(fd: c_int, parts: *const libc::iovec, count: c_int, offset: libc::off_t) -> isize, or -1;
    preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, offset: libc::off_t, flags: c_int) -> isize, or -1;
    sendfile(to: c_int, from: c_int, offset: *mut libc::off_t, count: usize) -> isize, or -1;
    copy_file_range(
        from: c_int,
        offset: *mut libc::off_t,
        to: c_int,
        to_offset: *mut libc::off_t,
        count: usize,
        flags: libc::c_uint
    ) -> isize, or -1;
    splice(
        from: c_int,
        offset: *mut libc::off_t,
        to: c_int,
        to_offset: *mut libc::off_t,
        count: usize,
        flags: libc::c_uint
    ) -> isize, or -1;
    opendir(path: *const c_char) -> *mut libc::DIR, or ptr::null_mut();
    scandir(path: *const c_char, list: *mut *mut *mut c_void, filter: Filter, compare: Compare) -> c_int, or -1;
    scandir64(path: *const c_char, list: *mut *mut *mut c_void, filter: Filter, compare: Compare) -> c_int, or -1;
    realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char, or ptr::null_mut();
    faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, or -1;
    fcntl(fd: c_int, command: c_int, argument: libc::c_ulong) -> c_int, or -1;
    dup(fd: c_int) -> c_int, or -1;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int, or -1;
    dup2(fd: c_int, to: c_int) -> c_int, or -1;
    recv(fd: c_int, room: *mut c_void, len: usize, flags: c_int) -> isize, or -1;
    send(fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> isize, or -1;
    sendto(
        fd: c_int,
        bytes: *const c_void,
        len: usize,
        flags: c_int,
        to: *const libc::sockaddr,
        to_len: libc::socklen_t
    ) -> isize, or -1;
    sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize, or -1;
}

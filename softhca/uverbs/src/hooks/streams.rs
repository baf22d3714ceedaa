//! Streams of stdio. The C library reads a stream's file by calls that no hook sees: streams of files that the
//! running card answers read by functions of this library.

use super::files::PassedPath;
use super::live;
use super::next;
use super::reads::read_any;
use crate::errno::{Errno, preserving};
use libc::{c_char, c_int, c_void, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// A stream of a live file, and its descriptor, which the C library does not know. An entry is used again once its
/// stream is closed, and never freed: the child of a fork, in which another thread may have been changing the list, can
/// read it, too.
struct Stream {
    file: AtomicPtr<libc::FILE>,
    fd: AtomicI32,
    next: *mut Stream,
}

static STREAMS: AtomicPtr<Stream> = AtomicPtr::new(ptr::null_mut());
/// The stream of an entry that is being filled.
const TAKEN: *mut libc::FILE = ptr::without_provenance_mut(1);

fn streams() -> impl Iterator<Item = &'static Stream> {
    let mut at = STREAMS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or an entry, which is never freed.
        let stream = unsafe { at.as_ref() }?;
        at = stream.next;
        Some(stream)
    })
}

fn add(file: *mut libc::FILE, fd: RawFd) {
    let none = ptr::null_mut();
    let is_free = |stream: &&Stream| {
        stream.file.compare_exchange(none, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(stream) = streams().find(is_free) {
        stream.fd.store(fd, Ordering::Relaxed);
        stream.file.store(file, Ordering::Release);
        return;
    }
    let entry = Stream { file: AtomicPtr::new(file), fd: AtomicI32::new(fd), next: ptr::null_mut() };
    let entry = Box::into_raw(Box::new(entry));
    let mut first = STREAMS.load(Ordering::Acquire);
    loop {
        // SAFETY: nothing else knows the entry yet.
        unsafe { (*entry).next = first };
        match STREAMS.compare_exchange_weak(first, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

fn find(is_it: impl Fn(*mut libc::FILE, RawFd) -> bool) -> Option<&'static Stream> {
    streams().find(|stream| is_it(stream.file.load(Ordering::Acquire), stream.fd.load(Ordering::Relaxed)))
}

/// `cookie_io_functions_t`: what a stream calls, with its descriptor as the cookie.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut libc::FILE;
}

/// # Safety
/// As `read(2)`.
unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, count: size_t) -> ssize_t {
    // SAFETY: the C library gives its buffer.
    unsafe { read_any(cookie.addr() as RawFd, buffer.cast(), count) }
}

/// # Safety
/// `offset` is valid.
unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: the C library gives its own number.
    let place = unsafe { &mut *offset };
    // SAFETY: the call accesses no memory of the process.
    *place = unsafe { libc::lseek(cookie.addr() as RawFd, *place, whence) };
    if *place < 0 { -1 } else { 0 }
}

/// # Safety
/// None.
unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie.addr() as RawFd;
    if let Some(stream) = find(|file, own| own == fd && !file.is_null() && file != TAKEN) {
        stream.file.store(ptr::null_mut(), Ordering::Release);
    }
    super::close(fd)
}

/// Makes a stream of a live file.
///
/// # Safety
/// `mode` is a C string.
unsafe fn stream_of(fd: RawFd, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the functions take a descriptor as their cookie; the caller vouches for the mode.
    let stream = unsafe {
        let functions = Functions { read, write: None, seek, close };
        fopencookie(ptr::without_provenance_mut(fd as usize), mode, functions)
    };
    if !stream.is_null() {
        preserving(|| add(stream, fd));
    }
    stream
}

/// # Safety
/// As `fdopen(3)`.
unsafe fn fdopen_any(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if !live::may_be_live(fd) || preserving(|| live::live(fd)).is_none() {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { next::fdopen(fd, mode) };
    }
    // SAFETY: the caller vouches for `mode`, a C string.
    if unsafe { writes(mode) } {
        Errno::INVALID.set();
        return ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { stream_of(fd, mode) }
}

/// Returns whether a mode of `fopen(3)` is one for writing.
///
/// # Safety
/// `mode` is a C string.
unsafe fn writes(mode: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    !mode.starts_with(b"r") || mode.contains(&b'+')
}

type Open = unsafe fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// # Safety
/// As `fopen(3)`.
unsafe fn fopen_any(path: *const c_char, mode: *const c_char, open: Open) -> *mut libc::FILE {
    // SAFETY: the caller vouches for `path`.
    let passed = unsafe { PassedPath::of(path) };
    if !passed.is_sysfs() {
        // SAFETY: the caller vouches for the arguments.
        let stream = unsafe { open(passed.as_ptr(), mode) };
        // SAFETY: as above; the C library has just opened the stream.
        let is_sysfs = unsafe {
            live::is_relative(path)
                && !stream.is_null()
                && preserving(|| live::is_sysfs(libc::fileno(stream)))
        };
        if !is_sysfs {
            return stream;
        }
        // SAFETY: nothing else knows the stream.
        unsafe { libc::fclose(stream) };
    }
    // SAFETY: the caller vouches for `mode`, a C string.
    let (access, mode_bytes) = unsafe {
        (if writes(mode) { libc::O_RDWR } else { libc::O_RDONLY }, CStr::from_ptr(mode).to_bytes())
    };
    let close_on_exec = if mode_bytes.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the caller vouches for the arguments.
    let fd = unsafe { super::open_any(libc::AT_FDCWD, path, access | close_on_exec, 0) };
    if fd < 0 {
        return ptr::null_mut();
    }
    // SAFETY: as above.
    let stream = unsafe { fdopen_any(fd, mode) };
    if stream.is_null() {
        preserving(|| super::close(fd));
    }
    stream
}

/// # Safety
/// As `fileno(3)`.
unsafe fn fileno_any(file: *mut libc::FILE) -> c_int {
    // SAFETY: the caller vouches for the stream.
    let fd = unsafe { next::fileno(file) };
    let own = if fd < 0 { find(|known, _| known == file) } else { None };
    own.map_or(fd, |stream| stream.fd.load(Ordering::Relaxed))
}

c_functions! {
    fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        fopen_any(path, mode, next::fopen)
    }

    fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        fopen_any(path, mode, next::fopen64)
    }

    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        fdopen_any(fd, mode)
    }

    fileno(file: *mut libc::FILE) -> c_int {
        fileno_any(file)
    }

    fileno_unlocked(file: *mut libc::FILE) -> c_int {
        fileno_any(file)
    }
}

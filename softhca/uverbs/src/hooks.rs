//! The C functions that the library interposes on the C library.
//!
//! They make system calls directly: the C library's functions of these names would lead back here. This
//! library calls them as well when it closes a file or maps memory of a card, possibly with a lock held, so a
//! call for any file other than a device or a channel takes no lock.

use crate::attributes::load;
use crate::commands;
use crate::context::Context;
use crate::descriptors::{self, FdKind};
use crate::errno::{Result, preserving};
use crate::paths::{self, Private};
use crate::process;
use crate::uapi::ioctl::RDMA_VERBS_IOCTL;
use crate::uapi::ucm::command;
use crate::verbs::{device, pages};
use gdsync_sys::wake::Table;
use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, mode_t, off_t, size_t, ssize_t};
use next::returned;
use stack::with_room;
use std::sync::Arc;

#[macro_use]
mod next;
pub mod cuda;
pub mod duplicates;
pub mod execute;
pub mod files;
mod live;
pub mod mappings;
pub mod place;
pub mod polling;
pub mod reads;
pub mod sockets;
mod stack;
pub mod streams;
pub mod walks;

/// # Safety
/// As `openat(2)`.
unsafe fn open_any(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the caller vouches for `path`.
    if let Some(index) = unsafe { paths::device(path) } {
        return returned(preserving(|| with_room(|| process::open(index, flags & libc::O_CLOEXEC != 0))));
    }
    // SAFETY: as above.
    if unsafe { paths::is_cm(path) } {
        return returned(preserving(|| with_room(|| process::open_cm(flags))));
    }
    // SAFETY: as above.
    let (private, is_relative) = unsafe { (paths::private(path), live::is_relative(path)) };
    let is_sysfs = private.as_ref().is_some_and(Private::is_sysfs);
    // No file of sysfs is created or cut.
    let passed = if is_sysfs { flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC) } else { flags };
    let path = private.as_ref().map_or(path, Private::as_ptr);
    // SAFETY: the caller vouches for the arguments.
    let fd = unsafe { libc::syscall(libc::SYS_openat, directory, path, passed, mode as c_uint) as c_int };
    if fd < 0 || !(is_sysfs || is_relative) {
        return fd;
    }
    returned(preserving(|| live::opened(fd, flags)))
}

/// # Safety
/// As `write(2)`.
unsafe fn write_any(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    let perform = || {
        let (file, address) = (process::cm_file(fd)?, bytes as u64);
        let mut number = [0; 4];
        let waits = load(address, &mut number).is_ok() && u32::from_ne_bytes(number) == command::GET_EVENT;
        let work = || process::command_cm(fd, &file, address, count);
        // A wait ends with a signal of the calling thread.
        Some(if waits { work() } else { with_room(work) })
    };
    match preserving(perform) {
        Some(written) => returned(written.map(|count| count as ssize_t)),
        // SAFETY: the caller vouches for the arguments.
        None => unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t },
    }
}

/// Sleeping threads and cards of all copies of gdsync in the process: the program's copy finds this table by
/// its name ([`gdsync_sys::wake::EXPORTED`]).
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub static GDSYNC_WAKE_2: Table = Table::new();

/// Returns the open device of a descriptor.
fn device_of(fd: c_int) -> Result<Option<Arc<Context>>> {
    if descriptors::has(FdKind::Inherited, fd) {
        return preserving(|| with_room(|| process::open_inherited(fd)));
    }
    Ok(process::context(fd))
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
    let checked = preserving(|| match device_of(fd)? {
        Some(context) => match pages::check_mapping(&context, offset as u64, len) {
            Ok(page) => Ok(page.map(|page| (context, page))),
            Err(_) => device::check_mapping(offset as u64, len, protection).map(|()| None),
        },
        None => Ok(None),
    });
    let registers_of = match checked {
        Ok(context) => context,
        Err(errno) => {
            errno.set();
            return libc::MAP_FAILED;
        }
    };
    // SAFETY: the caller vouches for the arguments.
    let call = || unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
    let mapped: c_long = match flags & libc::MAP_FIXED {
        0 => call(),
        // SAFETY: the call maps the range anew.
        _ => unsafe { mappings::replace(at, len, call) },
    };
    let mapped = mapped as *mut c_void;
    if let Some((context, page)) = registers_of.filter(|_| mapped != libc::MAP_FAILED) {
        preserving(|| context.card().register_uar_mapping(page, mapped.cast()));
    }
    mapped
}

c_functions! {
    /// A variadic call passes `mode` in the register of this parameter. Without a mode the value
    /// is arbitrary, and the kernel ignores it.
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, flags, mode)
    }

    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode)
    }

    openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(directory, path, flags, mode)
    }

    openat64(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(directory, path, flags | libc::O_LARGEFILE, mode)
    }

    // Programs built with checks (`_FORTIFY_SOURCE`) call `__open_2` and its variants.
    __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_any(libc::AT_FDCWD, path, flags, 0)
    }

    __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_any(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, 0)
    }

    __openat_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_any(directory, path, flags, 0)
    }

    __openat64_2(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_any(directory, path, flags | libc::O_LARGEFILE, 0)
    }

    /// Commands of the connection manager are written to its file.
    write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
        write_any(fd, bytes, count)
    }

    /// The system maps a device's pages; the library refuses mappings that a kernel refuses. A
    /// program with its own function of this name loses only these checks.
    mmap(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map_any(at, len, protection, flags, fd, offset)
    }

    mmap64(at: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        map_any(at, len, protection, flags, fd, offset)
    }
}

/// `close(2)`. Closing a device destroys its objects.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub extern "C" fn close(fd: c_int) -> c_int {
    if descriptors::kind(fd).is_some() {
        preserving(|| with_room(|| process::close(fd)));
    }
    // SAFETY: the call accesses no memory of the process.
    unsafe { libc::syscall(libc::SYS_close, fd) as c_int }
}

/// `ioctl(2)`. The library performs the commands of its devices.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, number: c_ulong, argument: *mut c_void) -> c_int {
    let device = if number == RDMA_VERBS_IOCTL { device_of(fd) } else { Ok(None) };
    if let Some(device) = device.transpose() {
        let address = argument as u64;
        let perform = |context: Arc<Context>| with_room(|| commands::perform(&context, address));
        let performed = device.and_then(|context| preserving(|| perform(context)));
        return returned(performed.map(|()| 0));
    }
    // SAFETY: the caller vouches for the arguments.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, number, argument) as c_int }
}

//! Files whose content the running card answers, instead of those of the private folder.
//!
//! Such a file is one in memory, whose name tells which it is: duplicates, children and programs that inherit the
//! descriptor know it by that. As in sysfs, a read at the start takes a new content, which reads behind it continue.
//!
//! Calls of the C library's own functions reach no hook: `freopen`, standard input, POSIX AIO and io_uring read the
//! content of the last read at the start. A thread that unshares `/proc` loses the files' names, and with them new
//! contents.

use super::stack::with_room;
use crate::attributes::{load, store};
use crate::errno::{Errno, Result, preserving};
use crate::memory::PathRoom;
use crate::paths;
use crate::process;
use gdsync_sys::file_limit::within_file_limit;
use libc::{c_char, c_int, c_long, off_t};
use softhca::sysfs::LiveFile;
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The start of the files' names, which a path as [`LiveFile::find`] takes it follows.
const NAME: &str = "softhca";
/// Descriptors below this limit are remembered.
const MAX_FD: usize = 1 << 20;
const READ_WRITE: c_int = libc::O_RDWR | libc::O_CLOEXEC;

/// Descriptors that are no live files. One whose bit is clear may be: a program inherits files that it has not opened.
static PLAIN: [AtomicU64; MAX_FD / 64] = [const { AtomicU64::new(0) }; MAX_FD / 64];

fn plain(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((PLAIN.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns false if the descriptor is certainly no live file. Takes no lock and makes no system call.
pub(super) fn may_be_live(fd: RawFd) -> bool {
    fd >= 0 && plain(fd).is_none_or(|(word, mask)| word.load(Ordering::Relaxed) & mask == 0)
}

/// Notes that `to` has become a duplicate of `from`.
pub(super) fn duplicated(from: RawFd, to: RawFd) {
    if let Some((word, mask)) = plain(to).filter(|_| may_be_live(from)) {
        word.fetch_and(!mask, Ordering::Relaxed);
    }
}

/// Returns the live file of a descriptor.
pub(super) fn live(fd: RawFd) -> Option<(usize, LiveFile)> {
    if !may_be_live(fd) {
        return None;
    }
    let mut path = PathRoom::new()?;
    let found = path_of(fd, &mut path).and_then(|path| {
        let name =
            path.strip_prefix(b"/memfd:")?.strip_prefix(NAME.as_bytes())?.strip_suffix(b" (deleted)")?;
        LiveFile::find(str::from_utf8(name).ok()?)
    });
    if let Some((word, mask)) = plain(fd).filter(|_| found.is_none()) {
        word.fetch_or(mask, Ordering::Relaxed);
    }
    found
}

/// Returns the path of the stand-in for a live file, which has its attributes.
pub(super) fn attributes_of(fd: RawFd) -> Option<CString> {
    preserving(|| {
        let (index, file) = live(fd)?;
        let path = format!("{}/sys/class{}", paths::folder()?.display(), file.path(index));
        CString::new(path).ok()
    })
}

/// Returns whether a path depends on the working directory or on an open one.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn is_relative(path: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    !path.is_null() && !matches!(unsafe { *path } as u8, b'/' | 0)
}

/// Returns whether a descriptor's file is a stand-in for one of sysfs.
pub(super) fn is_sysfs(fd: RawFd) -> bool {
    PathRoom::new().is_some_and(|mut room| stand_in(fd, &mut room).is_some())
}

/// The path of a file of sysfs for which the private folder has a stand-in.
fn stand_in(fd: RawFd, place: &mut [u8]) -> Option<&[u8]> {
    let folder = paths::folder().filter(|_| fd >= 0)?;
    let inside = path_of(fd, place)?.strip_prefix(folder.as_os_str().as_bytes())?;
    Some(inside).filter(|inside| inside.starts_with(b"/sys/"))
}

/// Completes the opening of a file, which may be in the private folder: one that the card answers gets the card's
/// content. Returns the descriptor.
///
/// # Errors
/// EACCES if it is a file of sysfs and opened for writing; those of the system, if it gives no file. The descriptor is
/// closed then.
pub(super) fn opened(fd: RawFd, flags: c_int) -> Result<RawFd> {
    let Some(mut path) = PathRoom::new() else { return Ok(fd) };
    let inside = if flags & libc::O_PATH == 0 { stand_in(fd, &mut path) } else { None };
    let Some(inside) = inside else { return Ok(fd) };
    // SAFETY: the caller has just opened the descriptor, and gives it away.
    let opened = unsafe { OwnedFd::from_raw_fd(fd) };
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(Errno(libc::EACCES));
    }
    let live = str::from_utf8(inside).ok().and_then(LiveFile::find);
    // Without a card, the file keeps the content of the stand-in.
    let content =
        live.and_then(|(index, file)| Some((file.path(index), with_room(|| process::content(index, file))?)));
    let Some((path, text)) = content else { return Ok(opened.into_raw_fd()) };
    let file = in_memory(&path, text.as_bytes())?;
    let flags = flags & (libc::O_CLOEXEC | libc::O_NONBLOCK);
    // The place of the stand-in: the program may rely on the lowest free number.
    // SAFETY: the call accesses no memory of the process.
    let placed = unsafe { libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, flags & libc::O_CLOEXEC) };
    if placed < 0 {
        return Err(Errno::last());
    }
    duplicated(file.as_raw_fd(), fd);
    Ok(opened.into_raw_fd())
}

/// A file in memory that can only be read.
fn in_memory(path: &str, content: &[u8]) -> Result<OwnedFd> {
    let name = format!("{NAME}{path}\0");
    // SAFETY: the name is a C string; the descriptor is new, and nothing else owns it.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Errno::last());
        }
        OwnedFd::from_raw_fd(fd)
    };
    write(&file, content)?;
    reopen(file.as_raw_fd(), libc::O_RDONLY | libc::O_CLOEXEC)
}

fn write(file: &OwnedFd, content: &[u8]) -> Result<()> {
    let (fd, len) = (file.as_raw_fd(), content.len());
    let written = within_file_limit(|| {
        // SAFETY: the slice keeps the bytes readable.
        let written = unsafe { libc::pwrite(fd, content.as_ptr().cast(), len, 0) };
        // SAFETY: the call accesses no memory of the process.
        let failed = written < 0 || unsafe { libc::ftruncate(fd, len as off_t) } != 0;
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    });
    written.map_err(Errno::from)
}

/// Writes the path of a descriptor, with its zero.
fn link_of(fd: RawFd) -> Option<[u8; 32]> {
    let mut name = [0; 32];
    write!(name.as_mut_slice(), "/proc/self/fd/{fd}\0").ok()?;
    Some(name)
}

fn reopen(fd: RawFd, flags: c_int) -> Result<OwnedFd> {
    let link = link_of(fd).ok_or(Errno::BAD_FD)?;
    // SAFETY: a C string; the descriptor is new, and nothing else owns it.
    unsafe {
        match libc::syscall(libc::SYS_openat, libc::AT_FDCWD, link.as_ptr(), flags, 0) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd as RawFd)),
            _ => Err(Errno::last()),
        }
    }
}

/// The path of an open file.
fn path_of(fd: RawFd, into: &mut [u8]) -> Option<&[u8]> {
    let link = link_of(fd)?;
    // SAFETY: a C string, and a place of that length.
    let len: c_long = unsafe {
        let (link, place) = (link.as_ptr(), into.as_mut_ptr());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link, place, into.len())
    };
    usize::try_from(len).ok().filter(|len| *len < into.len()).map(|len| &into[..len])
}

/// Gives a live file its content of this moment, for reads behind its start. No effect on other files.
pub(super) fn refresh(fd: RawFd) -> Option<String> {
    let (index, file) = live(fd)?;
    let text = with_room(|| process::content(index, file))?;
    // If it fails, such reads continue an earlier content.
    let _ = reopen(fd, READ_WRITE).and_then(|file| write(&file, text.as_bytes()));
    Some(text)
}

/// A place in the program's memory: address and length.
pub(super) type Part = (u64, usize);

/// Reads the program's array of places at `address`. `None` if the system refuses it.
pub(super) fn parts(address: u64, count: c_int) -> Option<Vec<Part>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize)?;
    let mut bytes = vec![0; count * size_of::<libc::iovec>()];
    load(address, &mut bytes).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
    let (pairs, _) = bytes.as_chunks::<{ size_of::<libc::iovec>() }>();
    Some(
        pairs
            .iter()
            .map(|pair| pair.split_at(pair.len() / 2))
            .map(|(at, len)| (word(at) as u64, word(len)))
            .collect(),
    )
}

/// Reads a live file at its start into the program's memory. `None` if it is none, or the read does not begin at the
/// start: the system reads then.
///
/// The program gets the bytes of one content, also if another thread reads the file.
pub(super) fn read(
    fd: RawFd,
    places: impl FnOnce() -> Option<Vec<Part>>,
    offset: Option<off_t>,
) -> Option<Result<isize>> {
    if !may_be_live(fd) {
        return None;
    }
    preserving(|| {
        live(fd)?;
        // SAFETY: the call accesses no memory of the process.
        let at = offset.unwrap_or_else(|| unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) });
        if at != 0 {
            return None;
        }
        let places = places()?;
        let text = refresh(fd)?;
        let mut rest = text.as_bytes();
        for (address, len) in places {
            let (part, after) = rest.split_at(len.min(rest.len()));
            if let Err(errno) = store(address, part) {
                return Some(Err(errno));
            }
            rest = after;
        }
        let done = text.len() - rest.len();
        if offset.is_none() {
            // SAFETY: as above.
            unsafe { libc::lseek(fd, done as off_t, libc::SEEK_SET) };
        }
        Some(Ok(done as isize))
    })
}

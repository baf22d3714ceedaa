//! Files whose content the running card answers, instead of those of the private folder.

use crate::errno::{Errno, Result};
use crate::paths::{self, Private};
use crate::process;
use libc::c_char;
use softhca::sysfs::LiveFile;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// Returns a file with the running card's content; `None` for all other paths, and if no card can run.
pub(super) fn open_live(path: &Private, close_on_exec: bool) -> Option<Result<OwnedFd>> {
    let (index, file) = LiveFile::find(str::from_utf8(path.named()).ok()?)?;
    process::content(index, file).map(|text| file_with(text.as_bytes(), close_on_exec))
}

/// A file in memory.
fn file_with(content: &[u8], close_on_exec: bool) -> Result<OwnedFd> {
    let flags = if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a C string; the descriptor is new, and nothing else owns it.
    let fd = unsafe { libc::memfd_create(c"sysfs".as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: as above.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(content)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file.into())
}

/// Returns whether a path depends on the working directory or on an open one.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn is_relative(path: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    !path.is_null() && !matches!(unsafe { *path } as u8, b'/' | 0)
}

/// Replaces a file opened by a relative path by one with the running card's content, if its directory is in
/// the private folder and the card answers it.
pub(super) fn replace_if_live(fd: RawFd) {
    let Some(folder) = paths::folder().filter(|_| fd >= 0) else { return };
    let mut path = [0; libc::PATH_MAX as usize];
    let Some(len) = path_of(fd, &mut path) else { return };
    let inside = path[..len].strip_prefix(folder.as_os_str().as_bytes());
    let live = inside.and_then(|rest| LiveFile::find(str::from_utf8(rest).ok()?));
    let Some(Ok(file)) = live.and_then(|(index, file)| process::content(index, file)).map(|text| {
        // The program's own flag is set below.
        file_with(text.as_bytes(), true)
    }) else {
        return;
    };
    // SAFETY: the calls access no memory of the process; the descriptor is the caller's.
    unsafe {
        let flags = libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD);
        let close_on_exec =
            if flags & libc::c_long::from(libc::FD_CLOEXEC) != 0 { libc::O_CLOEXEC } else { 0 };
        // If it fails, the file keeps the content of the stand-in.
        libc::syscall(libc::SYS_dup3, file.as_raw_fd(), fd, close_on_exec);
    }
}

/// The path of an open file, without its zero.
fn path_of(fd: RawFd, into: &mut [u8]) -> Option<usize> {
    let mut name = [0; 32];
    write!(name.as_mut_slice(), "/proc/self/fd/{fd}").ok()?;
    // SAFETY: a C string, as zeros follow it, and a place of that length.
    let len = unsafe {
        let (name, place) = (name.as_ptr().cast::<c_char>(), into.as_mut_ptr().cast::<c_char>());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, name, place, into.len())
    };
    usize::try_from(len).ok().filter(|len| *len < into.len())
}

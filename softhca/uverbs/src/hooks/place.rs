//! The working directory, which may be in the private folder.

use super::files::PassedPath;
use super::next;
use crate::errno::{Errno, Result, preserving};
use crate::paths;
use libc::{c_char, c_int, size_t};
use std::ptr;

/// Returns the path of the working directory that the program should see; `None` if the system's is right.
fn public_place() -> Option<Vec<u8>> {
    paths::folder()?;
    let mut whole = [0u8; libc::PATH_MAX as usize];
    // SAFETY: the place has that many bytes.
    let len = unsafe { libc::syscall(libc::SYS_getcwd, whole.as_mut_ptr(), whole.len()) };
    // The system counts the zero.
    let path = whole.get(..usize::try_from(len).ok()?.checked_sub(1)?)?;
    let public = paths::public(path);
    (public.len() < path.len()).then(|| public.to_vec())
}

/// Stores a path and its zero. Without a buffer it allocates one, which the caller frees.
///
/// # Safety
/// As `getcwd(3)`.
unsafe fn store(path: &[u8], buffer: *mut c_char, size: size_t) -> Result<*mut c_char> {
    let needed = path.len() + 1;
    if size < needed && !(buffer.is_null() && size == 0) {
        return Err(Errno(if size == 0 { libc::EINVAL } else { libc::ERANGE }));
    }
    let place = if buffer.is_null() {
        // SAFETY: the call has no preconditions.
        unsafe { libc::malloc(size.max(needed)).cast::<c_char>() }
    } else {
        buffer
    };
    if place.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the place has room for the path and its zero, as checked above; it is none of ours.
    unsafe {
        ptr::copy_nonoverlapping(path.as_ptr(), place.cast(), path.len());
        *place.add(path.len()) = 0;
    }
    Ok(place)
}

/// # Safety
/// As `getcwd(3)`.
unsafe fn getcwd_any(buffer: *mut c_char, size: size_t) -> *mut c_char {
    // SAFETY: the caller vouches for the arguments.
    match preserving(|| public_place().map(|path| unsafe { store(&path, buffer, size) })) {
        // SAFETY: as above.
        None => unsafe { next::getcwd(buffer, size) },
        Some(Ok(place)) => place,
        Some(Err(errno)) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

/// # Safety
/// As `chdir(2)`.
unsafe fn chdir_any(path: *const c_char) -> c_int {
    // SAFETY: the caller vouches for `path`.
    unsafe { libc::syscall(libc::SYS_chdir, PassedPath::of(path).as_ptr()) as c_int }
}

c_functions! {
    chdir(path: *const c_char) -> c_int {
        chdir_any(path)
    }

    getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
        getcwd_any(buffer, size)
    }

    /// `getcwd` of programs built with checks.
    __getcwd_chk(buffer: *mut c_char, size: size_t, _room: size_t) -> *mut c_char {
        getcwd_any(buffer, size)
    }
}

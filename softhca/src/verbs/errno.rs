//! Errors for C callers.

use crate::card::CardError;
use libc::c_int;

/// An errno value; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) c_int);

impl Errno {
    pub(super) const AGAIN: Errno = Errno(libc::EAGAIN);
    pub(super) const BUSY: Errno = Errno(libc::EBUSY);
    pub(super) const INVALID: Errno = Errno(libc::EINVAL);
    pub(super) const NO_MEMORY: Errno = Errno(libc::ENOMEM);
    /// The device has refused a command; its answer has the reason.
    pub(super) const REFUSED: Errno = Errno(libc::EREMOTEIO);
    pub(super) const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

    /// The calling thread's `errno`, right after a C function failed.
    pub(super) fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().filter(|code| *code != 0).unwrap_or(libc::EIO))
    }

    fn set(self) {
        // SAFETY: the location belongs to the calling thread, and is valid while it lives.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl From<CardError> for Errno {
    /// Logs the text, which an errno cannot carry.
    fn from(error: CardError) -> Self {
        tracing::warn!(%error, "the card refused a command");
        Errno(error.errno())
    }
}

pub(super) type Result<T> = std::result::Result<T, Errno>;

/// For functions that return a pointer: null with `errno` set on failure.
pub(super) fn pointer<T>(work: impl FnOnce() -> Result<*mut T>) -> *mut T {
    work().unwrap_or_else(|errno| {
        errno.set();
        std::ptr::null_mut()
    })
}

/// For functions that return 0 or a positive errno, and set `errno` as well.
pub(super) fn status(work: impl FnOnce() -> Result<()>) -> c_int {
    match work() {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// For functions that return 0, or -1 with `errno` set.
pub(super) fn minus_one(work: impl FnOnce() -> Result<()>) -> c_int {
    if status(work) == 0 { 0 } else { -1 }
}

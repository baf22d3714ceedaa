//! Error numbers, as the kernel returns them.

use libc::c_int;
use softhca::card::CardError;
use std::io::ErrorKind;

/// A nonzero `errno` value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    pub(crate) const BAD_FD: Errno = Errno(libc::EBADF);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
    pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
    pub(crate) const NO_DEVICE: Errno = Errno(libc::ENODEV);
    pub(crate) const NO_ENTRY: Errno = Errno(libc::ENOENT);
    pub(crate) const NO_SPACE: Errno = Errno(libc::ENOSPC);
    pub(crate) const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// The command or a mandatory attribute is unknown. rdma-core then tries an older command.
    pub(crate) const UNKNOWN: Errno = Errno(libc::EPROTONOSUPPORT);

    /// Returns the error of the system call that just failed.
    pub(crate) fn last() -> Self {
        std::io::Error::last_os_error().into()
    }

    pub(crate) fn set(self) {
        // SAFETY: the C library keeps the calling thread's location valid while the thread lives.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `work` as a system call runs: without a cancellation of the thread, which cannot unwind Rust's frames, and, as
/// one that succeeds, without a change of `errno`.
pub(crate) fn preserving<T>(work: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: the state is the calling thread's; `before` is valid for a write.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
    let result = keeping_errno(work);
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// Runs `work`, which has no cancellation point, and restores `errno`.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the C library keeps the calling thread's location valid while the thread lives.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; only this thread accesses the location.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == ErrorKind::FileTooLarge {
            tracing::warn!(%error, "the system refused a file");
            return Errno(libc::EFBIG);
        }
        Errno(error.raw_os_error().filter(|code| *code != 0).unwrap_or(libc::EIO))
    }
}

impl From<CardError> for Errno {
    /// Logs the error's text, which an error number cannot carry.
    fn from(error: CardError) -> Self {
        tracing::warn!(%error, "the card refused a command");
        Errno(error.errno())
    }
}

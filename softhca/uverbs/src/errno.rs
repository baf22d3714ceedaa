//! Errors as the kernel would answer them.

use softhca::card::CardError;

/// An errno value; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    pub(crate) const BAD_FD: Errno = Errno(libc::EBADF);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const FAULT: Errno = Errno(libc::EFAULT);
    pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
    pub(crate) const NO_DATA: Errno = Errno(libc::ENODATA);
    pub(crate) const NO_DEVICE: Errno = Errno(libc::ENODEV);
    pub(crate) const NO_ENTRY: Errno = Errno(libc::ENOENT);
    pub(crate) const NO_SPACE: Errno = Errno(libc::ENOSPC);
    pub(crate) const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// A command, or an attribute that must be understood, is not known: rdma-core then tries an older way.
    pub(crate) const UNKNOWN: Errno = Errno(libc::EPROTONOSUPPORT);

    /// Of the system call that just failed.
    pub(crate) fn last() -> Self {
        std::io::Error::last_os_error().into()
    }

    pub(crate) fn set(self) {
        // SAFETY: the location is the calling thread's own, valid as long as the thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Does work that leaves `errno` as it was, as system calls do that succeed.
pub(crate) fn preserving<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the location is the calling thread's own, valid as long as the thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody else uses it.
    let before = unsafe { *place };
    let result = work();
    // SAFETY: as above.
    unsafe { *place = before };
    result
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Errno(error.raw_os_error().filter(|code| *code != 0).unwrap_or(libc::EIO))
    }
}

impl From<CardError> for Errno {
    /// The words go to the log: there is no other place for them.
    fn from(error: CardError) -> Self {
        tracing::warn!(%error, "the card refused a command");
        Errno(error.errno())
    }
}

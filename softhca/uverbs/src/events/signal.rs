//! Readiness of a file: programs poll it, and threads of the library wait for it.

use super::pipe::EventPipe;
use crate::errno::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// The content of a ready file's pipe.
const READY: u64 = 1;

/// A pipe that is readable while the file is ready, and a count of the times at which it became ready.
#[derive(Debug)]
pub(crate) struct Signal {
    pipe: EventPipe,
    raised: AtomicU32,
}

impl Signal {
    /// Also returns the descriptor that the program polls. Nothing can be written to it: a forked child,
    /// which the library does not serve there, gets EBADF.
    pub(crate) fn new() -> Result<(Signal, OwnedFd)> {
        let (pipe, theirs) = EventPipe::new()?;
        Ok((Signal { pipe, raised: AtomicU32::new(0) }, theirs))
    }

    /// Marks the file as ready, which it must not be yet.
    pub(crate) fn raise(&self) {
        self.pipe.push(&READY.to_ne_bytes());
        self.wake();
    }

    /// Marks the file as not ready.
    pub(crate) fn lower(&self) {
        self.pipe.take_back(size_of::<u64>(), READY);
    }

    /// Ends every wait.
    pub(crate) fn wake(&self) {
        self.raised.fetch_add(1, Ordering::Release);
        let all = i32::MAX;
        // SAFETY: the word is an aligned `u32`, which lives during the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.raised.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                all,
            )
        };
    }

    /// Returns the argument of [`Self::wait`], to be taken before checking for readiness.
    pub(crate) fn seen(&self) -> u32 {
        self.raised.load(Ordering::Acquire)
    }

    /// Waits until [`Self::raise`] or [`Self::wake`] is called after `seen` was taken. After a signal it
    /// continues or ends with EINTR, as the program has chosen with `SA_RESTART`, like a system call.
    pub(crate) fn wait(&self, seen: u32) -> Result<()> {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the word is an aligned `u32`, which lives during the call; there is no timeout.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.raised.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                seen,
                none,
            )
        };
        match Errno::last() {
            error if rc < 0 && error.0 == libc::EINTR => Err(error),
            // Raised, possibly before the wait began.
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::wake::readable;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_raised_signal_is_readable_and_ends_waits() {
        let (signal, fd) = Signal::new().unwrap();
        let signal = Arc::new(signal);
        let is_readable = || readable(&[fd.as_fd()], Some(Duration::ZERO)).unwrap() == [true];
        assert!(!is_readable());
        let (seen, other) = (signal.seen(), signal.clone());
        let waiter = std::thread::spawn(move || other.wait(seen));
        std::thread::sleep(Duration::from_millis(5));
        signal.raise();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(is_readable());
        assert_eq!(signal.wait(seen), Ok(()), "it was raised before the wait");
        signal.lower();
        assert!(!is_readable());
    }
}

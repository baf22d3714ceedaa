//! Readiness of a file: programs poll it, and threads of the library wait for it.

use super::pipe::EventPipe;
use crate::errno::{Errno, Result};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a ready file's pipe contains.
const READY: u64 = 1;

/// A pipe that is readable while the file is ready, and a count of the moments at which it became so.
#[derive(Debug)]
pub(crate) struct Signal {
    pipe: EventPipe,
    raised: AtomicU32,
}

impl Signal {
    /// Returns the descriptor that the program polls, too. Nothing can be written to it: a forked
    /// child, which the library does not serve there, gets EBADF.
    pub(crate) fn new() -> Result<(Signal, OwnedFd)> {
        let (pipe, theirs) = EventPipe::new()?;
        Ok((Signal { pipe, raised: AtomicU32::new(0) }, theirs))
    }

    /// The file is ready. Called when it was not.
    pub(crate) fn raise(&self) {
        self.pipe.push(&READY.to_ne_bytes());
        self.wake();
    }

    /// The file is not ready any more.
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

    /// The number for [`Self::wait`]: taken before the look at what is waited for.
    pub(crate) fn seen(&self) -> u32 {
        self.raised.load(Ordering::Acquire)
    }

    /// Waits until [`Self::raise`] or [`Self::wake`] is called after `seen` was taken, as a system call
    /// does: after a signal the kernel goes on with the wait, or it ends with EINTR, as the program has
    /// asked for with `SA_RESTART`.
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
            // Raised, or raised before the wait began.
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

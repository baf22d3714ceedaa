//! Waking the program and the library's threads: files that become ready, and an eventfd that ends a wait for several
//! descriptors.

use super::files::EventPipe;
use crate::errno::{Errno, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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
    pub(crate) fn count(&self) -> u32 {
        self.raised.load(Ordering::Acquire)
    }

    /// Waits until [`Self::raise`] or [`Self::wake`] is called after `count` was taken. After a signal it
    /// continues or ends with EINTR, as the program has chosen with `SA_RESTART`, like a system call.
    pub(crate) fn wait(&self, count: u32) -> Result<()> {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the word is an aligned `u32`, which lives during the call; there is no timeout.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.raised.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                count,
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

/// An eventfd that any thread may raise.
#[derive(Debug)]
pub(crate) struct Wake(File);

impl Wake {
    pub(crate) fn new() -> Result<Wake> {
        // SAFETY: a plain system call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the call has just opened the descriptor, and nothing else owns it.
        Ok(Wake(unsafe { File::from_raw_fd(fd) }))
    }

    pub(crate) fn raise(&self) {
        // Fails only if the count is at its limit; the descriptor is readable then.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn drain(&self) {
        // Fails if it was not raised.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable or closed, or the time is over; forever without a time.
/// Returns which are.
pub(crate) fn readable(fds: &[BorrowedFd<'_>], longest: Option<Duration>) -> Result<Vec<bool>> {
    let entry = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = fds.iter().map(entry).collect();
    // Rounded up: a wait that ends early would be repeated at once.
    let millis =
        longest.map_or(-1, |time| i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    // SAFETY: as many valid entries as the count says.
    let rc = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    if rc < 0 {
        return Err(Errno::last());
    }
    Ok(polled.iter().map(|entry| entry.revents != 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_raised_signal_is_readable_and_ends_waits() {
        let (signal, fd) = Signal::new().unwrap();
        let signal = Arc::new(signal);
        let is_readable = || readable(&[fd.as_fd()], Some(Duration::ZERO)).unwrap() == [true];
        assert!(!is_readable());
        let (count, other) = (signal.count(), signal.clone());
        let waiter = std::thread::spawn(move || other.wait(count));
        std::thread::sleep(Duration::from_millis(5));
        signal.raise();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(is_readable());
        assert_eq!(signal.wait(count), Ok(()), "it was raised before the wait");
        signal.lower();
        assert!(!is_readable());
    }

    #[test]
    fn a_raised_wake_is_readable_until_it_is_drained() {
        let [one, other] = [(); 2].map(|()| Wake::new().unwrap());
        let look = |longest| readable(&[one.as_fd(), other.as_fd()], longest).unwrap();
        assert_eq!(look(Some(Duration::from_micros(1))), [false, false]);
        other.raise();
        other.raise();
        assert_eq!(look(None), [false, true]);
        other.drain();
        other.drain();
        assert_eq!(look(Some(Duration::ZERO)), [false, false]);
    }
}

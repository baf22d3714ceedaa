//! Waking a thread that waits for several descriptors.

use crate::errno::{Errno, Result};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::time::Duration;

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

//! What an engine's thread sleeps on.

use super::sys::{self, Epoll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// Sleeps until a packet or room for one comes, a peer dies, or another thread wakes it.
///
/// Waking is cheap while nobody sleeps. It is not lost: the sleeper announces itself and then looks for work; the waker
/// makes work and then looks for the announcement (both with a SeqCst fence between), so one of them sees the other.
pub struct Sleeper {
    pub(super) epoll: Epoll,
    event: OwnedFd,
    announced: AtomicBool,
}

impl Sleeper {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Sleeper { epoll: Epoll::new()?, event: sys::event()?, announced: AtomicBool::new(false) })
    }

    /// From now on, [`Self::wake`] is heard.
    pub(super) fn announce(&self) {
        self.announced.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Sleeps, at most for `timeout`. To be called between `prepare_sleep` and `finish_sleep` of the fabric, by one thread.
    pub fn sleep(&self, timeout: Duration) {
        sys::sleep(&[self.epoll.as_fd(), self.event.as_fd()], timeout);
    }

    /// The sleeper is awake: until the next announcement nobody has to wake it.
    pub(super) fn woke(&self) {
        self.announced.store(false, Ordering::Relaxed);
        sys::drain(self.event.as_fd());
    }

    /// Wakes the sleeper, or keeps it from falling asleep. From any thread, after making the work that it should find.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.announced.load(Ordering::Relaxed) && self.announced.swap(false, Ordering::Relaxed) {
            sys::raise(self.event.as_fd());
        }
    }
}

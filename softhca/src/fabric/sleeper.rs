use crate::os::wait::{self, Epoll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// The object that an engine's thread sleeps on until a packet arrives, room for one appears, a peer's
/// process ends, or another thread wakes it.
///
/// Waking is cheap while the engine is awake, and no wake-up is lost: the sleeper announces itself and then
/// looks for work; the waker makes work and then looks for the announcement (both with a SeqCst fence
/// between), so at least one of them sees the other.
pub(crate) struct Sleeper {
    pub(super) epoll: Epoll,
    event: OwnedFd,
    announced: AtomicBool,
}

impl Sleeper {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Sleeper {
            epoll: Epoll::new()?,
            event: wait::event(libc::EFD_NONBLOCK)?,
            announced: AtomicBool::new(false),
        })
    }

    /// Makes [`Self::wake`] end the next sleep.
    pub(super) fn announce(&self) {
        self.announced.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Sleeps for `timeout` at most. One thread calls it, between the fabric's `prepare_sleep` and `finish_sleep`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        wait::sleep(&[self.epoll.as_fd(), self.event.as_fd()], timeout);
    }

    pub(super) fn withdraw(&self) {
        self.announced.store(false, Ordering::Relaxed);
        wait::drain(self.event.as_fd());
    }

    /// Ends a sleep that was not announced, or the next one.
    pub(crate) fn raise(&self) {
        wait::raise(self.event.as_fd());
    }

    /// Wakes the sleeper, or keeps it from falling asleep. Any thread may call it, after making the sleeper's
    /// work visible.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.announced.load(Ordering::Relaxed) && self.announced.swap(false, Ordering::Relaxed) {
            wait::raise(self.event.as_fd());
        }
    }
}

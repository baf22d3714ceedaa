use super::peers::WAKE;
use crate::os::wait::{self, Epoll, Woken};
use parking_lot::Mutex;
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
    woken: Mutex<Woken>,
}

impl Sleeper {
    /// `has_changes`: as [`Epoll::new`].
    pub(super) fn new(has_changes: bool) -> io::Result<Self> {
        let (epoll, event) = (Epoll::new(has_changes)?, wait::event(libc::EFD_NONBLOCK)?);
        epoll.watch(event.as_fd(), WAKE)?;
        Ok(Sleeper { epoll, event, announced: AtomicBool::new(false), woken: Mutex::new(Woken::ByTime) })
    }

    /// Makes [`Self::wake`] end the next sleep.
    pub(super) fn announce(&self) {
        self.announced.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Sleeps for `timeout` at most. One thread calls it, between the fabric's `prepare_sleep` and `finish_sleep`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let woken = self.epoll.sleep(timeout);
        *self.woken.lock() = woken;
    }

    /// Reverts [`Self::announce`]. A wake-up that was raised before ends the next sleep.
    pub(super) fn cancel(&self) {
        self.announced.store(false, Ordering::Relaxed);
    }

    /// Reverts [`Self::announce`] after a sleep, and takes the wake-up of a thread if that has ended it. Returns what else
    /// has ended it.
    pub(super) fn withdraw(&self) -> Woken {
        self.cancel();
        let woken = std::mem::replace(&mut *self.woken.lock(), Woken::ByTime);
        match woken {
            Woken::By(WAKE) => {
                wait::drain(self.event.as_fd());
                Woken::ByTime
            }
            Woken::Unknown => {
                wait::drain(self.event.as_fd());
                Woken::Unknown
            }
            other => other,
        }
    }

    /// Ends a sleep that was not announced, or the next one.
    pub(crate) fn raise(&self) {
        wait::raise(self.event.as_fd());
    }

    /// Returns whether a wake-up of a thread ends the next sleep.
    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        wait::is_ready(self.event.as_fd())
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

//! Whether a queue pair takes posts, to be read without a lock.

use std::sync::atomic::{AtomicBool, Ordering};

/// It is connected, has not failed, and is not handed over to kernels. Changed under the lock of the queue pair's status.
#[derive(Debug, Default)]
pub(crate) struct Ready(AtomicBool);

impl Ready {
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn close(&self) {
        self.0.store(false, Ordering::Release);
    }
}

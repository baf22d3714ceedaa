//! Who may post to a queue pair, to be read without a lock.

use std::sync::atomic::{AtomicU8, Ordering};

/// It is connected, has not failed, and is not handed over to kernels.
const OPEN: u8 = 1;
/// It has one owner, and nobody else posts.
const OWNED: u8 = 2;

/// Changed under the lock of the queue pair's status.
#[derive(Debug, Default)]
pub(crate) struct Ready(AtomicU8);

impl Ready {
    #[inline(always)]
    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Acquire) == state
    }

    /// Any thread may post.
    #[inline(always)]
    pub(crate) fn for_all(&self) -> bool {
        self.is(OPEN)
    }

    /// The owner may post.
    #[inline(always)]
    pub(crate) fn for_owner(&self) -> bool {
        self.is(OPEN | OWNED)
    }

    /// Somebody may post.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & OPEN != 0
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.0.load(Ordering::Acquire) & OWNED != 0
    }

    pub(crate) fn open(&self) {
        self.0.fetch_or(OPEN, Ordering::AcqRel);
    }

    pub(crate) fn close(&self) {
        self.0.fetch_and(!OPEN, Ordering::AcqRel);
    }

    pub(crate) fn own(&self, owned: bool) {
        match owned {
            true => self.0.fetch_or(OWNED, Ordering::AcqRel),
            false => self.0.fetch_and(!OWNED, Ordering::AcqRel),
        };
    }
}

//! Keeps regions alive for work requests that hold no reference.
//!
//! A post that held its regions would count a reference to each, and its completion would count it back: two locked
//! instructions. Instead, a queue numbers its posts. A region knows each queue that it was posted to, with the number
//! of its last post there. When its last handle is dropped, it gives its registration to these queues, and each keeps
//! it until that post has retired.
//!
//! This is sound: a post borrows a handle until it returns, so no post names the region after its last handle was
//! dropped; and the reference count of the handles orders every earlier post before that drop.

use crate::util::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::util::sync::{Mutex, MutexGuard};

/// The numbers of posted and retired posts of a queue, and the values that it keeps until more have retired.
#[derive(Debug)]
pub(crate) struct DeferredRelease<T> {
    /// Both are written under the lock of the queue.
    posted: AtomicU64,
    retired: AtomicU64,
    /// Each value, with the number of the post that releases it. The innermost lock.
    kept: Mutex<Vec<(u64, T)>>,
    /// True if `kept` is not empty. Written under its lock.
    keeps: AtomicBool,
}

impl<T> DeferredRelease<T> {
    pub(crate) fn new() -> Self {
        DeferredRelease {
            posted: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            kept: Mutex::new(Vec::new()),
            keeps: AtomicBool::new(false),
        }
    }

    /// Acquire: writes before the last post are visible.
    #[inline(always)]
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(crate) fn post(&self, posted: u64) {
        self.posted.store(posted, Ordering::Release);
    }

    /// Counts `posts` more as retired: the card no longer uses their memory. The caller holds the lock of the queue.
    pub(crate) fn retire(&self, posts: u64) {
        let retired = self.retired.load(Ordering::Relaxed) + posts;
        self.retired.store(retired, Ordering::Release);
        // Either this sees that something is kept, or `keep` sees the new number: each executes a full fence between
        // its store and its load.
        fence(Ordering::SeqCst);
        if self.keeps.load(Ordering::Relaxed) {
            self.release();
        }
    }

    /// The number of the next post. The caller holds the lock of the queue.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        self.posted.load(Ordering::Relaxed) + 1
    }

    /// Keeps a value until post `last` has retired, or the posts so far have, if `last` was refused.
    pub(crate) fn keep(&self, last: u64, thing: impl FnOnce() -> T) {
        let until = last.min(self.posted());
        if self.retired.load(Ordering::Acquire) >= until {
            return;
        }
        let mut kept = self.lock();
        kept.push((until, thing()));
        self.keeps.store(true, Ordering::Relaxed);
        drop(kept);
        fence(Ordering::SeqCst);
        self.release();
    }

    /// Drops the values whose posts have retired, outside the lock.
    fn release(&self) {
        let mut kept = self.lock();
        let retired = self.retired.load(Ordering::Acquire);
        if kept.iter().all(|(until, _)| *until > retired) {
            return;
        }
        let (still, past): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *kept).into_iter().partition(|(until, _)| *until > retired);
        self.keeps.store(!still.is_empty(), Ordering::Relaxed);
        *kept = still;
        drop(kept);
        drop(past);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, T)>> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    proptest! {
        /// Each value is dropped when the last post that names it has retired, and no earlier.
        #[test]
        fn things_go_with_their_last_posts(steps in prop::collection::vec((0u64..4, 0u64..4, any::<Option<u64>>()), 1..40)) {
            let (deferred, mut posted, mut retired, mut things) = (DeferredRelease::new(), 0, 0, Vec::new());
            for (posts, retires, gives) in steps {
                posted += posts;
                deferred.post(posted);
                prop_assert_eq!(deferred.next(), posted + 1);
                if let Some(last) = gives {
                    // At most the number of a post that was refused.
                    let last = last % (posted + 2);
                    let thing = Arc::new(());
                    let kept = thing.clone();
                    deferred.keep(last, move || kept);
                    things.push((last.min(posted), thing));
                }
                let retires = retires.min(posted - retired);
                retired += retires;
                deferred.retire(retires);
                for (until, thing) in &things {
                    prop_assert_eq!(Arc::strong_count(thing) > 1, *until > retired);
                }
            }
        }
    }
}

//! Keeping things for work that does not hold them: the regions of what the CPU posts.
//!
//! A post that holds its regions counts a reference to each, and its completion counts it back: two
//! locked instructions. A queue counts its posts in the place of that. A region knows the queues that it
//! was posted to, once each, with the number of its last post there, and hands its registration over to
//! them when its last handle is dropped. A queue keeps it until that post has retired.
//!
//! That is enough: a post borrows a handle until it returns, so no post names the region after its last
//! handle was dropped; and the counting of handles orders every earlier post before that drop.

use crate::util::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::util::sync::{Mutex, MutexGuard};

/// How much was posted to a queue, how much of that has retired, and what is kept until more has.
#[derive(Debug)]
pub(crate) struct DeferredRelease<T> {
    /// Written under the lock of the queue.
    posted: AtomicU64,
    /// Written under the lock of the queue.
    retired: AtomicU64,
    /// Each with how much has to retire. The innermost lock.
    kept: Mutex<Vec<(u64, T)>>,
    /// There is something. Changed under the lock.
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

    /// Posts so far. What was written before them is visible.
    #[inline(always)]
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// So much was posted.
    #[inline(always)]
    pub(crate) fn post(&self, posted: u64) {
        self.posted.store(posted, Ordering::Release);
    }

    /// So many posts more have retired: the card does not touch what they name any more. The caller
    /// holds the lock of the queue.
    pub(crate) fn retire(&self, posts: u64) {
        let retired = self.retired.load(Ordering::Relaxed) + posts;
        self.retired.store(retired, Ordering::Release);
        // Either this sees that something is kept, or `keep` sees what has retired: each has a full
        // fence between its store and its load.
        fence(Ordering::SeqCst);
        if self.keeps.load(Ordering::Relaxed) {
            self.release();
        }
    }

    /// The number of the next post, for who posts.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        self.posted.load(Ordering::Relaxed) + 1
    }

    /// Keeps what is about to go until post number `last` has retired, which may name it; or what is posted by now,
    /// where that post was refused.
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

    /// Lets go of that for which everything has retired; outside the lock.
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
        /// Each thing goes when the last post that names it has retired, and no later.
        #[test]
        fn things_go_with_their_last_posts(steps in prop::collection::vec((0u64..4, 0u64..4, any::<Option<u64>>()), 1..40)) {
            let (deferred, mut posted, mut retired, mut things) = (DeferredRelease::new(), 0, 0, Vec::new());
            for (posts, retires, gives) in steps {
                posted += posts;
                deferred.post(posted);
                prop_assert_eq!(deferred.next(), posted + 1);
                if let Some(last) = gives {
                    // Up to the number of a post that was refused.
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

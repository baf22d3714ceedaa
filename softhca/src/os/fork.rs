//! Forks that led to this process: which of its parent's forks made it, and so on up to the process that began to count.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Maximum number of forks in a path; deeper ones are left out.
const DEPTH: usize = 8;

/// Forks of this process so far.
static FORKS: AtomicU32 = AtomicU32::new(0);
static PATH: [AtomicU32; DEPTH] = [const { AtomicU32::new(0) }; DEPTH];
static LEVEL: AtomicUsize = AtomicUsize::new(0);

/// Runs in the parent before a fork.
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Runs in the child of a fork.
extern "C" fn extend_path() {
    let (level, forks) = (LEVEL.load(Ordering::Relaxed), FORKS.swap(0, Ordering::Relaxed));
    if let Some(place) = PATH.get(level) {
        place.store(forks, Ordering::Relaxed);
        LEVEL.store(level + 1, Ordering::Relaxed);
    }
}

/// Counts the forks of this process and of its children from now on. Called once.
pub(crate) fn count() {
    // SAFETY: the handlers only change atomic numbers. A failure leaves paths empty.
    unsafe { libc::pthread_atfork(Some(count_fork), None, Some(extend_path)) };
}

/// Returns the numbers, from 1, of the forks that led from the process that called [`count`] to this one.
pub(crate) fn path() -> impl Iterator<Item = u32> {
    PATH.iter().take(LEVEL.load(Ordering::Relaxed)).map(|fork| fork.load(Ordering::Relaxed))
}

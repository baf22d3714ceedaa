//! Notifies registration caches when memory has no user left.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

/// A cache that keeps an object for the memory until its last user drops it.
pub(crate) trait Watcher: Send + Sync {
    /// The memory with that id has no user left. Called with any lock held.
    fn unused(&self, memory: u64);
}

/// Shared by the counted handles of some memory, and not by the uncounted ones, which keep it without using it.
pub(crate) struct UseCount {
    pub(crate) id: u64,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

impl UseCount {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        UseCount { id: NEXT.fetch_add(1, Ordering::Relaxed), watchers: Mutex::default() }
    }

    /// Notifies `watcher` when there is no user left.
    pub(crate) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|known| known.strong_count() > 0);
        if !watchers.iter().any(|known| known.ptr_eq(&watcher)) {
            watchers.push(watcher);
        }
    }
}

impl Drop for UseCount {
    fn drop(&mut self) {
        for watcher in self.watchers.get_mut().drain(..) {
            if let Some(watcher) = watcher.upgrade() {
                watcher.unused(self.id);
            }
        }
    }
}

impl fmt::Debug for UseCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UseCount({})", self.id)
    }
}

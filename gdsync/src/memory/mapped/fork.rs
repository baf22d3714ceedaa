//! Whether this process is still the one that made a mapping.
//!
//! A child has its parent's files and this library's memory, but not the mappings, and requests that undo something would undo it for
//! the parent. So a child's copies are dead: every use is an error, and dropping them undoes nothing.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and its first ancestor that mapped something.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that is another in every child. Children of vfork(2) or of a raw clone(2) are not noticed.
#[inline]
pub(super) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// As [`generation`], at the time of mapping.
pub(super) fn watch() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which a child may do.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::debug!("no memory for a fork handler: children will not be told from their parent");
        }
    });
    generation()
}

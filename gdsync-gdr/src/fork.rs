//! Whether this process is still the one that made a mapping.
//!
//! A child has its parent's files and this library's memory, but not the mappings, and a request that undoes
//! something would undo it for the parent. So a child's copies of them are dead: every access is an error, and
//! dropping one undoes nothing.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between this process and its first ancestor that mapped something.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that differs in every child. Children of vfork(2) or of a raw clone(2) keep their parent's.
#[inline]
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// As [`generation`], at the time of mapping.
pub(crate) fn watch() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which a child may do.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::debug!("no memory for a fork handler: a child cannot be distinguished from its parent");
        }
    });
    generation()
}

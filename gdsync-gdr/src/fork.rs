//! Detects that a mapping was made by a parent process.
//!
//! A child has its parent's files and this library's memory, but not the mappings, and requests that release
//! something would release it for the parent. In a child, accesses therefore fail, and drops release nothing.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between this process and its first ancestor with a mapping.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that differs between a process and its children. Children of vfork(2) or a raw clone(2) keep
/// their parent's number.
#[inline]
pub(crate) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Installs the fork handler, and returns [`generation`].
pub(crate) fn watch() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::debug!("no memory for a fork handler: a child cannot be distinguished from its parent");
        }
    });
    generation()
}

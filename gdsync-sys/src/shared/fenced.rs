//! Orderings of accesses that have none themselves.

use std::sync::atomic::{Ordering, fence};

/// An access between the fences that give it its ordering.
#[inline(always)]
pub(super) fn fenced<T>(order: Ordering, access: impl FnOnce() -> T) -> T {
    match order {
        Ordering::Release | Ordering::AcqRel => fence(Ordering::Release),
        Ordering::SeqCst => fence(Ordering::SeqCst),
        _ => {}
    }
    let result = access();
    match order {
        Ordering::Acquire | Ordering::AcqRel => fence(Ordering::Acquire),
        Ordering::SeqCst => fence(Ordering::SeqCst),
        _ => {}
    }
    result
}

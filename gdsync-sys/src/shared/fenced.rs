//! Fences for accesses that have no ordering themselves.

use std::sync::atomic::{Ordering, fence};

/// Performs an access between the fences of its ordering.
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

//! Locks and atomics of the modules whose interleavings are explored: `model/` compiles them with loom's instead.

pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use std::thread::yield_now;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence, fence};
}

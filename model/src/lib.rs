//! What the models share: loom in the place of `gdsync/src/util/sync.rs`, and models that must fail.

pub mod sync {
    //! As `gdsync/src/util/sync.rs`, on loom.

    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::yield_now;

    /// As `std::sync::atomic`.
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
        pub use std::sync::atomic::compiler_fence;
    }
}

use std::panic::{self, AssertUnwindSafe};

/// Explores a model; says what was explored.
pub fn holds(what: &str, model: impl Fn() + Sync + Send + 'static) {
    loom::model(model);
    println!("holds: {what}");
}

/// A model with its protection taken away: loom must find what goes wrong, or the model that holds proves nothing.
pub fn breaks(what: &str, model: impl Fn() + Sync + Send + 'static) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let found = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err();
    panic::set_hook(hook);
    assert!(found, "loom finds nothing wrong without protection: {what}");
    println!("breaks, as it must: {what}");
}

//! Common parts of the models: loom instead of `gdsync/src/util/sync.rs`, and models that must fail.

pub mod sync {
    //! `gdsync/src/util/sync.rs` on loom.

    pub use loom::sync::{Mutex, MutexGuard};
    pub use loom::thread::yield_now;

    /// Counterpart of `std::sync::atomic`.
    pub mod atomic {
        pub use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
        pub use std::sync::atomic::compiler_fence;
    }
}

use std::panic::{self, AssertUnwindSafe};

/// Explores a model, and prints its name.
pub fn holds(what: &str, model: impl Fn() + Sync + Send + 'static) {
    loom::model(model);
    println!("holds: {what}");
}

/// Explores a model without its protection: loom must find an error, otherwise the model that holds proves nothing.
pub fn breaks(what: &str, model: impl Fn() + Sync + Send + 'static) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let found = panic::catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err();
    panic::set_hook(hook);
    assert!(found, "loom finds nothing wrong without protection: {what}");
    println!("breaks, as it must: {what}");
}

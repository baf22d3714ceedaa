//! Contains panics of the program's values and of its log subscriber on the library's threads.

use gdsync_sys::contain::contain;

/// Drops a value of the program. `what` names it in the log if its drop panics.
pub(crate) fn drop_contained<T>(value: T, what: &'static str) {
    if let Err(panic) = contain(|| drop(value)) {
        log(|| tracing::error!(panic, "the drop of {what} panicked"));
    }
}

/// Writes to the log, whose subscriber is the program's code.
pub(crate) fn log(write: impl FnOnce()) {
    // A panic here cannot be reported anywhere.
    let _ = contain(write);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with another bomb for the payload.
    pub(crate) struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic_any(Bomb);
            }
        }
    }

    #[test]
    fn neither_a_drop_nor_a_subscriber_that_panics_goes_further() {
        drop_contained(Bomb, "a bomb");
        log(|| panic_any(Bomb));
    }
}

//! What the library's threads do with values of the program, and with its log.

use gdsync_sys::contain::contain;

/// Drops a value of the program. `what` names it in the log, if its drop panics.
pub(crate) fn drop_contained<T>(value: T, what: &'static str) {
    if let Err(panic) = contain(|| drop(value)) {
        log(|| tracing::error!(panic, "the drop of {what} panicked"));
    }
}

/// Writes to the log, whose subscriber is code of the program, too.
pub(crate) fn log(write: impl FnOnce()) {
    // There is no other place to say that it has panicked.
    let _ = contain(write);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with another of its kind for the payload.
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

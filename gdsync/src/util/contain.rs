//! Code of the program on the library's threads: closures, callbacks, and what is dropped there.
//!
//! A panic of it must end neither the thread nor what waits for the thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program.
///
/// # Errors
/// The message of its panic, whose payload is dropped.
pub(crate) fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    // What the code shares with other threads is `Sync`, and so either tolerates a panic or is
    // poisoned. What it shares with the caller, the caller does not use again.
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let message = message(&*payload);
        // The payload's drop is code of the program, too. If it panics, its own payload is leaked:
        // dropping that could go on so for ever.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
        message
    })
}

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

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::panic::panic_any;
    use std::sync::Arc;

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
    fn panics_become_their_messages() {
        assert_eq!(contain(|| 5), Ok(5));
        assert_eq!(contain(|| panic!("out of cheese")), Err::<(), _>("out of cheese".to_owned()));
        let kind = "wine";
        assert_eq!(contain(|| panic!("out of {kind}")), Err::<(), _>("out of wine".to_owned()));
        let held = Arc::new(());
        let payload = held.clone();
        assert_eq!(contain(|| panic_any(payload)), Err::<(), _>("no message".to_owned()));
        assert_eq!(Arc::strong_count(&held), 1, "the payload is dropped");
    }

    #[test]
    fn a_payload_whose_drop_panics_is_contained() {
        assert_eq!(contain(|| panic_any(Bomb)), Err::<(), _>("no message".to_owned()));
        drop_contained(Bomb, "a bomb");
        log(|| panic_any(Bomb));
    }
}

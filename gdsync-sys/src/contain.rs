//! Code of the program on threads of a library: closures, callbacks, and what is dropped there.
//!
//! A panic of it must end neither the thread nor what waits for the thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program, which must leave what it shares with the caller usable, or the caller must not use that
/// again.
///
/// ```
/// use gdsync_sys::contain::contain;
///
/// assert_eq!(contain(|| 5), Ok(5));
/// assert_eq!(contain(|| panic!("out of cheese")), Err::<(), _>("out of cheese".to_owned()));
/// ```
///
/// # Errors
/// The message of its panic, whose payload is dropped.
pub fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let message = message(&*payload);
        // The payload's drop is code of the program, too. If it panics, its own payload is leaked: dropping that
        // could go on so for ever.
        if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(another);
        }
        message
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;
    use std::sync::Arc;

    /// Panics when it is dropped, with another of its kind for the payload.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic_any(Bomb);
            }
        }
    }

    #[test]
    fn panics_become_their_messages() {
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
        assert_eq!(contain(|| drop(Bomb)), Err::<(), _>("no message".to_owned()));
    }
}

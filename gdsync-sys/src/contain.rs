//! Contains panics of the program's code (closures, callbacks, their drops) that runs on a library's threads.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program. After a panic, the state that the code shares with the caller must still be usable, or
/// the caller must not use it again.
///
/// ```
/// use gdsync_sys::contain::contain;
///
/// assert_eq!(contain(|| 5), Ok(5));
/// assert_eq!(contain(|| panic!("out of cheese")), Err::<(), _>("out of cheese".to_owned()));
/// ```
///
/// # Errors
/// The message of the code's panic. The payload is dropped.
pub fn contain<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let message = message(&*payload);
        // Dropping the payload runs the program's code, too. If that panics, the new payload is leaked: dropping it
        // could panic again without end.
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

    /// Panics when dropped, with another `Bomb` as the payload.
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

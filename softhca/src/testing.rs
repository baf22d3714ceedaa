//! Helpers of tests.

use std::time::{Duration, Instant};

/// Waits until `look` finds something, 20 seconds at most.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(200));
    }
}

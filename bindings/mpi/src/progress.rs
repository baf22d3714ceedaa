//! What a thread does while it waits: the C part's matches progress.

use std::sync::OnceLock;

static MATCHES: OnceLock<extern "C" fn()> = OnceLock::new();

/// Says what waiting threads call. It may use requests that are neither started nor being started. The first one stays.
pub(crate) fn set(matches: extern "C" fn()) {
    // A second one is the same function.
    let _known = MATCHES.set(matches);
}

/// A thread of the program waits.
pub(crate) fn go_on() {
    if let Some(matches) = MATCHES.get() {
        matches();
    }
}

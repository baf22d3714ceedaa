//! The library's thread that looks at what cards write.

use crate::util::poller::Poller;
use crate::verbs::error::Error;

/// The thread that polls for checked waits, persistent requests, collectors, masters, and queue pairs
/// that are flushed.
pub(crate) static CHECKER: Poller = Poller::new("gdsync-checked");

/// Starts the thread of [`CHECKER`], unless it runs.
///
/// # Errors
/// [`Error::Thread`].
pub(crate) fn start_checker() -> Result<(), Error> {
    CHECKER.start().map_err(|source| Error::Thread { name: CHECKER.name, source })
}

//! Errors in work requests.

use gdsync_sys::prm::cqe::Syndrome;

/// An error in a work request: the syndrome of its completion, and the words of its diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WqeError {
    pub(crate) syndrome: Syndrome,
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

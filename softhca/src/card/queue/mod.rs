//! The card's side of queues: work requests that it reads, completion entries that it writes.

pub(crate) mod cq;
pub(crate) mod receive;
mod segments;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod wait;
pub(crate) mod wqe;

use gdsync_sys::prm::cqe::Syndrome;

/// An error in a work request: the syndrome of its completion, and the text of its diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WqeError {
    pub(crate) syndrome: Syndrome,
    pub(crate) field: &'static str,
    pub(crate) message: String,
}

//! What posting a batch yields.

use crate::batch::Batch;
use crate::memop::StreamError;
use crate::memory::timeline::Blocked;
use crate::queue::error::QueueError;

/// A batch that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Posted {
    /// Memory operations that it took.
    pub operations: usize,
    /// Submissions to the backend.
    pub submissions: usize,
}

/// Why a batch, or the rest of one, was not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// A send or wait cannot be posted now.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The backend refused.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream has as many submissions outstanding as it takes without blocking the caller.
    #[error(
        "{outstanding} submissions are outstanding and the stream takes {limit} ({blocked}): let it catch up, or put more into one batch"
    )]
    WouldBlock {
        /// Submissions outstanding.
        outstanding: usize,
        /// Its limit.
        limit: usize,
        /// The oldest of them.
        blocked: Blocked,
    },
}

/// A batch that was not posted wholly, with what is left of it: nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("posted {posted} of {} descriptors: {source}", .posted + .batch.len())]
pub struct PostError {
    /// The descriptors that were not posted, in order.
    pub batch: Batch,
    /// How many were posted before.
    pub posted: usize,
    /// Why not more.
    pub source: PostFailure,
}

//! Why a queue pair has failed, and what is in the way of its recovery.

use crate::memory::timeline::Blocked;
use crate::queue::outcome::WorkError;
use crate::verbs::events::AsyncEventKind;

/// Why a queue pair is in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureCause {
    /// A work request failed.
    #[error("{0}")]
    Work(WorkError),
    /// [`crate::QueuePair::abort`] was called.
    #[error("aborted")]
    Aborted,
    /// The queue that releases its sends, the master of its trigger, has failed.
    #[error("the master of its trigger failed")]
    Master,
    /// The card reported an asynchronous event.
    #[error("{0}")]
    Event(AsyncEventKind),
}

impl FailureCause {
    /// True where only a flush is known: something came before.
    pub(crate) fn is_flush(self) -> bool {
        matches!(self, FailureCause::Work(error) if error.is_flush())
    }
}

/// What is in the way of [`crate::QueuePair::reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResetBlocker {
    /// A stream still has to ring for sends that it was given.
    #[error("a stream still has to post sends of it ({0}): let the stream go on and synchronize it")]
    Stream(Blocked),
    /// The proxy still has to ring for a stream.
    #[error("{0} doorbells that a stream handed to the proxy are not rung yet: synchronize the stream")]
    Doorbells(u32),
    /// Sends are prepared, or posted and their completions not polled.
    #[error(
        "{0} sends have not completed: abort() it, then poll its send completion queue until it is empty"
    )]
    Sends(u32),
    /// Receives are posted, and their completions not polled.
    #[error(
        "{0} receives have not completed: abort() it, then poll its receive completion queue until it is empty"
    )]
    Receives(u32),
    /// Its failure has ended waits for receives of a shared queue, which streams have not passed.
    #[error("streams have still to pass waits for its receives that its failure has ended: synchronize them")]
    EndedWaits,
    /// A completion queue of it has overrun: what is outstanding will never complete.
    #[error("its completion queue {0:#x} has overrun and is lost: make a new queue pair")]
    CompletionQueueLost(u32),
    /// It was handed over to kernels.
    #[error("kernels drive it: end them, and call DeviceQp::detach_device")]
    Kernel,
}

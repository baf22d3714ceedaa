//! Errors of notified writes.

use crate::bootstrap::BootstrapError;
use crate::cuda::CudaError;
use crate::device::DeviceQpError;
use crate::memop::{StreamError, WordError};
use crate::memory::OutOfBounds;
use crate::queue::error::{QueueError, StateError};
use crate::queue::failure::FailureCause;
use crate::verbs::error::Error;
use gdsync_sys::prm::cqe::Syndrome;
use std::io;
use std::time::Duration;

/// Errors of [`super::Team`], [`super::Segment`] and [`super::Queue`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotifyError {
    /// There is no such rank.
    #[error("rank {rank} is none of the {size} of the team, which count from 0")]
    Rank {
        /// The rank given.
        rank: u32,
        /// Ranks of the team.
        size: u32,
    },
    /// There is no such queue.
    #[error("queue {queue} is none of the {queues} of the team: ask for more in TeamConfig::queues")]
    Queue {
        /// The queue given.
        queue: u32,
        /// Queues of the team.
        queues: u32,
    },
    /// A part that lies outside a segment.
    #[error(
        "{len} bytes from {offset} on lie outside the {size} bytes of the segment at rank {rank}: make it longer there"
    )]
    OutOfSegment {
        /// Whose segment.
        rank: u32,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes that the segment has there.
        size: u64,
    },
    /// There is no such notification.
    #[error("notification {id} is none of the {count} of the segment at rank {rank}: ask for more there")]
    Notification {
        /// Whose segment.
        rank: u32,
        /// The notification given.
        id: u32,
        /// Notifications that the segment has there.
        count: u32,
    },
    /// A notification of value 0.
    #[error("notification {id} has the value 0, which means that there is none: give another one")]
    ZeroValue {
        /// The notification.
        id: u32,
    },
    /// It took too long.
    #[error("{what} took longer than {timeout:?}: allow more time, or see what the other ranks do")]
    TimedOut {
        /// What did.
        what: &'static str,
        /// The time allowed.
        timeout: Duration,
    },
    /// A rank does not answer any more.
    #[error(
        "rank {rank} does not answer: its process, its host or the way there is gone; leave it out, or end the job"
    )]
    PeerDead {
        /// The rank.
        rank: u32,
    },
    /// The connection with a rank has failed.
    #[error("the connection with rank {rank} has failed: {cause}")]
    Failed {
        /// The rank.
        rank: u32,
        /// The first error.
        cause: FailureCause,
    },
    /// Ranks were given different things.
    #[error("rank {rank} has {theirs} {what}, this one {ours}: give all ranks the same")]
    Mismatch {
        /// The other rank.
        rank: u32,
        /// What differs.
        what: &'static str,
        /// What it has.
        theirs: String,
        /// What this rank has.
        ours: String,
    },
    /// Something that all ranks do together failed on another one.
    #[error("it failed on rank {rank}: {reason}")]
    Elsewhere {
        /// That rank.
        rank: u32,
        /// What it said.
        reason: String,
    },
    /// A team on queue pairs that keep no order, or lose what is sent.
    #[error(
        "a team needs the transport RC, which keeps the order of writes: leave TeamConfig::queue_pair at RC"
    )]
    Transport,
    /// The CPU, or a running kernel, cannot be sure to see what a card wrote before the notification.
    #[error(
        "GPU {gpu} shows a card's writes in no order to the CPU and to running kernels: wait for the notification on a stream, or use a segment in host memory"
    )]
    Consistency {
        /// The GPU.
        gpu: i32,
    },
    /// Posting or preparing failed.
    #[error("towards rank {rank}: {source}")]
    Post {
        /// The rank that was to be written to.
        rank: u32,
        /// Why it failed.
        source: QueueError,
    },
    /// A queue pair cannot be handed over to kernels, or taken back.
    #[error("the queue pair to rank {rank}: {source}")]
    HandOver {
        /// The rank.
        rank: u32,
        /// Why.
        source: DeviceQpError,
    },
    /// The device whose kernels are to use a queue or a segment cannot reach its memory.
    #[error("kernels cannot reach it: {0}")]
    Unreachable(#[from] StreamError),
    /// Pinned memory could not be had.
    #[error("no pinned memory for what kernels look up: {0}")]
    Memory(#[source] io::Error),
    /// Something of this side alone.
    #[error(transparent)]
    Local(#[from] QueueError),
    /// A verbs object could not be made.
    #[error(transparent)]
    Device(#[from] Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The ranks did not come together.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

impl NotifyError {
    /// The connection with a rank is gone.
    pub(super) fn of_cause(rank: u32, cause: FailureCause) -> Self {
        match cause {
            FailureCause::Work(error) if error.kind() == Some(Syndrome::RetryExceeded) => {
                NotifyError::PeerDead { rank }
            }
            cause => NotifyError::Failed { rank, cause },
        }
    }

    pub(super) fn of_queue(rank: u32, error: QueueError) -> Self {
        match error {
            QueueError::State(StateError::Failed { cause, .. }) => Self::of_cause(rank, cause),
            source => NotifyError::Post { rank, source },
        }
    }
}

impl From<OutOfBounds> for NotifyError {
    fn from(error: OutOfBounds) -> Self {
        NotifyError::Local(error.into())
    }
}

impl From<WordError> for NotifyError {
    fn from(error: WordError) -> Self {
        NotifyError::Local(error.into())
    }
}

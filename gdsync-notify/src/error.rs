//! Errors of notified writes.

use crate::bootstrap::BootstrapError;
use gdsync::cuda::{CudaError, Gpu};
use gdsync::device::DeviceQpError;
use gdsync::memop::{StreamError, WordError};
use gdsync::memory::OutOfBounds;
use gdsync::qp::ResetError;
use gdsync::queue::{FailureCause, Syndrome};
use gdsync::{Error, QueueError};
use std::io;
use std::time::Duration;

/// The result of the crate's own functions.
pub(crate) type Result<T, E = NotifyError> = std::result::Result<T, E>;

/// The evidence that a rank is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeathCause {
    /// A connection to it has failed, mostly because its card did not answer ([`Syndrome::RetryExceeded`]).
    #[error("as the connection with it says ({0})")]
    NoAnswer(FailureCause),
    /// Another rank has found it dead.
    #[error("as rank {by} says")]
    Reported {
        /// That rank.
        by: u32,
    },
}

/// Errors of [`Team`](crate::Team), [`Segment`](crate::Segment) and [`Queue`](crate::Queue).
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
    /// A range outside a segment.
    #[error(
        "{len} bytes from offset {offset} leave the {size} bytes of the segment at rank {rank}: allocate more there"
    )]
    OutOfSegment {
        /// The segment's rank.
        rank: u32,
        /// The offset of the first byte.
        offset: u64,
        /// The length in bytes.
        len: u64,
        /// The segment's length there.
        size: u64,
    },
    /// Memory of 0 bytes, which no card registers.
    #[error(
        "0 bytes of existing memory cannot be registered: a part without data is made by Team::allocate(0, notifications)"
    )]
    NothingToRegister,
    /// Memory of another GPU, or of another context.
    #[error(
        "the memory is not of GPU {gpu}, or was not made with the context given: give the context of the GPU that has it, and make GpuMemory with that one"
    )]
    OtherGpu {
        /// The GPU of the context given.
        gpu: i32,
    },
    /// Kernels know one key for each part.
    #[error(
        "rank {rank} has registered memory of its own, whose notifications have a key of their own, and kernels know one key for each part: describe a segment that all ranks have allocated, or register it with 0 notifications"
    )]
    TwoKeys {
        /// The first such rank.
        rank: u32,
    },
    /// There is no such notification.
    #[error("notification {id} is none of the {count} of the segment at rank {rank}: ask for more there")]
    Notification {
        /// The segment's rank.
        rank: u32,
        /// The notification given.
        id: u32,
        /// The number of the segment's notifications there.
        count: u32,
    },
    /// A notification with the value 0.
    #[error("notification {id} has the value 0, which means that it is not set: give another value")]
    ZeroValue {
        /// The notification.
        id: u32,
    },
    /// A call took longer than the time allowed.
    #[error("{what} took longer than {timeout:?}: allow more time, or check what the other ranks do")]
    TimedOut {
        /// The activity of the call.
        what: &'static str,
        /// The time allowed.
        timeout: Duration,
    },
    /// A rank is dead, and the call would wait for it or address it.
    #[error(
        "rank {rank} is dead, {cause}: its process has ended, its host is down, or the network is cut; go on without it (Team::shrink), or end the job"
    )]
    PeerDead {
        /// The rank.
        rank: u32,
        /// How this rank knows.
        cause: DeathCause,
    },
    /// The other ranks go on without this one.
    #[error(
        "rank {by} has found this rank dead, and the team goes on without it: the network was cut, or this process stood still; end it"
    )]
    Expelled {
        /// A rank that has found this one dead.
        by: u32,
    },
    /// The team of this rank has ended: nothing sets its notifications any more.
    #[error(
        "the team has ended with its last handle and queue, so no notification comes any more: keep one until streams have passed their waits"
    )]
    Ended,
    /// The connection with a rank has failed.
    #[error("the connection with rank {rank} has failed: {cause}")]
    Failed {
        /// The rank.
        rank: u32,
        /// The first error.
        cause: FailureCause,
    },
    /// Ranks have different options.
    #[error("rank {rank} has {theirs} {what}, this one {ours}: give all ranks the same")]
    Mismatch {
        /// The other rank.
        rank: u32,
        /// The option that differs.
        what: &'static str,
        /// Its value.
        theirs: String,
        /// This rank's value.
        ours: String,
    },
    /// Two ranks do not have the same number of queue pairs to connect.
    #[error(
        "tag {tag}: rank {rank} has {theirs} queue pairs to connect with this rank, which has {ours}: pass one on each side"
    )]
    Unpaired {
        /// The other rank.
        rank: u32,
        /// The tag of the queue pairs.
        tag: u32,
        /// Its number.
        theirs: usize,
        /// This rank's number.
        ours: usize,
    },
    /// A collective call failed on another rank.
    #[error("the call failed on rank {rank}: {reason}")]
    FailedOnRank {
        /// That rank.
        rank: u32,
        /// Its error.
        reason: String,
    },
    /// A transport without ordered or reliable delivery.
    #[error(
        "a team needs the transport RC, which keeps the order of writes: set no other in TeamConfig::queue_pair"
    )]
    Transport,
    /// The CPU or a running kernel might see a notification before data that the card wrote earlier.
    #[error(
        "{} does not show a card's writes in order to the CPU and to running kernels: wait for the notification on a stream, or use a segment in host memory",
        Gpu::from_device(*.gpu)
    )]
    Consistency {
        /// The GPU.
        gpu: i32,
    },
    /// Posting or preparing failed.
    #[error("to rank {rank}: {source}")]
    Post {
        /// The target rank.
        rank: u32,
        /// Why it failed.
        source: QueueError,
    },
    /// A read or an atomic in a team whose connections carry none, or a notification that a read must order, as the card
    /// places messages out of order.
    #[error(
        "the team's connections have 0 reads and atomics in flight, which this request, or its order on a card with out-of-order placement, needs: make the team with ConnectOptions::max_reads of 1 or more in TeamConfig::connect"
    )]
    NoReads,
    /// No queue pair goes to the rank alone.
    #[error(
        "the team's connections are dynamic, and no queue pair goes to rank {rank} alone; kernels drive none that ranks share: make the team with ConnectionKind::Each"
    )]
    NoQueuePair {
        /// The rank.
        rank: u32,
    },
    /// A queue pair cannot be attached to a device, or detached.
    #[error("the queue pair to rank {rank}: {source}")]
    AttachOrDetach {
        /// The rank.
        rank: u32,
        /// Why.
        source: DeviceQpError,
    },
    /// The connection with a dead rank cannot be reset for a new process.
    #[error("the connection with dead rank {rank}: {source}")]
    Reset {
        /// The rank.
        rank: u32,
        /// The obstacle.
        source: ResetError,
    },
    /// The device cannot reach the memory of a queue or of a segment.
    #[error("kernels cannot reach the memory: {0}")]
    Unreachable(#[from] StreamError),
    /// Pinned memory could not be allocated.
    #[error("no pinned memory for the tables of kernels: {0}")]
    Memory(#[source] io::Error),
    /// This rank's queue refused a request, or a range or word is not in its memory.
    #[error(transparent)]
    LocalQueue(#[from] QueueError),
    /// A verbs object could not be created.
    #[error(transparent)]
    Device(#[from] Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The ranks could not exchange data.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
}

impl NotifyError {
    /// Converts the first failure of the queue pair to a rank.
    pub(crate) fn from_failure(rank: u32, cause: FailureCause) -> Self {
        match cause {
            FailureCause::Work(error) if error.kind() == Some(Syndrome::RetryExceeded) => {
                NotifyError::PeerDead { rank, cause: DeathCause::NoAnswer(cause) }
            }
            cause => NotifyError::Failed { rank, cause },
        }
    }
}

impl From<OutOfBounds> for NotifyError {
    fn from(error: OutOfBounds) -> Self {
        NotifyError::LocalQueue(error.into())
    }
}

impl From<WordError> for NotifyError {
    fn from(error: WordError) -> Self {
        NotifyError::LocalQueue(error.into())
    }
}

//! Errors of collectives.

use crate::collective::element::{Element, Operation};
use crate::error::NotifyError;
use gdsync::cuda::Gpu;
use gdsync::memop::StreamError;
use gdsync::stream::PostFailure;

/// Errors of [`Collectives`](crate::collective::Collectives) and [`Plan`](crate::collective::Plan).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The segment is of another team than the queue.
    #[error("the segment is of another team than the queue: allocate it with the queue's team")]
    OtherTeam,
    /// The segment has too few bytes left.
    #[error(
        "the plan takes {needed} bytes of the segment from byte {from} on, and the segment ends at {size}: allocate more (Collective::bytes)"
    )]
    Bytes {
        /// Bytes that the plan takes.
        needed: usize,
        /// The first byte that is free.
        from: usize,
        /// Bytes of the segment.
        size: usize,
    },
    /// The segment has too few notifications left.
    #[error(
        "the plan takes {needed} notifications of the segment from number {from} on, and the segment has {count}: ask for more (Collective::notifications)"
    )]
    Notifications {
        /// Notifications that the plan takes.
        needed: u32,
        /// The first that is free.
        from: u32,
        /// Notifications of the segment.
        count: u32,
    },
    /// A notification that the plan would take belongs to another plan.
    #[error(
        "notification {id} of the segment belongs to another plan: make all plans on a segment by one Collectives"
    )]
    Taken {
        /// The notification.
        id: u32,
    },
    /// A block that is too long.
    #[error("a block of {bytes} bytes is longer than the {limit} that one message carries: divide it")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A block that does not hold whole numbers.
    #[error("a block of {bytes} bytes does not hold whole {element}: make it a multiple of {}", .element.bytes())]
    Element {
        /// Bytes of the block.
        bytes: usize,
        /// The numbers.
        element: Element,
    },
    /// A reduction that is not defined for its type.
    #[error("there is no {operation} of {element}: take integers, or sum, product, min or max")]
    Undefined {
        /// The operation.
        operation: Operation,
        /// The numbers.
        element: Element,
    },
    /// A reduction in registered memory that is not aligned to its numbers.
    #[error(
        "the segment's data begins at {address:#x}, which is not aligned to {element}: register memory at a multiple of {}", .element.bytes()
    )]
    Unaligned {
        /// The first address.
        address: u64,
        /// The numbers.
        element: Element,
    },
    /// A reduction on a GPU's stream, of a plan without a kernel, because its segment is in host memory.
    #[error("the plan reduces in host memory, and no GPU was named: make it by Collectives::reduce_on")]
    NoKernel,
    /// A reduction on a stream that cudarc has not created.
    #[error("the reduction's kernel needs a stream of cudarc: make it by CudaStream::new")]
    RawStream,
    /// A reduction on a stream of another GPU than the plan's.
    #[error(
        "the stream is of {}, and the plan reduces on {}, or in another context on it: post it on a stream of that one",
        Gpu::from_device(*.stream), Gpu::from_device(*.kernel)
    )]
    OtherGpu {
        /// The stream's GPU.
        stream: i32,
        /// The plan's GPU.
        kernel: i32,
    },
    /// A reduction could not reach its memory, so the output of a round is missing.
    #[error(
        "the reduction of an earlier round could not reach its memory; the log has the cause: end the job"
    )]
    Reduction,
    /// The root of a broadcast is no rank of the team.
    #[error("rank {root}, the root, is none of the {ranks} members of the team: name one of Team::members")]
    Root {
        /// The rank given.
        root: u32,
        /// Members of the team.
        ranks: u32,
    },
    /// A rank of the plan has been dropped from the team, or replaced, or all connections with it have failed and were
    /// made anew.
    #[error(
        "rank {rank}, which took part in this plan, has died or was cut off, and the team has gone on: make a new segment, and new plans on it"
    )]
    Ended {
        /// The rank.
        rank: u32,
    },
    /// All connections between two other members have failed, so what they have passed on may be incomplete.
    #[error(
        "all connections between ranks {} and {}, which take part in this plan, have failed, so the data of its last rounds may be incomplete: end one of the two, and go on without it by Team::shrink",
        .ranks.0, .ranks.1
    )]
    Cut {
        /// The two.
        ranks: (u32, u32),
    },
    /// A round was posted in part.
    #[error("an earlier round of this plan was posted in part: make a new segment, and new plans on it")]
    Broken,
    /// The stream has not accepted the round.
    #[error("round {round} cannot be posted: {source}")]
    Post {
        /// The round.
        round: u64,
        /// Why.
        source: PostFailure,
    },
    /// The stream has refused the reduction.
    #[error("the reduction cannot be enqueued: {0}")]
    Enqueue(#[from] StreamError),
    /// Notified writes failed.
    #[error(transparent)]
    Notify(#[from] NotifyError),
}

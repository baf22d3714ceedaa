//! Streams, which perform memory operations in order.
//!
//! A *backend* ([`MemOpStream`]) performs memory operations: [`SoftStream`] on a worker thread, [`Cpu`] on the
//! caller. A [`Stream`] is a backend with a timeline: it turns batches into memory operations, keeps the objects
//! that they name alive, and knows the backend's progress.

#[deny(unsafe_code)]
mod collector;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod end;
mod fast_path;
#[cfg(test)]
mod first_post_tests;
#[deny(unsafe_code)]
mod handle;
#[deny(unsafe_code)]
pub(crate) mod in_flight;
#[deny(unsafe_code)]
mod lower;
#[deny(unsafe_code)]
pub mod persistent;
#[cfg(test)]
mod points_tests;
mod post;
#[deny(unsafe_code)]
mod proxy;
#[deny(unsafe_code)]
mod shown;
mod soft;
#[deny(unsafe_code)]
mod state;
#[deny(unsafe_code)]
mod trace;
mod translations;
#[deny(unsafe_code)]
mod watchdog;

pub use crate::util::poller::Simulation;
pub use cpu::Cpu;
pub use cuda::CudaStream;
pub use handle::Stream;
pub use soft::{Event, SoftStream, StreamSteps};

use crate::batch::Batch;
use crate::cuda::Placement;
use crate::memop::{MemOpStream, StreamError};
use crate::memory::StreamAddr;
use crate::memory::timeline::Blocked;
use crate::queue::Status;
use crate::queue::error::QueueError;
use crate::util::options::options;
use std::fmt;

/// CUDA graphs that hold batches.
pub mod graph {
    pub use super::cuda::capture::Capture;
    pub use super::cuda::graph::{CudaGraph, GraphError, LaunchError};
    pub use super::cuda::params::with_params;
}
pub use watchdog::{StalledWait, Watchdog};

/// A batch that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Posted {
    /// Its memory operations.
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

/// A batch that was not wholly posted, with the rest: nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("posted {posted} of {} descriptors: {source}", .posted + .batch.len())]
pub struct PostError {
    /// The descriptors that were not posted, in order.
    pub batch: Batch,
    /// Number of descriptors that were posted.
    pub posted: usize,
    /// The reason.
    pub source: PostFailure,
}

impl Status {
    /// Returns the address of the 4-byte word for kernels on a stream, read-only. For a GPU's stream, it is in the
    /// GPU's address space, to which the word's page is added now if necessary. With a
    /// [`CheckedWait`](crate::qp::CheckedWait), a kernel after the wait finds the word written; after another wait,
    /// it may be written a little later ([`Self::word`]).
    ///
    /// The address is valid as long as this status or a clone of it lives, and on a GPU's stream until the kernels
    /// enqueued before have finished.
    ///
    /// # Errors
    /// [`StreamError`] if the stream cannot reach the word.
    pub fn address_on<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<StreamAddr, StreamError> {
        stream.translate(self.word().addr(), size_of::<u32>())
    }
}

/// The way of doorbells to the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellPath {
    /// The stream stores to the card's register if it can reach it; otherwise the proxy rings.
    #[default]
    Auto,
    /// The stream stores to the card's register. Posting fails if it cannot reach it.
    Direct,
    /// The stream stores to a mailbox in pinned memory, and a thread of this process forwards it. This works
    /// wherever a stream can reach pinned memory, and adds the thread's delay. The thread sleeps while there is
    /// nothing to forward.
    Proxy,
}

/// The actual way of doorbells to the card.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doorbells {
    /// The stream stores to the card's register.
    Direct,
    /// A thread of this process forwards them.
    Proxy {
        /// The reason.
        reason: String,
    },
}

impl Doorbells {
    pub(super) fn at_first(path: DoorbellPath) -> Self {
        match path {
            DoorbellPath::Auto | DoorbellPath::Direct => Doorbells::Direct,
            DoorbellPath::Proxy => Doorbells::Proxy { reason: "asked for".to_owned() },
        }
    }
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doorbells::Direct => f.pad("direct"),
            Doorbells::Proxy { reason } => f.pad(&format!("proxy ({reason})")),
        }
    }
}

options! {
    /// Options of a [`crate::Stream`].
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct StreamOptions
    /// Doorbells by [`DoorbellPath::Auto`].
    default {
        /// The way of doorbells to the card.
        doorbells: DoorbellPath = DoorbellPath::Auto,
        /// Fewest queues of a run of waits for completions in a batch that a [`crate::advanced::Collector`] takes over; the
        /// stream then waits for its word alone. Waits keep their guarantees. By default, or if the card cannot
        /// wait or waits for too much already, the stream waits for each queue itself.
        collect_from: Option<u32> = None,
        /// Memory of that collector's word: [`crate::advanced::CollectorConfig::word`].
        collect_in: Placement = Placement::Host,
        /// Stops the stream at a wait that only a death would end: a notification of a rank of a team that is dead or cut
        /// off, or whose team has ended (`gdsync-notify`). What follows the wait is not performed, and
        /// [`crate::Stream::synchronize`] returns [`StreamError::Stopped`], which names the rank. By default such a
        /// stream goes on without the data, and the program checks the notification. [`crate::Stream::go_on`] turns it
        /// off. docs/failure-model.md has the guarantee. Streams of the CPU ([`Cpu`]) do not stop.
        stop_at_death: bool = false,
    }
}

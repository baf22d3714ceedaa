//! Streams: where memory operations run, in order.
//!
//! A *backend* ([`MemOpStream`]) performs memory operations:
//! [`SoftStream`] on a worker thread of its own, [`Cpu`] on the caller. A [`Stream`] is a backend
//! with a timeline: it turns batches into memory operations, keeps what they name alive, and knows
//! how far the backend has come.

#[deny(unsafe_code)]
mod collector;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod fast_path;
#[cfg(test)]
mod first_post_tests;
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
mod retire;
mod soft;
#[deny(unsafe_code)]
mod state;
#[deny(unsafe_code)]
mod trace;
mod translations;
#[deny(unsafe_code)]
mod watchdog;

pub use cpu::Cpu;
pub use cuda::CudaStream;

pub use soft::{Event, SoftStream};
pub use state::Stream;

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

impl Status {
    /// The address of the word, 4 bytes, for kernels on a stream: on a GPU's, in the GPU's address
    /// space, of which the word's page becomes part now if it is not yet. It is for reading only. Where
    /// what was waited for is a [`CheckedWait`](crate::qp::CheckedWait), a kernel behind the wait finds the
    /// word written; behind another wait it may be written a little later, as [`Self::word`] says.
    ///
    /// The address holds as long as this status or a clone of it lives, and on a GPU's stream until
    /// the kernels that were enqueued before are through.
    ///
    /// # Errors
    /// [`StreamError`] where the stream cannot reach the word.
    pub fn address_on<B: MemOpStream>(&self, stream: &Stream<B>) -> Result<StreamAddr, StreamError> {
        stream.backend.translate(self.word().addr(), size_of::<u32>())
    }
}

/// How doorbells are to reach the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellPath {
    /// The stream stores to the card's register where it can reach it, else the proxy does.
    #[default]
    Auto,
    /// The stream stores to the card's register. Posting fails where it cannot reach it.
    Direct,
    /// The stream stores to a mailbox in pinned memory, and a thread of this process forwards it:
    /// works wherever a stream can reach pinned memory, and costs the time that the thread takes to
    /// notice. It sleeps while nothing is to be forwarded.
    Proxy,
}

/// How doorbells do reach the card, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doorbells {
    /// The stream stores to the card's register.
    Direct,
    /// A thread of this process forwards them.
    Proxy {
        /// Why.
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
    /// Doorbells by [`DoorbellPath::Auto`], the progress word in host memory, a signal once in many
    /// batches.
    default {
        /// How doorbells are to reach the card.
        doorbells: DoorbellPath = DoorbellPath::Auto,
        /// Whose memory the word lies in by which the stream tells how far it has come. The CPU
        /// looks at it often.
        timeline: Placement = Placement::Host,
        /// In a batch, runs of waits for completions of at least that many queues are the
        /// card's: a [`crate::Collector`] waits for them, and the stream for one word. What a wait
        /// promises stays. By default the stream waits for each queue itself. Where the card cannot
        /// wait, or waits for too much already, the stream does.
        collect_from: Option<u32> = None,
        /// Whose memory that collector's word lies in: [`crate::qp::CollectorConfig::word`].
        collect_in: Placement = Placement::Host,
        /// Every batch says when the stream has passed it, instead of one in many. That is a memory
        /// operation more for each that does not end with waits; but what the stream has passed is
        /// known without asking the driver, whatever has become of the stream since. (Copies of
        /// bytes excepted, of which the next batch tells.)
        always_signal: bool = false,
    }
}

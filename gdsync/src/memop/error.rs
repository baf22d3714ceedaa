//! Errors of backends, and of the words that streams name.

use crate::cuda::Gpu;
use crate::memop::Condition;
use crate::memory::HostAddr;

/// Errors of backends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream cannot reach an address.
    #[error(
        "the stream cannot reach {len} bytes at {addr:?}: only memory made by this library, or registered with the stream, can be named"
    )]
    Unregistered {
        /// The address.
        addr: HostAddr,
        /// Length in bytes.
        len: usize,
    },
    /// A call of the CUDA driver failed; nothing was performed.
    #[error(transparent)]
    Cuda(crate::cuda::CudaError),
    /// The stream's device refuses to map an address.
    #[error("the stream cannot reach {addr:?}: {reason}")]
    Unreachable {
        /// The address.
        addr: HostAddr,
        /// The device's reason.
        reason: String,
    },
    /// The GPU memory is of another context.
    #[error(
        "the memory is of {}, and the stream of {} or of another context on it: use a stream of the memory's context; words, bytes and queues may lie in a peer's memory after gdsync::cuda::enable_peer_access",
        Gpu::from_device(*.memory), Gpu::from_device(*.stream)
    )]
    OtherGpu {
        /// The stream's GPU.
        stream: i32,
        /// The memory's GPU.
        memory: i32,
    },
    /// The stream lacks a capability.
    #[error("the stream does not support {what}")]
    Unsupported {
        /// The capability.
        what: &'static str,
    },
    /// The stream stands at a wait that nothing ends any more ([`crate::stream::StreamOptions::stop_at_death`]).
    #[error(
        "the stream has stopped, and does not perform what follows its wait: {reason} (go_on of the stream lets it go on without the data)"
    )]
    Stopped {
        /// The rank of a team that is dead; none if it is cut off, or if the team has ended.
        rank: Option<u32>,
        /// The reason.
        reason: String,
    },
    /// The stream has failed permanently.
    #[error("the stream has failed: {reason}")]
    Failed {
        /// The reason.
        reason: String,
    },
    /// Pinned memory for the stream's words could not be allocated.
    #[error("no memory for a mailbox: {reason}")]
    NoMemory {
        /// The operating system's error.
        reason: String,
    },
    /// The system cannot start another stream's thread.
    #[error("cannot start the stream's thread: {reason}")]
    NoThread {
        /// The operating system's error.
        reason: String,
    },
}

/// The reason why a stream cannot name, or wait for, a word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// The word is outside its memory or not aligned.
    #[error("offset {offset} is no aligned {size}-byte word within {len} bytes")]
    Outside {
        /// Byte offset.
        offset: usize,
        /// Word size in bytes.
        size: usize,
        /// Length of the memory.
        len: usize,
    },
    /// No value of the word satisfies the wait.
    #[error("no word is {condition} {value:#x}: a stream that waits for it never goes on")]
    NeverSatisfied {
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
}

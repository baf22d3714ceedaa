//! Why a backend refuses, or has failed.

use super::Condition;
use crate::cuda::Gpu;
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
        /// What the device said.
        reason: String,
    },
    /// GPU memory of another context.
    #[error(
        "the memory is of {}, and the stream of {} or of another context on it: use a stream of the memory's context; words, bytes and queues may lie in a peer's memory after gdsync::cuda::enable_peer_access",
        Gpu::from_device(*.memory), Gpu::from_device(*.stream)
    )]
    OtherGpu {
        /// The stream's GPU.
        stream: i32,
        /// The memory's.
        memory: i32,
    },
    /// The stream lacks a capability.
    #[error("the stream does not support {what}")]
    Unsupported {
        /// The capability.
        what: &'static str,
    },
    /// The stream has failed for good.
    #[error("the stream has failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
    /// Pinned memory for the stream's own words could not be had.
    #[error("no memory for a mailbox: {reason}")]
    NoMemory {
        /// The operating system's error.
        reason: String,
    },
    /// The system has no room for another stream.
    #[error("cannot start the stream's thread: {reason}")]
    NoThread {
        /// The operating system's error.
        reason: String,
    },
}

/// Why a word is none that a stream can name, or wait for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// A word lies outside its memory or is not aligned.
    #[error("offset {offset} is no aligned {size}-byte word within {len} bytes")]
    Outside {
        /// Byte offset.
        offset: usize,
        /// Word size in bytes.
        size: usize,
        /// Length of the memory.
        len: usize,
    },
    /// A wait that no value of the word satisfies.
    #[error("no word is {condition:?} {value:#x}: a stream that waits for it never goes on")]
    NeverSatisfied {
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u64,
    },
}

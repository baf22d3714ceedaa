//! Errors of attaching queue pairs to devices, and of detaching them.

use crate::cuda::CudaError;
use crate::memop::StreamError;
use crate::queue::QueueError;
use crate::verbs::Transport;
use std::io;
use std::time::Duration;

/// Errors of [`crate::QueuePair::attach_device`] and [`crate::device::DeviceQp`]. Unless the
/// variant says otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceQpError {
    /// The queue pair is no reliable connection: kernels post to those only.
    #[error("queue pair {qpn:#x} is {transport}, and kernels drive RC ones: make it with Transport::Rc")]
    Transport {
        /// Its number.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// The queue pair is not connected, has failed, or is attached already.
    #[error(transparent)]
    NotReady(QueueError),
    /// Sends are prepared, or have not completed.
    #[error(
        "queue pair {qpn:#x} has {sends} sends that are prepared or not polled: post or drop them, let streams pass, and poll its send completion queue"
    )]
    Sends {
        /// Its number.
        qpn: u32,
        /// How many.
        sends: u32,
    },
    /// Completions are outstanding, or were not polled.
    #[error(
        "the send completion queue of queue pair {qpn:#x} has {completions} completions to be polled: poll it until it is empty"
    )]
    Completions {
        /// Its number.
        qpn: u32,
        /// How many.
        completions: u32,
    },
    /// Waits for its completions are prepared, or streams have not passed them.
    #[error(
        "{waits} waits for completions of queue pair {qpn:#x} are prepared or outstanding: drop them, or synchronize their streams"
    )]
    Waits {
        /// Its number.
        qpn: u32,
        /// How many.
        waits: u32,
    },
    /// Another queue completes in its send completion queue.
    #[error(
        "queue pair {qpn:#x} shares its send completion queue: kernels need one that is this queue pair's sends' alone"
    )]
    SharedCompletionQueue {
        /// Its number.
        qpn: u32,
    },
    /// Its completion queue has overrun.
    #[error(
        "the send completion queue of queue pair {qpn:#x} has overrun and is lost: make a new queue pair"
    )]
    CompletionQueueLost {
        /// Its number.
        qpn: u32,
    },
    /// The device cannot reach its memory; or its register, if the options ask for that.
    #[error("kernels cannot reach the queue pair: {0}")]
    Unreachable(#[from] StreamError),
    /// The memory for the kernels' indices is too short.
    #[error("the kernels' indices need {needed} bytes of GPU memory, and there are {given}: give more")]
    StateTooShort {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// Pinned memory could not be allocated.
    #[error("no pinned memory for the kernels' indices: {0}")]
    Memory(#[source] io::Error),
    /// The thread that forwards mailboxes could not be started.
    #[error("cannot start the thread that forwards doorbells of kernels: {0}")]
    Thread(#[source] io::Error),
    /// The GPU's memory cannot be read or written.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel is in the middle of a call, or was ended there.
    #[error(
        "{unpublished} blocks of queue pair {qpn:#x} are reserved and not written: a kernel still posts, so wait for it; if it has died, abort() the queue pair, and detach it then"
    )]
    KernelActive {
        /// Its number.
        qpn: u32,
        /// How many.
        unpublished: u64,
    },
    /// The card has not completed everything. The call can be repeated.
    #[error(
        "{outstanding} requests that kernels posted to queue pair {qpn:#x} have not completed after {waited:?}: wait longer, or abort() it"
    )]
    Outstanding {
        /// Its number.
        qpn: u32,
        /// How many.
        outstanding: u64,
        /// How long the call has waited.
        waited: Duration,
    },
}

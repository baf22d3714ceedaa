//! GPUDirect Async in Rust: the CPU prepares network work, a stream rings the card and waits for it.
//!
//! A program that computes on a GPU and talks over InfiniBand or RoCE normally stops at every message: kernel,
//! synchronize, ring the card, poll, next kernel. Here the ring and the wait are memory operations *enqueued on a
//! stream*, performed in stream order between kernels, with no CPU in the way.
//!
//! ```
//! use gdsync::{Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig};
//! use gdsync::{SoftStream, Stream, WorkRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A software card, a software stream: nothing to install.
//! let device = Device::software()?;
//! let pd = ProtectionDomain::new(&device)?;
//! let (left, right) =
//!     (QueuePair::new(&pd, QueuePairConfig::default())?, QueuePair::new(&pd, QueuePairConfig::default())?);
//! left.connect(&right.endpoint()?, ConnectOptions::default())?;
//! right.connect(&left.endpoint()?, ConnectOptions::default())?;
//! let source = MemoryRegion::allocate(&pd, 5, Access::empty())?;
//! let target = MemoryRegion::allocate(&pd, 5, Access::LOCAL_WRITE)?;
//!
//! // The CPU prepares; the stream computes, sends, and waits for the arrival.
//! right.post_recv(&[target.slice(..)?], 0)?;
//! let slices = [source.slice(..)?];
//! let send = left.prepare(WorkRequest::send(&slices))?;
//! let arrival = right.recv_cq().prepare_wait()?;
//! let stream = Stream::new(SoftStream::new()?)?;
//! let kernel_input = source.clone();
//! stream.launch(move || assert_eq!(kernel_input.write(0, b"hello"), 5))?;
//! stream.post(Batch::new().send(send).wait(arrival))?;
//! stream.synchronize()?;
//!
//! let mut received = [0; 5];
//! target.read(0, &mut received);
//! assert_eq!(&received, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//! [`Device`], [`ProtectionDomain`], [`MemoryRegion`], [`QueuePair`] and [`CompletionQueue`] are the verbs objects,
//! kept alive by what uses them. [`PreparedSend`] and [`PreparedWait`] are work that was prepared and not posted yet. A
//! [`Batch`] of them is posted on a [`Stream`], whose backend performs memory operations.
//!
//! # Safety
//! No `unsafe` is needed to use this library. Memory that a card or a stream touches is
//! [`PinnedMemory`], shared by words and copies, never lent as a slice; queues, regions and words
//! live until the last operation that names them has passed.

#[deny(unsafe_code)]
pub mod advanced;
#[deny(unsafe_code)]
pub mod batch;
pub mod cuda;
pub mod device;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod memop;
pub mod memory;
pub mod qp;
pub mod queue;
pub mod stream;
mod util;
pub mod verbs;

pub use batch::Batch;
#[doc(hidden)]
pub use batch::outline;
pub use cudarc;
pub use memory::PinnedMemory;
pub use qp::{
    CompletionQueue, CompletionQueueConfig, PreparedSend, PreparedWait, QueuePair, QueuePairConfig, Trigger,
};
pub use queue::{Completion, QueueError, WorkRequest};
pub use stream::{CudaStream, SoftStream, Stream, graph, persistent};
pub use verbs::{
    Access, ConnectOptions, Device, Endpoint, Error, MemoryRegion, ProtectionDomain, RemoteMemory, Slice,
};

/// The example of the crate's page, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

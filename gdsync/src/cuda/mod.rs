//! CUDA: devices, memory, and streams of a GPU as a backend.
//!
//! The driver is loaded at run time. Without a driver, or with too old a one, every function here returns an error;
//! nothing panics.
//!
//! # Blocking calls
//! As measured on an H200 with driver 580 (`scripts/gpu/driver_facts.cu`): while any stream of a context is blocked in
//! a wait, `cuMemFree`, `cuMemHostUnregister`, loading a module and the first launch of a lazily loaded kernel wait for
//! it, and kernel launches of *other* threads, and posts to [borrowed](crate::CudaStream::borrow_raw) streams, wait for
//! them. Posting batches to other streams, launching loaded kernels, allocating, registering and copying do not wait. So a
//! program loads its modules, and launches each kernel once, before it waits for anything that needs its own help. gdsync
//! frees and unregisters memory that a GPU knows only while all streams that gdsync knows are idle: when a stream is
//! synchronized, made or dropped, or GPU memory is allocated. (It still waits for another stream of the program, or for a
//! kernel that never ends, unless the program calls [`defer_release`].)
//!
//! Streams of one context that wait for each other need a channel each. The driver has 8 by default, and executes the
//! work of streams that share a channel in the order of submission. While as many streams wait as there are channels,
//! all others are blocked, even for short copies. Set `CUDA_DEVICE_MAX_CONNECTIONS=32` before the process uses CUDA.
//!
//! The driver assigns a stream's channel with its first work. Streams that get their first work from several threads
//! at the same time may share a channel although others are free (measured: `scripts/gpu/channels.cu`).
//! [`CudaStream::new`](crate::CudaStream::new) does that first work; [`claim_channel`] does it for streams on which a
//! program only launches kernels.
//!
//! # Visibility of a card's writes
//! After a wait for a completion (or for a word that a card writes), later work on the stream sees everything that
//! the card wrote before it. For messages in host memory that always holds. For messages in GPU memory it depends on
//! the GPU ([`GpuCapabilities::consistency`]). A GPU that shows a card's writes in order needs nothing (for memory of
//! another GPU, the order must hold for all devices). Otherwise, every wait is followed by a flush, if the GPU has
//! one; if it has none, [`GpuMemoryRegion::register`](crate::verbs::GpuMemoryRegion::register) refuses memory that a
//! real card may write. The software card finishes its copies before it completes a request.
//!
//! # Example
//! ```no_run
//! use gdsync::CudaStream;
//! use gdsync::cuda::{GpuMemory, self};
//! use gdsync::verbs::GpuMemoryRegion;
//! use gdsync::{Access, Batch, ConnectOptions, Device, ProtectionDomain, QueuePair, QueuePairConfig};
//! use gdsync::batch::BatchShape;
//! use gdsync::{Stream, WorkRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = cuda::context(0)?;
//! let stream = Stream::new(CudaStream::new(context.new_stream()?)?)?;
//! let pd = ProtectionDomain::new(&Device::software()?)?;
//! let (left, right) =
//!     (QueuePair::new(&pd, QueuePairConfig::default())?, QueuePair::new(&pd, QueuePairConfig::default())?);
//! left.connect(&right.endpoint()?, ConnectOptions::default())?;
//! right.connect(&left.endpoint()?, ConnectOptions::default())?;
//! let region = |access| GpuMemoryRegion::register(&pd, GpuMemory::allocate(&context, 4096)?, access);
//! let (source, target) = (region(Access::empty())?, region(Access::LOCAL_WRITE)?);
//! let exchange = || -> Result<Batch, gdsync::QueueError> {
//!     right.post_recv(&[target.slice(..)?], 0)?;
//!     let send = left.prepare(WorkRequest::send(&[source.slice(..)?]))?;
//!     Ok(Batch::new().send(send).wait(right.recv_cq().prepare_wait()?))
//! };
//!
//! // Between the program's kernels on the same stream ...
//! stream.post(exchange()?)?;
//! // ... or as a node of a graph, with fresh work for each launch.
//! let mut graph = stream.capture(|capture| Ok(capture.batch(&BatchShape::new().send().wait())?))?;
//! for _ in 0..10 {
//!     stream.launch(&mut graph, [exchange()?])?;
//! }
//! stream.synchronize()?;
//! # Ok(())
//! # }
//! ```

#[deny(unsafe_code)]
mod capabilities;
#[cfg(feature = "software-card")]
mod card_region;
mod context;
mod copier;
#[deny(unsafe_code)]
mod error;
mod event;
pub(crate) mod gate;
mod handle;
#[deny(unsafe_code)]
mod list;
#[deny(unsafe_code)]
pub(crate) mod mapped;
mod memory;
#[cfg(feature = "software-card")]
#[deny(unsafe_code)]
mod peer_copies;
mod peers;
mod placement;

pub use capabilities::{
    Consistency, GpuCapabilities, GpuDescription, WritesOrdering, describe, driver_version,
};
pub use error::CudaError;
pub use gate::{DeferReleaseGuard, defer_release};
pub use gdsync_gdr::Gpu;
pub use gdsync_gdr::driver::DriverError;
pub use handle::RelaxedCapture;
pub use list::{GpuList, GpuListError, Gpus};
pub use memory::GpuMemory;
pub use peers::{PeerCapabilities, enable_peer_access, peer_capabilities};
pub use placement::{Placement, PlacementError, QueuePlacement};
pub(crate) use placement::{QueueArenas, arena_of, gpu};

#[cfg(feature = "software-card")]
pub(crate) use card_region::share;
pub(crate) use context::{GpuContext, collect_all};
pub(crate) use error::check;
pub(crate) use event::Event;
pub(crate) use handle::StreamHandle;
pub(crate) use memory::{buffer_id, host_buffer_id};

use crate::memory::{HostAddr, PinnedMemory};
use cudarc::driver::CudaContext;
use gdsync_gdr::driver;
use std::sync::Arc;

/// Number of GPUs.
///
/// # Errors
/// [`DriverError::NoDriver`], [`DriverError::TooOld`], or [`DriverError::Call`].
pub fn device_count() -> Result<u32, CudaError> {
    Ok(driver::device_count()?)
}

/// The primary context of a GPU.
///
/// # Errors
/// As [`device_count`], and [`DriverError::NoDevice`].
pub fn context(ordinal: u32) -> Result<Arc<CudaContext>, CudaError> {
    Gpu::new(ordinal)?;
    CudaContext::new(ordinal as usize).map_err(|error| CudaError::call("cuDevicePrimaryCtxRetain", error.0))
}

/// The capabilities of a GPU.
///
/// # Errors
/// [`DriverError::Call`].
pub fn capabilities(context: &Arc<CudaContext>) -> Result<GpuCapabilities, CudaError> {
    Ok(GpuContext::of(context)?.capabilities)
}

/// Makes the driver assign a channel to a new stream, if one is free. A program calls this before its threads launch
/// kernels on streams that wait for each other by other means than [`CudaStream`](crate::CudaStream), which does it
/// itself (module documentation). Takes some microseconds. Does nothing for a stream that has work or is being
/// captured.
///
/// # Errors
/// [`CudaError`], if gdsync cannot use the stream's context.
pub fn claim_channel(stream: &Arc<cudarc::driver::CudaStream>) -> Result<(), CudaError> {
    let context = GpuContext::of(stream.context())?;
    context.claim_channel(&*StreamHandle::new(context.raw, stream.cu_stream(), Some(stream.clone()))?);
    Ok(())
}

/// Maps pinned memory for kernels: returns the GPU's address of its first byte, valid as long as the memory lives.
/// (For empty memory, an address that must not be used.)
///
/// # Errors
/// [`CudaError::Unreachable`] if the GPU refuses.
pub fn pin(context: &Arc<CudaContext>, memory: &PinnedMemory) -> Result<u64, CudaError> {
    let gpu = GpuContext::of(context)?;
    let first = memory.addr();
    if memory.is_empty() {
        return Ok(first.get());
    }
    let mut expected = gpu.translate(first, 1)?.get();
    let page = gdsync_sys::host::page_size() as u64;
    let base = expected;
    // Page by page, as for streams; a kernel needs them contiguous.
    let mut at = (first.get() & !(page - 1)) + page;
    while at < first.get() + memory.len() as u64 {
        expected = (expected & !(page - 1)) + page;
        if gpu.translate(HostAddr(at), 1)?.get() != expected {
            let reason = "the GPU has its pages in several places".to_owned();
            return Err(CudaError::Unreachable { gpu: gpu.ordinal, addr: HostAddr(at), reason });
        }
        at += page;
    }
    Ok(base)
}

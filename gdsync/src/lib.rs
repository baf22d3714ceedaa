//! GPUDirect Async in Rust: the CPU prepares network work, a stream rings the card and waits for it.
//!
//! A program that computes on a GPU and talks over InfiniBand or RoCE normally stops at every message: kernel, synchronize,
//! ring the card, poll, next kernel. Here the ring and the wait are memory operations *enqueued on a stream*, performed in
//! stream order between kernels, with no CPU in the way.
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
//! [`Device`], [`ProtectionDomain`], [`MemoryRegion`], [`QueuePair`] and [`CompletionQueue`] are the verbs objects, kept
//! alive by whoever uses them. [`PreparedSend`] and [`PreparedWait`] are work that the card, or a stream, has not been told
//! of yet. A [`Batch`] of them is posted on a [`Stream`], whose backend performs memory operations.
//!
//! # Safety
//! No `unsafe` is needed to use this library. Memory that a card or a stream touches is [`PinnedMemory`], shared by atomics
//! and copies, never lent as a slice; queues, regions and words live until the last operation that names them has passed.

mod ah;
mod batch;
pub mod bootstrap;
mod checked;
mod checked_watcher;
mod connect;
mod cq;
pub mod cuda;
mod device;
mod device_qp;
mod devx;
mod endpoint;
mod error;
mod failure;
pub mod foreign;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gid;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
mod lane;
mod lifecycle;
mod memory;
mod mr;
pub mod notify;
pub mod outline;
mod pd;
mod peer;
mod persistent;
mod persistent_claim;
mod prepared;
pub mod provider;
mod qp;
mod qp_failure;
mod qp_life;
mod qp_options;
mod queue;
mod queue_domain;
mod registration;
mod request;
mod stream;
mod sync;
mod transport;
mod verbs_call;

pub use ah::AddressHandle;
pub use batch::{Batch, BatchShape, MemoryWrite, StreamWait};
pub use checked::{CheckedWait, Status};
pub use cq::CompletionQueue;
pub use cudarc;
pub use device::{DEFAULT_PORT, Device, DeviceAttributes, Mtu, PortAttributes, PortState};
pub use device_qp::{DeviceQp, DeviceQpData, DeviceQpError, DeviceQpOptions, DeviceQpProgress};
pub use devx::{DevxError, DevxStatus};
pub use endpoint::Endpoint;
pub use error::{Error, FailureCause, Obstacle, QueueError};
pub use gdsync_sys::api::Provider;
pub use gdsync_sys::prm::cqe::Syndrome;
pub use gid::{Gid, GidEntry, GidKind, LinkLayer};
pub use lane::{Blocked, Ticket};
pub use lifecycle::{AsyncEvent, AsyncEventKind, EventWatch, StalledWait, Watchdog};
pub use memory::{
    HostAddr, MemoryKind, PinnedMemory, Placement, QueuePlacement, StreamAddr, StreamMemory, StreamWord,
    Word32, Word64,
};
pub use mr::{Access, MemoryRegion, RemoteMemory, Slice};
pub use pd::ProtectionDomain;
pub use persistent::{PersistentError, PersistentRecv, PersistentSend, StillActive};
pub use prepared::PreparedSend;
pub use qp::QueuePair;
pub use qp_options::{ConnectOptions, QueueMaker, QueuePairConfig};
pub use queue::completion::{Completion, WorkError, WorkKind};
pub use queue::datagram::{DatagramSource, GRH_BYTES, NetworkHeader};
pub use queue::wait::PreparedWait;
pub use registration::{CacheLimits, CacheStatistics, CachedRegion, RegistrationCache};
pub use request::WorkRequest;
pub use stream::{
    Condition, Cpu, DoorbellPath, Doorbells, Event, MemOp, MemOpCaps, MemOpStream, PostError, PostFailure,
    Posted, SoftStream, Staged, Stream, StreamError, StreamOptions,
};
pub use transport::Transport;

/// CPU mappings of GPU memory: [`mapped::MappedMemory`], and what it is made of, of the crate `gdsync-gdr`.
pub mod mapped {
    pub use crate::cuda::mapping::{Availability, MappedMemory, available};
    pub use gdsync_gdr::{
        Caching, GdrdrvModule, LoadKernel, Mapping, MappingBackend, MappingError, MappingInfo, Refusal,
        StoreKernel,
    };
}

//! The verbs objects below a queue pair: devices, protection domains, memory regions and address handles.

pub(crate) mod ah;
pub(crate) mod call;
#[deny(unsafe_code)]
mod deferred_release;
pub(crate) mod device;
pub(crate) mod devx;
#[deny(unsafe_code)]
pub(crate) mod endpoint;
#[deny(unsafe_code)]
pub(crate) mod error;
mod event_reader;
pub(crate) mod events;
mod gid;
pub(crate) mod gpu_mr;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
pub(crate) mod mr;
pub(crate) mod pd;
#[deny(unsafe_code)]
mod port;
pub mod provider;
pub(crate) mod registration;
#[deny(unsafe_code)]
pub(crate) mod transport;

pub(crate) use call::Owned;
pub(crate) use device::DeviceInner;
pub(crate) use mr::{DeferredDeregistration, MemoryRegionInner};
pub(crate) use pd::ProtectionDomainInner;

pub use ah::{AddressHandle, DcAddress};
pub use device::{Device, DeviceAttributes};
pub use devx::CardWaits;
pub use endpoint::{ConnectOptions, Endpoint, RemoteMemory};
pub(crate) use error::{DevxError, DevxStatus};
pub use error::{Error, OpenError, OutOfRange, ParseError, PortError, QueuePairError, RegistrationError};
pub use event_reader::EventWatch;
pub use events::{AsyncEvent, AsyncEventKind};
pub use gdsync_sys::api::Provider;
pub use gpu_mr::GpuMemoryRegion;
pub use mr::{Access, MemoryRegion, Region, RegistrationPath, Slice};
pub use pd::ProtectionDomain;
pub use port::{DEFAULT_PORT, Gid, GidEntry, GidKind, LinkLayer, Mtu, PortAttributes, PortState};
pub use registration::{CacheLimits, CacheStatistics, CachedMemory, CachedRegion, RegistrationCache};
pub(crate) use transport::QueueApi;
pub use transport::Transport;

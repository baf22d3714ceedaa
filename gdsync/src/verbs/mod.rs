//! The verbs objects below a queue pair: devices, protection domains, memory regions, address
//! handles, and what describes them.

pub(crate) mod ah;
pub(crate) mod call;
pub(crate) mod device;
pub(crate) mod devx;
#[deny(unsafe_code)]
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod gid;
pub(crate) mod gpu_mr;
#[cfg(feature = "ibverbs")]
pub mod ibverbs;
#[deny(unsafe_code)]
pub(crate) mod keeper;
pub(crate) mod mr;
pub(crate) mod pd;
#[deny(unsafe_code)]
pub mod provider;
pub(crate) mod registration;
#[deny(unsafe_code)]
pub(crate) mod transport;

pub(crate) use call::Owned;
pub(crate) use device::DeviceInner;
pub(crate) use mr::{MemoryRegionInner, RegionKeeper};
pub(crate) use pd::ProtectionDomainInner;

pub use ah::{AddressHandle, DcAddress};
pub use device::{DEFAULT_PORT, Device, DeviceAttributes, Mtu, PortAttributes, PortState};
pub use devx::{CardWaits, DevxError, DevxStatus};
pub use error::{Error, OpenError, OutOfRange, ParseError, PortError, QueuePairError};
pub use events::{AsyncEvent, AsyncEventKind, EventWatch};
pub use gdsync_sys::api::Provider;
pub use gid::{Gid, GidEntry, GidKind, LinkLayer};
pub use gpu_mr::{GpuMemoryRegion, RegistrationError, RegistrationPath};
pub use mr::{Access, MemoryRegion, Region, RemoteMemory, Slice};
pub use pd::ProtectionDomain;
pub use registration::{CacheLimits, CacheStatistics, CachedMemory, CachedRegion, RegistrationCache};
pub use transport::{ConnectOptions, Endpoint, QueueApi, Transport};

//! The device model: protection domains, memory regions, UARs, completion queues, queue pairs, and the engine that
//! serves them.
//!
//! The model has no FFI types and no pointers to objects: objects are numbers, as in hardware. The caller guarantees
//! only that the addresses in [`CqConfig`] and [`QpConfig`] are valid.
//!
//! When a peer's process ends, a queue pair notices as with hardware. A reliable connection with something to send or
//! unacknowledged fails with *retry exceeded*: at once if the fabric can no longer send to that node, else after one
//! timeout without further retries (never with timeout 0). A connection that only waits for messages is not notified,
//! as nothing probes its peer: programs that need to know send a message from time to time. Sends on unreliable
//! connections and datagrams complete, and the data is lost.

#[deny(unsafe_code)]
mod capabilities;
mod commands;
mod config;
mod context;
mod counters;
#[deny(unsafe_code)]
mod delayed;
#[deny(unsafe_code)]
mod device;
mod engine;
#[deny(unsafe_code)]
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
#[deny(unsafe_code)]
pub mod fuzzing;
#[deny(unsafe_code)]
mod listeners;
mod management;
mod mappings;
mod memory;
mod naps;
#[deny(unsafe_code)]
mod pollers;
#[deny(unsafe_code)]
mod port;
mod queue;
#[deny(unsafe_code)]
mod reports;
#[deny(unsafe_code)]
pub mod simulation;
#[deny(unsafe_code)]
mod status;
#[deny(unsafe_code)]
mod touches;
#[deny(unsafe_code)]
mod trace;
mod transport;
#[deny(unsafe_code)]
mod watch;
mod worker;

pub use crate::os::memory::MEMORY_FILE;
pub use crate::packet::MULTICAST_QPN;
pub use capabilities::{CLOCK_KHZ, ODP, OdpTransports};
pub use commands::memory::DeviceMemory;
pub use config::{
    Access, Address, CHECKS_VARIABLE, CqAttributes, CqConfig, CqModeration, DataOrdering, FULL_MEMBER,
    InvalidValue, KeyConfig, LIMITS, Limits, NULL_KEY, OBJECTS_VARIABLE, PKEYS_VARIABLE, PkeyTable,
    QpAttributes, QpChange, QpConfig, QpState, RegionConfig, STOPPED_VARIABLE, ScatterToCqe, SrqAttributes,
    SrqConfig, Transport, WAITS_VARIABLE, WaitRules, WindowKind, XrcConfig,
};
pub(crate) use config::{Checks, StoppedPeers};
pub use counters::{Counter, Counters};
pub use device::{Card, UarHandle};
pub use error::CardError;
pub use management::{MAX_MANAGEMENT, ManagementDatagram};
pub use mappings::change_mappings;
pub use memory::clock::{CLOCK_INFO_PAGE, CLOCK_MASK, CLOCK_PAGE};
pub use memory::registered::{RegionError, is_mapped, is_reachable};
pub use memory::uar::FILE_PAGES;
pub use naps::{LateWakeups, late_wakeups};
pub use pollers::has_few_cores;
pub use port::{GidEntry, GidKind, LinkLayer, MAX_DEVICES, MULTICAST_LIDS, is_multicast};
pub use reports::{Diagnostic, Event, Verdict};
pub use transport::transition::ModifyError;
pub use worker::EventSink;

#[cfg(test)]
mod tests;

//! A software mlx5 card.
//!
//! It reads real work-queue entries from real send queues, takes doorbells from a UAR page, and writes real completion
//! entries, as the hardware does, only stricter: whatever a program does wrong is reported as the card would report it (error
//! completion, queue pair to ERR, asynchronous event) *and* as a readable [`card::Diagnostic`].
//!
//! Three layers, bottom up: [`fabric`] moves packets between the processes of a host; [`card`] is the device; [`verbs`] is
//! the front that libibverbs' callers see, a [`gdsync_sys::VerbsApi`].

pub mod card;
pub mod devices;
pub mod fabric;
pub mod faults;
mod peer_memory;
pub mod sysfs;
pub mod verbs;

pub use faults::{FaultPlan, fault_counts, set_faults};
pub use peer_memory::{PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
pub use verbs::verbs_api;

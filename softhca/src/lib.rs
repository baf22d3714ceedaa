//! A software mlx5 card.
//!
//! Like the hardware, it reads work-queue entries from send queues, takes doorbells from a UAR
//! page, and writes completion entries. It checks more strictly: a mistake of the program is
//! reported as the hardware would report it (error completion, queue pair to ERR, asynchronous
//! event) *and* as a readable [`card::Diagnostic`].
//!
//! Layers, bottom up: [`fabric`] moves packets between the cards of a host or of several hosts;
//! [`faults`] loses, delays and duplicates them on purpose; [`liberties`] makes the card do what it may
//! do; [`card`] is the device; [`verbs`] is the front that callers of libibverbs see, a
//! [`gdsync_sys::VerbsApi`].

pub mod card;
#[deny(unsafe_code)]
pub mod devices;
#[deny(unsafe_code)]
pub mod environment;
pub mod fabric;
#[deny(unsafe_code)]
pub mod faults;
mod lent;
#[deny(unsafe_code)]
pub mod liberties;
mod os;
#[deny(unsafe_code)]
mod packet;
mod peer_memory;
pub mod program;
#[deny(unsafe_code)]
mod random;
#[deny(unsafe_code)]
pub mod setting;
#[deny(unsafe_code)]
mod speed;
pub mod sysfs;
#[cfg(test)]
mod testing;
pub mod verbs;

pub use faults::{FaultPlan, fault_counts, set_faults};
pub use lent::HostRange;
pub use peer_memory::{Begun, PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
pub use speed::{SPEED_VARIABLE, Speed};
pub use verbs::verbs_api;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

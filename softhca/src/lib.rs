//! A software mlx5 card.
//!
//! Like the hardware, it reads work-queue entries from send queues, takes doorbells from a UAR page, and
//! writes completion entries. It checks more strictly: it reports a program's mistake as the hardware would
//! (error completion, queue pair to ERR, asynchronous event) *and* as a readable [`card::Diagnostic`].
//!
//! Layers, bottom up: [`fabric`] moves packets between the cards of one or several hosts; [`faults`] loses, delays and
//! duplicates them on purpose; [`liberties`] makes the card use the freedom that the specifications give it; [`card`]
//! is the device model; [`verbs`] is the front for callers of libibverbs, a [`gdsync_sys::VerbsApi`].

pub mod card;
#[deny(unsafe_code)]
pub mod devices;
#[deny(unsafe_code)]
pub mod environment;
#[deny(unsafe_code)]
pub mod explore;
pub mod fabric;
#[deny(unsafe_code)]
pub mod faults;
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
mod staging;
pub mod sysfs;
#[cfg(test)]
mod testing;
pub mod verbs;

pub use faults::{FaultPlan, fault_counts, set_faults};
pub use peer_memory::{AsyncCopy, PeerMemory, PeerMemoryError, PeerRegion, register_peer_memory};
pub use speed::{SPEED_VARIABLE, Speed};
pub use staging::HostRange;
pub use verbs::verbs_api;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

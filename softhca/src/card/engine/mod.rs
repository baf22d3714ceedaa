//! The engine performs the card's work step by step. It owns all state of the device, and no memory of its users.

pub(crate) mod arrivals;
mod batch;
mod doorbells;
mod peer_batch;
mod release;
mod schedule;
mod send;
mod state;
mod step;
mod timeouts;

pub(crate) use doorbells::{RungPages, Uar};
#[cfg(test)]
pub(crate) use peer_batch::{FIRST_SECTION, OWN_PACKETS, SECTION};
pub(crate) use state::{Engine, XrcDomain};

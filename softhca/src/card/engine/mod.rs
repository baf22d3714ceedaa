//! The engine performs the card's work step by step. It owns all state of the device, and no memory of its users.

mod ahead;
mod arrivals;
mod completions;
mod depart;
mod doorbells;
mod peer;
mod schedule;
mod send;
mod state;
mod step;

pub(crate) use state::{Engine, Uar, XrcDomain};
pub(crate) use step::nap;

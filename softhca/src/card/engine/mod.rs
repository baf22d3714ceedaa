//! The engine: what the card does, step by step. It owns all state of the device and no memory of
//! its users.

mod ahead;
mod arrivals;
mod arrive;
mod completions;
mod depart;
mod doorbells;
mod management;
mod peer;
mod placed;
mod schedule;
mod send;
mod state;
mod step;
mod timers;

pub(crate) use state::{Engine, Uar, XrcDomain};
pub(crate) use step::nap;

//! The tests of notified writes and of the bootstrap, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bootstrap;
mod collective_deaths;
mod collectives;
mod death;
mod dynamic;
mod ends;
mod explained;
mod fetches;
mod gpu_collectives;
mod gpu_notify;
mod gpu_registered;
mod gpu_several;
mod gpu_stopped;
mod lives;
mod many;
mod notify;
mod notify_device;
mod notify_model;
mod notify_rig;
mod own_requests;
mod pairs;
mod ranks;
mod registered;
mod stopped;
mod survivors;
mod suspended;

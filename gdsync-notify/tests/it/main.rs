//! The tests of notified writes and of the bootstrap, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod bootstrap;
mod collectives;
mod death;
mod dynamic;
mod gpu_collectives;
mod gpu_notify;
mod many;
mod notify;
mod notify_device;
mod notify_model;
mod notify_rig;
mod ranks;
mod survivors;

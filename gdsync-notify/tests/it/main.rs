//! The tests of the crate, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[path = "../../../gdsync/tests/common/mod.rs"]
mod common;
#[path = "../../../gdsync/tests/device_rig/mod.rs"]
mod device_rig;
#[path = "../../../gdsync/tests/gpu_rig/mod.rs"]
mod gpu_rig;
mod notify_rig;
mod ranks;

mod bootstrap;
mod gpu_notify;
mod notify;
mod notify_device;
mod notify_model;

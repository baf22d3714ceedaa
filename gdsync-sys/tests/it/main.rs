//! The declarations and wire formats against the installed headers of rdma-core, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod header;
mod layout;
mod wire;

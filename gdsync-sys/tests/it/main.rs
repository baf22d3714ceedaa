//! Compares the declarations and wire formats with the installed headers of rdma-core.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod header;
mod layout;
mod wire;

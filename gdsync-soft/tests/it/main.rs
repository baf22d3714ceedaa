//! Unmodified programs on the unmodified libibverbs and libmlx5, on the software card: `gdsync soft -- PROGRAM`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod card;
mod checks;
mod connections;
mod devx;
mod exhaustion;
mod explore;
mod failures;
mod faults;
mod interop;
mod listing;
mod memory;
mod mpi;
mod network;
mod orders;
mod partitions;
mod perftest;
mod pingpong;
mod polling;
mod seen;
mod settings;
mod soft;
mod strict;

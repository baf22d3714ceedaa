//! Unmodified programs on the unmodified libibverbs and libmlx5, on the software card: `gdsync soft
//! -- PROGRAM`.

mod card;
mod connections;
mod exhaustion;
mod failures;
mod faults;
mod interop;
mod listing;
mod memory;
mod mpi;
mod network;
mod perftest;
mod pingpong;
mod seen;
mod soft;
pub(crate) mod support;

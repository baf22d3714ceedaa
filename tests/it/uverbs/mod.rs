//! Unmodified programs on the unmodified libibverbs and libmlx5, on the software card: `gdsync soft -- PROGRAM`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod exhaustion;
mod failures;
mod listing;
mod network;
mod perftest;
mod pingpong;
mod soft;
mod support;

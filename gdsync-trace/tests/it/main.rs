//! Tests that record, each in a separate process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[cfg(feature = "nvtx")]
mod ranges;
mod recording;

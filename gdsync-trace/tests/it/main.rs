//! Recording in processes of their own, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[cfg(feature = "nvtx")]
mod ranges;
mod recording;

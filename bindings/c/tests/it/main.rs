//! The tests of the C library, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod headers;
mod install;
mod programs;
mod support;

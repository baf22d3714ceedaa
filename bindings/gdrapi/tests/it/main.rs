//! Tests of the C interface by C and C++ programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod interface;
mod programs;
mod support;

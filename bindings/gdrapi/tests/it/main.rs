//! The C interface, as C and C++ programs see it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod interface;
mod programs;
mod support;

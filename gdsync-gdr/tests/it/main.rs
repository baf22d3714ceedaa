//! Tests of mappings through the public interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod leaks;

//! The tests of mappings through the public interface, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod leaks;

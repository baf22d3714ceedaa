//! The tests of the MPI libraries, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod mpis;
mod mpix;
mod programs;

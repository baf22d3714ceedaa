//! `gdsync top`: its tables, and its live view on a terminal.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod terminal;
mod view;

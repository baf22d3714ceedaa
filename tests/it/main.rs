//! The tests of the command, of the preload library under it, and of the workspace, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod book;
mod cli;
mod cli_card;
mod cli_measure;
mod cli_sweep;
mod command;
mod devx;
mod doctor;
mod driver_calls;
mod hangs;
mod hosts;
mod interrupts;
mod kernels;
mod manners;
mod mistakes;
mod pictures;
mod processes;
mod settings;
mod top;
mod traces;
mod uverbs;

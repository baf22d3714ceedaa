//! Tests of the command and of the workspace.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod cli;
mod cli_card;
mod cli_sweep;
mod doctor;
mod driver_calls;
mod hangs;
mod hosts;
mod interrupts;
mod kernels;
mod run;
mod run_hosts;
mod run_ssh;
mod settings;
mod traces;
mod verbs;
mod warm_up;

//! The verbs that measure and try, what holds for all verbs, and the book whose commands run them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod book;
mod cli_card;
mod cli_measure;
mod hangs;
mod interrupts;
mod manners;
mod mistakes;
mod pictures;
mod settings;
mod soak;

//! The verbs of the lab, common properties of all verbs, and the book with its commands.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod accept;
mod book;
mod cli_card;
mod cli_measure;
mod hangs;
mod interrupts;
mod manners;
mod mistakes;
mod pictures;
mod settings;
mod simulate;
mod soak;

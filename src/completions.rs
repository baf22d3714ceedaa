//! `gdsync completions`: made of the command line's own description.

use crate::cli::{Cli, CompletionsOptions};
use crate::failure::Failure;
use std::io::{self, Write};

/// Prints the completions of a shell.
pub(crate) fn run(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::here(), "gdsync", &mut script);
    Ok(io::stdout().lock().write_all(&script)?)
}

//! `gdsync completions`: made of the command line's own description.

use crate::cli::{Cli, CompletionsOptions};
use crate::failure::Failure;
use std::io::{self, Write};

/// Prints the completions of a shell.
pub(crate) fn run(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut listed(), "gdsync", &mut script);
    Ok(io::stdout().lock().write_all(&script)?)
}

/// The command line with the verbs that help lists: completions would have those that are hidden, too.
fn listed() -> clap::Command {
    let whole = Cli::here();
    let verbs: Vec<_> = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    let about = whole.get_about().cloned().unwrap_or_default();
    clap::Command::new("gdsync").version(env!("CARGO_PKG_VERSION")).about(about).subcommands(verbs)
}

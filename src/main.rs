//! The `gdsync` command: it parses, calls the library, and prints. Everything is in the library of this package, which the
//! programs of the other verbs share.

use std::process::ExitCode;

fn main() -> ExitCode {
    gdsync_cli::main(gdsync_cli::run, gdsync_cli::run_process)
}

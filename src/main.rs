//! The `gdsync` command. All of it is in this package's library, which the programs of the other verbs share.

use std::process::ExitCode;

fn main() -> ExitCode {
    gdsync_cli::main(gdsync_cli::run, gdsync_cli::run_process)
}

//! The program of `gdsync top`.

mod top;

use gdsync_cli::cli::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let run = |command| match command {
        Command::Top(options) => top::run(&options),
        other => gdsync_cli::run(other),
    };
    gdsync_cli::main(run, gdsync_cli::run_process)
}

//! The program of `gdsync soft`.

mod soft;

use gdsync_cli::cli::Command;
use std::process::ExitCode;

fn main() -> ExitCode {
    let run = |command| match command {
        Command::Soft(options) => soft::run(&options),
        other => gdsync_cli::run(other),
    };
    gdsync_cli::main(run, gdsync_cli::run_process)
}

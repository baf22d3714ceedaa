//! The `gdsync` command: it parses, calls the library, and prints.
//!
//! Results go to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 unusable
//! arguments; `gdsync soft` answers with that of its command.

mod bench;
mod child;
mod cli;
mod devices;
mod doctor;
mod explain;
mod failure;
mod fault_plan;
mod gpus;
mod hca;
mod log;
mod mapped;
mod pattern;
mod pingpong;
mod placement;
mod soak;
mod soft;
mod text;

use cli::{Cli, Command};
use failure::Failure;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::parse_words(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match log::own_filter() {
        Ok(filter) => tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init(),
        Err(error) => {
            // If stderr itself fails, there is no place to report it.
            let _ = writeln!(io::stderr(), "gdsync: {error}");
            return ExitCode::from(2);
        }
    }
    let done = |result: Result<(), Failure>| result.map(|()| ExitCode::SUCCESS);
    let result = match cli.command {
        Command::Pingpong(options) => done(pingpong::run(&options)),
        Command::PingpongPeer => done(pingpong::run_peer()),
        Command::Devices(options) => done(devices::run(&options)),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(options) => done(bench::run(&options)),
        Command::BenchFirst(options) => done(bench::first::run_one(&options)),
        Command::BenchScale(options) => done(bench::scale::run_one(&options)),
        Command::Copybw(options) => done(mapped::bandwidth(&options)),
        Command::Copylat(options) => done(mapped::latency(&options)),
        Command::Sanity(options) => mapped::sanity(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Soak(options) => done(soak::run(&options)),
        Command::ExchangePeer => done(bench::run_exchange_peer()),
        Command::SoakWorker => done(soak::run_worker()),
        Command::Soft(options) => soft::run(&options),
        Command::SoftWatch { folder } => done(soft::watch(&folder)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // If stderr itself fails, there is no place to report it.
            let _ = writeln!(io::stderr(), "gdsync: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Help is printed on stdout, as it was asked for; a mistake is one line on stderr.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = write!(io::stdout(), "{}", error.render());
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "{}", cli::one_line(&error.to_string()));
    ExitCode::from(2)
}

//! The `gdsync` command: it parses, calls the library, and prints.
//!
//! Results go to stdout, everything else to stderr. What the exit status means is in `manual.rs`, which the manual
//! pages are made of.

mod bench;
mod child;
mod cli;
mod destination;
mod devices;
mod doctor;
mod explain;
mod failure;
mod fault_plan;
mod folder;
mod gpus;
mod hca;
mod interrupt;
mod json;
mod log;
mod manual;
mod mapped;
mod pattern;
mod pingpong;
mod placement;
mod plot;
mod progress;
mod sides;
mod signals;
mod size;
mod soak;
mod soft;
mod text;
mod top;
mod trace;
mod wrapped;

use cli::{BenchOptions, Between, Cli, Command, Invocation, NetOptions, PingpongOptions, Process};
use failure::{AlreadySaid, Failure};
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let invocation = match Cli::parse_words(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(error) => return usage(&error),
    };
    match log::own_filter() {
        Ok(filter) => tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init(),
        Err(error) => {
            print_error(&error.to_string());
            text::complain(error);
            return ExitCode::from(manual::WRONG_USAGE);
        }
    }
    let is_process = matches!(invocation, Invocation::Process(_));
    let result = match invocation {
        Invocation::Bare => io::stdout().write_all(cli::BRIEF.as_bytes()).map_err(Failure::from).map(done),
        Invocation::Command(command) => run(command),
        Invocation::Process(process) => run_process(process).map(done),
    };
    match &result {
        // What it says is for the process that has started it.
        _ if is_process => {}
        Err(error) if error.is::<AlreadySaid>() => print_error("standard error has the cause"),
        Err(error) => print_error(&error.to_string()),
        Ok(_) => {}
    }
    match result {
        Ok(_) if interrupt::requested() => {
            text::complain("interrupted: what was measured until then has been printed");
            ExitCode::from(interrupt::STATUS)
        }
        Ok(code) => code,
        Err(error) if error.is::<AlreadySaid>() => ExitCode::FAILURE,
        Err(error) if error.is::<interrupt::NothingYet>() => {
            text::complain(error);
            ExitCode::from(interrupt::STATUS)
        }
        Err(error) => {
            text::complain(error);
            ExitCode::FAILURE
        }
    }
}

/// Where JSON is asked for and there is none yet, the error is printed as JSON, too.
fn print_error(message: &str) {
    if json::is_wanted(std::env::args_os())
        && let Err(error) = json::print_error(message)
    {
        text::complain(error);
    }
}

fn done(_: ()) -> ExitCode {
    ExitCode::SUCCESS
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match &command {
        // It has nothing to print that its client would not have, and ends at once.
        Command::Pingpong(options) if options.sides.hosts.server => {}
        Command::Bench(BenchOptions { between: Some(Between::Net(options)), .. })
            if options.sides.hosts.server => {}
        Command::Pingpong(_) | Command::Bench(_) | Command::Soak(_) => interrupt::catch()?,
        _ => {}
    }
    match command {
        Command::Pingpong(options) => sides::run(&options).map(done),
        Command::Devices(options) => devices::run(&options).map(done),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(BenchOptions { between: Some(Between::Net(options)), .. }) => {
            sides::run(&*options).map(done)
        }
        Command::Bench(options) => bench::run(&options).map(done),
        Command::Copybw(options) => mapped::bandwidth(&options).map(done),
        Command::Copylat(options) => mapped::latency(&options).map(done),
        Command::Sanity(options) => mapped::sanity(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Soak(options) => soak::run(&options).map(done),
        Command::Soft(options) => soft::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Completions(options) => manual::completions(&options).map(done),
        Command::Man(options) => manual::man(&options),
    }
}

fn run_process(process: Process) -> Result<(), Failure> {
    match process {
        Process::PingpongPeer => sides::run_peer::<PingpongOptions>(),
        Process::NetPeer => sides::run_peer::<NetOptions>(),
        Process::BenchFirst(options) => bench::first::run_one(&options),
        Process::BenchScale(options) => bench::scale::run_one(&options),
        Process::ExchangePeer => bench::run_exchange_peer(),
        Process::SoakWorker => soak::run_worker(),
        Process::SoftWatch { folder } => folder::watch(&folder),
    }
}

/// What clap says: on stdout where it was asked for, as help, and on stderr where it is a mistake.
fn usage(error: &clap::Error) -> ExitCode {
    // If the stream itself fails, there is no place to report it.
    let _ = error.print();
    if error.use_stderr() {
        // What stands behind an empty line is help.
        let said = error.to_string();
        let first = said.split("\n\n").next().unwrap_or_default();
        print_error(first.trim_start_matches("error: ").trim_end());
    }
    ExitCode::from(if error.use_stderr() { manual::WRONG_USAGE } else { 0 })
}

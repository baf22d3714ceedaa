//! The command `gdsync`, and the code shared by the programs of its other verbs (`gdsync-lab`, `gdsync-soft`,
//! `gdsync-top`): an interface for those alone.
//!
//! Results go to stdout, everything else to stderr. The manual pages, which `gdsync-lab` generates from this command
//! line, describe the exit status.

#![doc(hidden)]
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod child;
pub mod cli;
pub mod destination;
mod devices;
pub mod doctor;
mod explain;
pub mod failure;
#[allow(unsafe_code)]
pub mod folder;
pub mod hca;
#[allow(unsafe_code)]
pub mod interrupt;
#[allow(unsafe_code)]
pub mod json;
pub mod log;
mod net;
pub mod pattern;
mod pingpong;
pub mod plot;
pub mod progress;
mod run;
#[allow(unsafe_code)]
mod sides;
#[allow(unsafe_code)]
pub mod signals;
pub mod size;
pub mod table;
#[allow(unsafe_code)]
mod terminal;
pub mod text;
pub mod tools;
mod trace;

use clap::error::ErrorKind;
use cli::{BenchOptions, Between, Cli, Command, Invocation, NetOptions, PingpongOptions, Process};
use failure::{AlreadySaid, Failure, WRONG_USAGE};
use std::hint::black_box;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use tools::{LAB, SOFT, TOP};
use tracing_subscriber::prelude::*;

/// MiB of memory that a command must be able to have, and the parser of the command line.
const FOR_A_COMMAND: usize = 32;
const FOR_PARSING: usize = 1;

/// Checks that the process can have that memory: allocations that fail later would end it by a signal.
fn check_memory(mib: usize) -> Result<(), Failure> {
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(mib << 20).map_err(|_| {
        format!(
            "the process cannot have {mib} MiB more memory; raise the limit of its address space (ulimit -v)"
        )
    })?;
    // An allocation that nothing uses might be left out.
    black_box(&mut room);
    Ok(())
}

/// The `main` of every gdsync program: parses the command line, has `run` perform a command or `run_process` act as a
/// child process, and reports the outcome.
pub fn main(
    run: impl FnOnce(Command) -> Result<ExitCode, Failure>,
    run_process: impl FnOnce(Process) -> Result<(), Failure>,
) -> ExitCode {
    signals::survive_large_files();
    signals::save_address_space();
    terminal::fit_stdout();
    if let Err(error) = check_memory(FOR_PARSING) {
        print_error(&error.to_string());
        text::complain(error);
        return ExitCode::FAILURE;
    }
    let words: Vec<_> = std::env::args_os().collect();
    let invocation = match Cli::parse_words(words.iter()) {
        Ok(invocation) => invocation,
        Err(error) if error.kind() == ErrorKind::InvalidSubcommand => match tools::start_foreign(&words) {
            Ok(()) => return usage(&error),
            Err(error) => {
                text::complain(error);
                return ExitCode::FAILURE;
            }
        },
        Err(error) => return usage(&error),
    };
    // What simulated cards refuse is a simulation's work.
    let default =
        if matches!(invocation, Invocation::Command(Command::Simulate(_))) { "off" } else { "warn" };
    match log::own_filter(default) {
        Ok(filter) => {
            // The layer would report a failed write by `eprintln!`, which panics.
            let written = tracing_subscriber::fmt::layer()
                .with_writer(io::stderr)
                .with_timer(log::STAMP)
                .log_internal_errors(false);
            tracing_subscriber::registry().with(written).with(filter).init();
        }
        Err(error) => {
            print_error(&error.to_string());
            text::complain(error);
            return ExitCode::from(WRONG_USAGE);
        }
    }
    let is_process = matches!(invocation, Invocation::Process(_));
    let result = match invocation {
        Invocation::Bare => io::stdout().write_all(cli::BRIEF.as_bytes()).map_err(Failure::from).map(done),
        Invocation::Command(command) => check_memory(FOR_A_COMMAND).and_then(|()| run(command)),
        Invocation::Process(process) => {
            check_memory(FOR_A_COMMAND).and_then(|()| run_process(process)).map(done)
        }
    };
    match result {
        Ok(_) if interrupt::requested() => {
            text::complain("interrupted: what was measured until then has been printed");
            ExitCode::from(interrupt::STATUS)
        }
        Ok(code) => code,
        Err(error) => {
            let (said, is_said) = (error.to_string(), error.is::<AlreadySaid>());
            // A child's parent reports its error.
            if !is_process {
                print_error(if is_said { "standard error has the cause" } else { &said });
            }
            if !is_said {
                text::complain(said);
            }
            let is_interrupted = error.is::<interrupt::NothingYet>();
            if is_interrupted { ExitCode::from(interrupt::STATUS) } else { ExitCode::FAILURE }
        }
    }
}

/// Prints the error as JSON, too, if JSON was asked for and none is printed yet.
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

/// Performs the commands of `gdsync` itself, and starts the programs of the others.
///
/// # Errors
/// Why the command has failed.
pub fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Pingpong(options) => sides::run(&options).map(done),
        Command::Devices(options) => devices::run(&options).map(done),
        Command::Doctor(options) => doctor::run(&options),
        Command::Bench(BenchOptions { between: Some(Between::Net(options)), .. }) => {
            sides::run(&*options).map(done)
        }
        Command::Explain(options) => explain::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Trace(options) => trace::run(&options),
        Command::Completions(options) => {
            Ok(done(io::stdout().lock().write_all(&Cli::completions(&options))?))
        }
        Command::Accept(_)
        | Command::Bench(_)
        | Command::Lab(_)
        | Command::Soak(_)
        | Command::Simulate(_)
        | Command::Man(_) => tools::start(LAB),
        Command::Copybw(_) | Command::Copylat(_) | Command::Sanity(_) => tools::start(LAB),
        Command::Soft(_) => tools::start(SOFT),
        Command::Top(_) => tools::start(TOP),
    }
}

/// Acts as a child process of a command of `gdsync` itself, or of any of the programs.
///
/// # Errors
/// Why the process has failed, or that it belongs to another program.
pub fn run_process(process: Process) -> Result<(), Failure> {
    match process {
        Process::PingpongPeer => sides::run_peer::<PingpongOptions>(),
        Process::NetPeer => sides::run_peer::<NetOptions>(),
        Process::SoftWatch => {
            folder::watch(&std::env::args_os().nth(2).map(PathBuf::from).unwrap_or_default())
        }
        Process::RunWatch => run::watch(),
        Process::RunHost => run::run_host(),
        other => Err(format!("{other:?} is a process of another program of gdsync's").into()),
    }
}

/// Prints clap's output: requested help on stdout, mistakes on stderr.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.render().ansi().to_string();
    // If the stream itself fails, there is no place to report it.
    let _ = match error.use_stderr() {
        true => {
            let text = terminal::wrapped(&text, terminal::columns_of(io::stderr()));
            anstream::stderr().lock().write_all(text.as_bytes())
        }
        false => {
            let text = terminal::wrapped(&text, terminal::columns());
            anstream::stdout().lock().write_all(text.as_bytes())
        }
    };
    if error.use_stderr() {
        // Help follows the first empty line.
        let said = error.to_string();
        let first = said.split("\n\n").next().unwrap_or_default();
        print_error(first.trim_start_matches("error: ").trim_end());
    }
    ExitCode::from(if error.use_stderr() { WRONG_USAGE } else { 0 })
}

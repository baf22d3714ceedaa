//! The program of the verbs `accept`, `bench`, `soak`, `simulate`, `sanity`, `copybw` and `copylat`. It also draws the pictures of every
//! verb, and generates their manual pages (`man`).

#[deny(unsafe_code)]
mod accept;
mod bench;
#[deny(unsafe_code)]
mod draw;
#[deny(unsafe_code)]
mod html;
mod libmlx5;
#[deny(unsafe_code)]
mod manual;
mod mapped;
mod simulate;
mod soak;

use gdsync_cli::cli::{BenchOptions, Command, Process};
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::process::ExitCode;

fn main() -> ExitCode {
    gdsync_cli::main(run, run_process)
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Accept(options) => {
            interrupt::catch()?;
            accept::run(&options)
        }
        Command::Bench(options @ BenchOptions { between: None, .. }) => {
            interrupt::catch()?;
            bench::run(&options).map(done)
        }
        Command::Soak(options) => {
            interrupt::catch()?;
            soak::run(&options).map(done)
        }
        Command::Simulate(options) => {
            interrupt::catch()?;
            simulate::run(&options).map(done)
        }
        Command::Copybw(options) => {
            interrupt::catch()?;
            mapped::bandwidth(&options).map(done)
        }
        Command::Copylat(options) => {
            interrupt::catch()?;
            mapped::latency(&options).map(done)
        }
        Command::Sanity(options) => mapped::sanity(&options),
        Command::Man(options) => manual::man(&options),
        other => gdsync_cli::run(other),
    }
}

fn run_process(process: Process) -> Result<(), Failure> {
    match process {
        Process::AcceptStep => accept::run_step(),
        Process::BenchFirst => bench::first::run_one(),
        Process::BenchScale => bench::scale::run_one(),
        Process::ExchangePeer => bench::run_exchange_peer(),
        Process::SoakWorker => soak::run_worker(),
        Process::Draw => draw::run(),
        other => gdsync_cli::run_process(other),
    }
}

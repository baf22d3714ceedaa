//! GPUrdma's matrix-vector service: a client writes batches of vectors of 32 floats into GPU memory, the server
//! multiplies each by a matrix and writes the results back. It runs in three modes on the same traffic: the CPU
//! polls, launches, waits and posts; a stream waits and posts between kernels that are enqueued ahead; a persistent
//! kernel's blocks poll, multiply and post.
//!
//! `cargo run --release --example matvec -p gdsync -- --gpu 0`. Without `--gpu`, software streams and CPU threads replace the
//! GPU, and the times say nothing about GPUs. `--pieces N` splits each batch into N messages in each direction (30,
//! like GPUrdma's blocks; 4 without a GPU); `--rounds N` are measured for each size; `--results host` writes results
//! to host memory, from which a software card sends them sooner.
//!
//! The card is the software card: one thread transfers all messages of both sides, and limits large batches and many
//! pieces.

#[path = "matvec/client.rs"]
mod client;
mod device;
#[path = "matvec/machine.rs"]
mod machine;
#[path = "matvec/server.rs"]
mod server;
#[path = "matvec/work.rs"]
mod work;

use client::Client;
use device::Failure;
use gdsync::{Device, ProtectionDomain};
use machine::{Gpu, Machine, Threads};
use server::{Drive, Server};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use work::Cut;

/// GPUrdma's batch sizes in vectors.
const BATCHES: [usize; 6] = [480, 960, 1920, 3840, 7680, 15360];
/// Rounds before the measurement.
const WARM_UP: u64 = 3;

/// Most messages of a batch; the queues hold twice as many.
const MOST_PIECES: usize = 60;

struct Options {
    gpu: Option<u32>,
    pieces: Option<usize>,
    rounds: Option<u64>,
    results_near: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let usage = "usage: matvec [--gpu N] [--pieces N] [--rounds N] [--results gpu|host]";
        let mut options = Options { gpu: None, pieces: None, rounds: None, results_near: true };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(usage)?;
            match (&name[..], &value[..]) {
                ("--gpu", number) => options.gpu = Some(number.parse()?),
                ("--pieces", number) => options.pieces = Some(number.parse()?),
                ("--rounds", number) => options.rounds = Some(number.parse()?),
                ("--results", "gpu") => options.results_near = true,
                ("--results", "host") => options.results_near = false,
                _ => return Err(usage.into()),
            }
        }
        let divides = |pieces: usize| BATCHES.iter().all(|batch| batch.is_multiple_of(pieces));
        if !options.pieces.is_none_or(|pieces| (1..=MOST_PIECES).contains(&pieces) && divides(pieces)) {
            return Err(
                format!("--pieces must divide each of {BATCHES:?}, and be {MOST_PIECES} at most").into()
            );
        }
        if options.rounds == Some(0) {
            return Err("--rounds must be 1 at least".into());
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let run = Options::parse(std::env::args().skip(1)).and_then(|options| match options.gpu {
        Some(ordinal) => {
            run(Gpu::new(ordinal)?, options.pieces.unwrap_or(30), options.rounds.unwrap_or(100), &options)
        }
        None => run(Threads::new()?, options.pieces.unwrap_or(4), options.rounds.unwrap_or(5), &options),
    });
    device::end(run)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn run(machine: impl Machine, pieces: usize, rounds: u64, options: &Options) -> Result<(), Failure> {
    let most = machine.most_pieces();
    if pieces > most {
        return Err(
            format!("{pieces} pieces need as many blocks at once: --pieces must be {most} at most").into()
        );
    }
    let pd = ProtectionDomain::new(&Device::software()?)?;
    let largest = BATCHES.into_iter().max().unwrap_or_default();
    let client = Client::new(&pd, largest, pieces)?;
    let server = Server::new(machine, &pd, &client, largest, pieces, options.results_near)?;
    let missing = server.machine.no_service();
    let mut out = std::io::stdout();
    writeln!(
        out,
        "{}: {pieces} messages each way a batch, {rounds} rounds a size, every result verified; results in the {}'s memory; one thread is the card of both sides",
        server.machine.describe(),
        if options.results_near && options.gpu.is_some() { "GPU" } else { "host" }
    )?;
    writeln!(
        out,
        "{:>7} {:>10} {:>10} {:>10} {:>10}  {:>12} {:>12}",
        "VECTORS", "NOTHING µs", "CPU µs", "STREAM µs", "KERNEL µs", "STREAM : CPU", "KERNEL : CPU"
    )?;
    let mut next = 1;
    for vectors in BATCHES {
        let mut median_of = |drive| -> Result<f64, Failure> {
            let served = next..next + WARM_UP + rounds;
            next = served.end;
            let mut took = server.run(drive, &client, Cut { vectors, pieces }, served)?;
            Ok(median(took.split_off(WARM_UP as usize)))
        };
        let nothing = median_of(Drive::Nothing)?;
        let (cpu, stream) = (median_of(Drive::Cpu)?, median_of(Drive::Stream)?);
        let kernel = if missing.is_none() { Some(median_of(Drive::Kernel)?) } else { None };
        let cell = |value: Option<f64>, digits: usize| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        writeln!(
            out,
            "{vectors:>7} {nothing:>10.1} {cpu:>10.1} {stream:>10.1} {:>10}  {:>12.2} {:>12}",
            cell(kernel, 1),
            cpu / stream,
            cell(kernel.map(|kernel| cpu / kernel), 2)
        )?;
    }
    if let Some(reason) = missing {
        writeln!(out, "SKIPPED the kernel that stays: {reason}")?;
    }
    writeln!(
        out,
        "Times are of a whole batch, from the client's first post until its last result, in the median; NOTHING is the CPU's drive without its kernel: what the card and polling take alone. Ratios say how many times as fast as the CPU's drive."
    )?;
    Ok(())
}

//! The common part of measurements between two sides: where the sides are, how they meet and agree on each run, who
//! performs a side's work, and how results are printed.
//!
//! `gdsync pingpong` and `gdsync bench net` implement [`Measurement`]. Both sides are processes of one host, threads of
//! one process, or started separately (`hosts/`).

mod channel;
mod connection;
mod driver;
mod gpu;
mod hosts;
pub(crate) mod report;
pub(crate) mod side;
pub(crate) mod timing;

use crate::cli::{Process, SideOptions, SidesOptions};
use crate::destination::Destination;
use crate::failure::{AlreadySaid, Failure};
use crate::interrupt::{self, NothingYet};
use crate::{child, json, plot, progress, text};
use gdsync::cudarc::driver::CudaContext;
use report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use channel::{Channel, Message, RunLength, start_thread};
pub(crate) use connection::Connection;
pub(crate) use driver::{Arrival, CHUNKS, Driver, Work};
pub(crate) use side::Peer;
pub(crate) use timing::Usage;

/// A measurement, described by its options.
pub(crate) trait Measurement:
    SidesOptions + Clone + Send + Serialize + DeserializeOwned + 'static
{
    /// The command's words after `gdsync`.
    const COMMAND: &'static str;
    const PEER: Process;
    type Report: Report;

    /// Performs one side of a run, and reports a failure to the other side.
    fn play(&self, rank: u64, other: Peer, channel: Channel) -> Result<Self::Report, Failure>;
}

/// Performs both sides, or only this process's, and prints the results.
pub(crate) fn run<M: Measurement>(options: &M) -> Result<(), Failure> {
    let sides = options.sides();
    // A server has no results that its client lacks, so an interrupt ends it at once.
    if !sides.hosts.server {
        interrupt::catch()?;
    }
    if let Some(role) = hosts::role(sides)? {
        return hosts::run(options, role);
    }
    let picture = picture(sides)?;
    // With two processes, each side needs channels for one stream only.
    if sides.gpu.is_some() && sides.procs == 1 {
        child::with_channels()?;
    }
    take_liberties(sides)?;
    // Created before the other process starts, so that a missing GPU is reported once.
    let _contexts = contexts(sides)?;
    sweep(options, picture, both)
}

fn picture(sides: &SideOptions) -> Result<Option<Destination>, Failure> {
    if sides.plot.is_some() {
        plot::check()?;
    }
    sides.plot.as_deref().map(Destination::new).transpose()
}

/// Performs the runs of all sizes, prints the results and draws them.
fn sweep<M: Measurement>(
    options: &M,
    picture: Option<Destination>,
    mut measure: impl FnMut(&M) -> Result<M::Report, Failure>,
) -> Result<(), Failure> {
    let sides = options.sides();
    if let Some(duration) = sides.duration {
        progress::show(sides.json, format!("{}, {duration:?} for each size", M::COMMAND));
    }
    let sizes = sides.swept();
    let (mut reports, mut failure) = (Vec::new(), None);
    for size in interrupt::rounds(sizes.clone().unwrap_or_else(|| vec![options.size()])) {
        match measure(&options.of_size(size)) {
            Ok(report) => reports.push(report),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    // A sweep that fails or is interrupted prints the results so far.
    let text = || if sides.csv { report::csv(&reports) } else { report::table(&reports) };
    match &failure {
        _ if reports.is_empty() => {}
        Some(error) if sides.json && !error.is::<NothingYet>() => json::print_failed(&reports, error)?,
        _ => text::print(sides.json, &reports, text)?,
    }
    if let (Some(picture), false) = (picture, reports.is_empty()) {
        plot::write(&picture, &M::Report::charts(&reports, sizes.is_some()))?;
    }
    match failure {
        Some(error) if reports.is_empty() || !error.is::<NothingYet>() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the contexts of this process's GPUs, to be kept from before the first run until after the last.
fn contexts(sides: &SideOptions) -> Result<Vec<Arc<CudaContext>>, Failure> {
    let gpus = side::gpus_of_sides(sides)?;
    let own = gpus.iter().flatten().take(if sides.procs == 1 { 2 } else { 1 });
    Ok(own.map(|gpu| gdsync::cuda::context(*gpu)).collect::<Result<_, _>>()?)
}

/// Sets the requested liberties of this process's software cards.
fn take_liberties(sides: &SideOptions) -> Result<(), Failure> {
    if let Some(liberties) = &sides.liberties {
        softhca::liberties::set_liberties(Some(liberties.parse()?));
    }
    Ok(())
}

/// How long the other process may take to end after this side has failed.
const LAST: Duration = Duration::from_secs(5);

/// Performs both sides of a run on this host: in two processes, of which this one starts the other, or in two threads.
fn both<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    if options.sides().procs == 2 { with_process(options) } else { with_thread(options) }
}

/// The second process: after the options, stdin is the channel from the first side.
pub(crate) fn run_peer<M: Measurement>() -> Result<(), Failure> {
    let options: M = child::options()?;
    take_liberties(options.sides())?;
    let channel = Channel::new(io::stdin(), io::stdout())?;
    // The first side receives the error and reports it.
    options.play(1, Peer::Local, channel).map(drop).map_err(|_| AlreadySaid.into())
}

/// Waits at most [`LAST`] until the other process ends: it may be stopped.
fn wait_a_while(peer: &mut Child) {
    let deadline = Instant::now() + LAST;
    while let Ok(None) = peer.try_wait()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn with_process<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    let mut command = child::of(M::PEER)?;
    command.stdout(Stdio::piped());
    let (mut peer, input) = child::start(command, "the other process", options)?;
    let output = peer.0.stdout.take().ok_or("the other process has no output")?;
    let report = options.play(0, Peer::Local, Channel::new(output, input)?);
    // After a failure, the other side gets the time to print its error, too.
    match report {
        Ok(_) => drop(peer.0.wait()?),
        Err(_) => wait_a_while(&mut peer.0),
    }
    report
}

fn with_thread<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    let ((first_in, second_out), (second_in, first_out)) = (io::pipe()?, io::pipe()?);
    let other = options.clone();
    let play = move || other.play(1, Peer::Local, Channel::new(second_in, second_out)?).map(drop);
    let thread = start_thread("other-side", play)?;
    let report = Channel::new(first_in, first_out).and_then(|first| options.play(0, Peer::Local, first));
    match (report, thread.join()) {
        (_, Err(_)) => Err("the other side panicked".into()),
        (Ok(_), Ok(Err(error))) => Err(error),
        // The other side failed first; this side only noticed.
        (Err(error), Ok(Err(cause))) if channel::is_of_other_side(&error) => Err(cause),
        (report, Ok(_)) => report,
    }
}

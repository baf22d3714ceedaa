//! What measurements between two sides have in common: where the sides are, how they meet and agree on each run, what
//! performs a side's work, and how results are printed.
//!
//! `gdsync pingpong` and `gdsync bench net` are such a [`Measurement`]. Both sides are processes of one host or threads of
//! one process (`beside.rs`), or each is started by itself (`hosts/`).

mod beside;
mod channel;
mod connection;
mod driver;
mod findings;
mod gpu;
mod gpus;
mod host;
mod hosts;
mod limit;
pub(crate) mod report;
pub(crate) mod side;
pub(crate) mod times;
mod timing;

pub(crate) use beside::run_peer;
pub(crate) use channel::{Channel, Message};
pub(crate) use connection::Connection;
pub(crate) use driver::{Arrival, CHUNKS, Driver, Work};
pub(crate) use gpus::Other;
pub(crate) use timing::Usage;

use crate::cli::{Process, SideOptions};
use crate::destination::Destination;
use crate::failure::Failure;
use crate::interrupt::{self, NothingYet};
use crate::plot;
use crate::{child, json, progress, text};
use gdsync::cudarc::driver::CudaContext;
use report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// A measurement, as its options describe it.
pub(crate) trait Measurement: Clone + Send + Serialize + DeserializeOwned + 'static {
    /// The words of its command behind `gdsync`.
    const COMMAND: &'static str;
    /// The other process of a run.
    const PEER: Process;
    /// What one run has measured.
    type Report: Report;

    fn sides(&self) -> &SideOptions;
    fn sides_mut(&mut self) -> &mut SideOptions;
    /// Bytes of a message, where there is no sweep.
    fn size(&self) -> u64;
    /// The run for one size.
    fn of_size(&self, size: u64) -> Self;
    /// Why options that another host has sent cannot be used.
    fn refusal(&self) -> Option<String>;
    /// Plays one side of a run. The other side hears how it fails.
    fn play(&self, rank: u64, other: Other, channel: Channel) -> Result<Self::Report, Failure>;
}

/// Runs both sides, or the one that is this process's, and prints what was measured.
pub(crate) fn run<M: Measurement>(options: &M) -> Result<(), Failure> {
    let sides = options.sides();
    // A server has nothing to print that its client would not have, and ends at once.
    if !sides.hosts.server {
        interrupt::catch()?;
    }
    if let Some(part) = hosts::part(sides)? {
        return hosts::run(options, part);
    }
    let picture = picture(sides)?;
    // Each side of two processes has the GPU's channels to itself, but for one stream.
    if sides.gpu.is_some() && sides.procs == 1 {
        child::with_channels()?;
    }
    take_liberties(sides)?;
    // Before the other process starts, so that a missing GPU is reported once.
    let _contexts = contexts(sides)?;
    sweep(options, picture, beside::run)
}

/// Where a picture of what is measured is to be, if anywhere.
fn picture(sides: &SideOptions) -> Result<Option<Destination>, Failure> {
    if sides.plot.is_some() {
        plot::check()?;
    }
    sides.plot.as_deref().map(Destination::new).transpose()
}

/// Runs of all sizes; prints what was measured, and draws it.
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
    // A sweep that fails, or is interrupted, has what it has.
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

/// What this process uses of the GPUs of its sides, from before the first run to after the last.
fn contexts(sides: &SideOptions) -> Result<Vec<Arc<CudaContext>>, Failure> {
    let gpus = gpus::gpus_of_sides(sides)?;
    let own = gpus.iter().flatten().take(if sides.procs == 1 { 2 } else { 1 });
    Ok(own.map(|gpu| gdsync::cuda::context(*gpu)).collect::<Result<_, _>>()?)
}

/// Gives the software cards of this process the liberties that are asked for.
fn take_liberties(sides: &SideOptions) -> Result<(), Failure> {
    if let Some(liberties) = &sides.liberties {
        softhca::liberties::set_liberties(Some(liberties.parse()?));
    }
    Ok(())
}

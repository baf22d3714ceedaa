//! `gdsync pingpong`: two sides send a message back and forth; streams ring the cards and wait for
//! them.

mod channel;
mod connection;
mod driver;
mod findings;
mod gpu;
mod host;
mod hosts;
mod limit;
mod other;
mod report;
mod side;
mod timing;
mod watch;

use crate::cli::PingpongOptions;
use crate::destination::Destination;
use crate::failure::{AlreadySaid, Failure};
use crate::interrupt::{self, NothingYet};
use crate::{child, plot, progress, text};
use channel::Channel;
use gdsync::cudarc::driver::CudaContext;
use other::Other;
use report::Report;
use std::io::{self, BufRead, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the other process may take to end once this side has failed.
const LAST: Duration = Duration::from_secs(5);

/// Runs both sides, or the one that is this process's, and prints what was measured.
pub(crate) fn run(options: &PingpongOptions) -> Result<(), Failure> {
    if let Some(part) = hosts::part(options)? {
        return hosts::run(options, part);
    }
    let picture = picture(options)?;
    // Each side of two processes has the GPU's channels to itself, but for one stream.
    if options.gpu.is_some() && options.procs == 1 {
        child::with_channels()?;
    }
    take_liberties(options)?;
    // Before the other process starts, so that a missing GPU is reported once.
    let _contexts = contexts(options)?;
    sweep(options, picture, |one| if one.procs == 2 { with_process(one) } else { with_thread(one) })
}

/// Where a picture of what is measured is to be, if anywhere.
fn picture(options: &PingpongOptions) -> Result<Option<Destination>, Failure> {
    options.plot.as_deref().map(Destination::new).transpose()
}

/// Runs of all sizes; prints what was measured, and draws it.
fn sweep(
    options: &PingpongOptions,
    picture: Option<Destination>,
    mut measure: impl FnMut(&PingpongOptions) -> Result<Report, Failure>,
) -> Result<(), Failure> {
    if let Some(duration) = options.duration {
        progress::show(options.json, format!("pingpong, {duration:?} for each size"));
    }
    let sizes = options.swept();
    let (mut reports, mut failure) = (Vec::new(), None);
    for size in interrupt::rounds(sizes.clone().unwrap_or_else(|| vec![options.size])) {
        let one = options.of_size(size);
        match measure(&one) {
            Ok(report) => reports.push(report),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    // A sweep that fails, or is interrupted, has what it has.
    let text = || if options.csv { report::csv(&reports) } else { report::table(&reports) };
    match (&reports[..], &sizes) {
        ([], _) => {}
        ([report], None) => text::print(options.json, report, text)?,
        _ => text::print(options.json, &reports, text)?,
    }
    if let (Some(picture), false) = (picture, reports.is_empty()) {
        picture.write(&plot::svg(&report::charts(&reports, sizes.is_some()))?)?;
    }
    match failure {
        Some(error) if reports.is_empty() || !error.is::<NothingYet>() => Err(error),
        _ => Ok(()),
    }
}

/// The other process: its options come in the first line of stdin, which then is the channel to the
/// first side.
pub(crate) fn run_peer() -> Result<(), Failure> {
    let mut first = String::new();
    // One byte at a time, so that nothing of the channel's next lines is taken.
    io::BufReader::with_capacity(1, io::stdin()).read_line(&mut first)?;
    let options: PingpongOptions = serde_json::from_str(&first)?;
    take_liberties(&options)?;
    let channel = Channel::new(io::stdin(), io::stdout());
    // The first side knows how this one has failed, and says it.
    side::play(&options, 1, Other::Beside, channel).map(drop).map_err(|_| AlreadySaid.into())
}

/// The GPU of each side, where there are any.
fn gpus_of_sides(options: &PingpongOptions) -> Result<Option<[u32; 2]>, Failure> {
    let Some(list) = &options.gpu else { return Ok(None) };
    crate::gpus::of_sides(&list.resolve()?).map(Some)
}

/// What this process uses of the GPUs of its sides, from before the first run to after the last.
fn contexts(options: &PingpongOptions) -> Result<Vec<Arc<CudaContext>>, Failure> {
    let sides = gpus_of_sides(options)?;
    let own = sides.iter().flatten().take(if options.procs == 1 { 2 } else { 1 });
    Ok(own.map(|gpu| gdsync::cuda::context(*gpu)).collect::<Result<_, _>>()?)
}

/// Gives the software cards of this process the liberties that are asked for.
fn take_liberties(options: &PingpongOptions) -> Result<(), Failure> {
    if let Some(liberties) = &options.liberties {
        softhca::liberties::set_liberties(Some(liberties.parse()?));
    }
    Ok(())
}

/// Waits until the other process ends, for [`LAST`] at most: it may be stopped.
fn wait_a_while(peer: &mut Child) {
    let deadline = Instant::now() + LAST;
    while let Ok(None) = peer.try_wait()
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether an error says no more than that the other side has failed or ended.
fn is_of_other_side(error: &Failure) -> bool {
    let text = error.to_string();
    text.starts_with(channel::GONE) || text.starts_with(channel::OTHER_SIDE)
}

fn with_process(options: &PingpongOptions) -> Result<Report, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("pingpong-peer").stdin(Stdio::piped()).stdout(Stdio::piped());
    child::dies_with_this_process(&mut command);
    let mut child = command.spawn().map_err(|error| format!("cannot start the other process: {error}"))?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let mut peer = child::Guarded(child);
    let (mut input, output) = pipes.ok_or("the other process has no pipes")?;
    writeln!(input, "{}", serde_json::to_string(options)?)?;
    let report = side::play(options, 0, Other::Beside, Channel::new(output, input));
    // A side that has failed says why: the other has the time to say it, too.
    match report {
        Ok(_) => drop(peer.0.wait()?),
        Err(_) => wait_a_while(&mut peer.0),
    }
    report
}

fn with_thread(options: &PingpongOptions) -> Result<Report, Failure> {
    let ((first_in, second_out), (second_in, first_out)) = (io::pipe()?, io::pipe()?);
    let other = options.clone();
    let thread = std::thread::Builder::new()
        .name("pingpong-peer".to_owned())
        .spawn(move || side::play(&other, 1, Other::Beside, Channel::new(second_in, second_out)).map(drop))?;
    let report = side::play(options, 0, Other::Beside, Channel::new(first_in, first_out));
    match (report, thread.join()) {
        (_, Err(_)) => Err("the other side panicked".into()),
        (Ok(_), Ok(Err(error))) => Err(error),
        // The other side failed first, and this side only lost it.
        (Err(error), Ok(Err(cause))) if is_of_other_side(&error) => Err(cause),
        (report, Ok(_)) => report,
    }
}

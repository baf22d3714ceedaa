//! Both sides on this host: two processes, of which this one starts the other, or two threads.

use super::channel::{self, Channel};
use super::gpus::Other;
use super::{Measurement, take_liberties};
use crate::child;
use crate::failure::{AlreadySaid, Failure};
use std::io;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long the other process may take to end once this side has failed.
const LAST: Duration = Duration::from_secs(5);

/// Plays both sides of a run.
pub(super) fn run<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    if options.sides().procs == 2 { with_process(options) } else { with_thread(options) }
}

/// The other process: behind its options, stdin is the channel to the first side.
pub(crate) fn run_peer<M: Measurement>() -> Result<(), Failure> {
    let options: M = child::options()?;
    take_liberties(options.sides())?;
    let channel = Channel::new(io::stdin(), io::stdout());
    // The first side knows how this one has failed, and says it.
    options.play(1, Other::Beside, channel).map(drop).map_err(|_| AlreadySaid.into())
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

fn with_process<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    let mut command = child::of(M::PEER)?;
    command.stdout(Stdio::piped());
    let (mut peer, input) = child::start(command, "the other process", options)?;
    let output = peer.0.stdout.take().ok_or("the other process has no output")?;
    let report = options.play(0, Other::Beside, Channel::new(output, input));
    // A side that has failed says why: the other has the time to say it, too.
    match report {
        Ok(_) => drop(peer.0.wait()?),
        Err(_) => wait_a_while(&mut peer.0),
    }
    report
}

fn with_thread<M: Measurement>(options: &M) -> Result<M::Report, Failure> {
    let ((first_in, second_out), (second_in, first_out)) = (io::pipe()?, io::pipe()?);
    let other = options.clone();
    let thread = std::thread::Builder::new()
        .name("other-side".to_owned())
        .spawn(move || other.play(1, Other::Beside, Channel::new(second_in, second_out)).map(drop))?;
    let report = options.play(0, Other::Beside, Channel::new(first_in, first_out));
    match (report, thread.join()) {
        (_, Err(_)) => Err("the other side panicked".into()),
        (Ok(_), Ok(Err(error))) => Err(error),
        // The other side failed first, and this side only lost it.
        (Err(error), Ok(Err(cause))) if channel::is_of_other_side(&error) => Err(cause),
        (report, Ok(_)) => report,
    }
}

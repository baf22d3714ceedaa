//! `gdsync pingpong`: two sides send a message back and forth; streams ring the cards and wait for
//! them.

mod channel;
mod driver;
mod findings;
mod gpu;
mod host;
mod progress;
mod report;
mod side;
mod timing;

use crate::cli::PingpongOptions;
use crate::failure::Failure;
use crate::text;
use channel::Channel;
use report::Report;
use side::Side;
use std::io::{self, BufRead, Write};
use std::process::{Child, Command, Stdio};

/// Runs both sides, and prints what was measured.
pub(crate) fn run(options: &PingpongOptions) -> Result<(), Failure> {
    // Before the other process starts, so that a missing GPU is reported once. Kept: both sides of
    // one process use it.
    let _context = options.gpu.map(gdsync::cuda::context).transpose()?;
    let report = if options.procs == 2 { with_process(options) } else { with_thread(options) }?;
    text::print(options.json, &report, || report.table())
}

/// The other process: its options come in the first line of stdin, which then is the channel to the
/// first side.
pub(crate) fn run_peer() -> Result<(), Failure> {
    let mut first = String::new();
    // One byte at a time, so that nothing of the channel's next lines is taken.
    io::BufReader::with_capacity(1, io::stdin()).read_line(&mut first)?;
    let options: PingpongOptions = serde_json::from_str(&first)?;
    let channel = Channel::new(io::stdin(), io::stdout());
    Side::new(&options, 1, channel)?.run().map(drop)
}

/// The other process; killed if it is still there when this side is done with it.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // Killing a peer that has ended fails, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_process(options: &PingpongOptions) -> Result<Report, Failure> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program)
        .arg("pingpong-peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start the other process: {error}"))?;
    let pipes = child.stdin.take().zip(child.stdout.take());
    let mut peer = Peer(child);
    let (mut input, output) = pipes.ok_or("the other process has no pipes")?;
    writeln!(input, "{}", serde_json::to_string(options)?)?;
    let report = Side::new(options, 0, Channel::new(output, input))?.run()?;
    peer.0.wait()?;
    Ok(report)
}

fn with_thread(options: &PingpongOptions) -> Result<Report, Failure> {
    let ((first_in, second_out), (second_in, first_out)) = (io::pipe()?, io::pipe()?);
    let other = options.clone();
    let thread = std::thread::Builder::new()
        .name("pingpong-peer".to_owned())
        .spawn(move || Side::new(&other, 1, Channel::new(second_in, second_out))?.run().map(drop))?;
    let report = Side::new(options, 0, Channel::new(first_in, first_out)).and_then(Side::run);
    match (report, thread.join()) {
        (_, Err(_)) => Err("the other side panicked".into()),
        (Ok(_), Ok(Err(error))) => Err(error),
        // The other side failed first, and this side only lost it.
        (Err(error), Ok(Err(cause))) if error.to_string().starts_with(channel::GONE) => Err(cause),
        (report, Ok(_)) => report,
    }
}

//! Streams of the CPU: doorbells and waits as memory operations.

use super::super::probe::Probe;
use super::Step;
use gdsync::memop::MemOpStream;
use gdsync::persistent::{PersistentRecv, PersistentSend};
use gdsync::stream::{Cpu, DoorbellPath, StreamOptions};
use gdsync::{Batch, SoftStream, Stream, WorkRequest};
use gdsync_cli::failure::Failure;
use std::time::Duration;

const ADVICE: &str = "please send the file: the card does not see stores that a thread of this process makes";
const LONG: Duration = Duration::from_secs(10);

pub(super) const STEPS: &[Step] = &[
    Step::new("stream.software", "a send and its waits on a software stream", ADVICE, software),
    Step::new("stream.cpu", "a send and its waits by the posting thread", ADVICE, cpu),
    Step::new("stream.proxy", "doorbells that a thread forwards", ADVICE, proxy),
    Step::new("stream.many", "1,000 exchanges in batches", ADVICE, many),
    Step::new("stream.persistent", "a persistent send and receive, 20 rounds", ADVICE, persistent),
];

fn software(probe: &Probe) -> Result<(), Failure> {
    exchange(probe, &Stream::new(SoftStream::new()?)?)
}

fn cpu(probe: &Probe) -> Result<(), Failure> {
    exchange(probe, &Stream::new(Cpu::new())?)
}

fn proxy(probe: &Probe) -> Result<(), Failure> {
    let options = StreamOptions::default().doorbells(DoorbellPath::Proxy);
    exchange(probe, &Stream::with_options(SoftStream::new()?, options)?)
}

/// Sends on the stream, waits on it for both completions, and notes them.
pub(super) fn exchange<B: MemOpStream>(probe: &Probe, stream: &Stream<B>) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.receive(7)?;
    let slices = [pair.source.slice(..100)?];
    let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(1))?;
    let waits = [pair.left.send_cq().prepare_wait()?, pair.right.recv_cq().prepare_wait()?];
    let batch = waits.into_iter().fold(Batch::new().send(send), Batch::wait);
    let posted = stream.post(batch).map_err(|error| error.to_string())?;
    probe.note("operations", posted.operations as u64)?;
    if !stream.synchronize_timeout(LONG)? {
        return Err(format!(
            "the stream still waits after 10 s: {}",
            stream.explain_wait().unwrap_or_default()
        )
        .into());
    }
    pair.arrives(probe, "send", 100)
}

fn many(probe: &Probe) -> Result<(), Failure> {
    let stream = Stream::new(SoftStream::new()?)?;
    let pair = probe.pair(probe.config())?;
    let slices = [pair.source.slice(..100)?];
    let mut received = 0u64;
    for _ in 0..100 {
        let mut batch = Batch::new();
        for _ in 0..10 {
            pair.receive(received)?;
            batch = batch
                .send(pair.left.prepare(WorkRequest::send(&slices))?)
                .wait(pair.right.recv_cq().prepare_wait()?);
        }
        stream.post(batch).map_err(|error| error.to_string())?;
        if !stream.synchronize_timeout(LONG)? {
            return Err(format!("the stream still waits after {received} exchanges").into());
        }
        while let Some(found) = pair.right.recv_cq().poll()? {
            found.status?;
            received += 1;
        }
        while let Some(found) = pair.left.send_cq().poll()? {
            found.status?;
        }
    }
    probe.note("received", received)?;
    pair.check_target(100)
}

fn persistent(probe: &Probe) -> Result<(), Failure> {
    let stream = Stream::new(SoftStream::new()?)?;
    let pair = probe.pair(probe.config())?;
    let (from, to) = ([pair.source.slice(..100)?], [pair.target.slice(..100)?]);
    let mut receive = PersistentRecv::new(&pair.right, &to)?;
    let mut send = PersistentSend::send(&pair.left, &from)?;
    for round in 0..20 {
        receive.start(&stream)?;
        send.start(&stream)?;
        send.wait_on(&stream)?;
        receive.wait_on(&stream)?;
        let both = (send.complete(LONG)?, receive.complete(LONG)?);
        let (Some(sent), Some(received)) = both else {
            return Err(format!("round {round} has not completed within 10 s").into());
        };
        sent.status?;
        received.status?;
    }
    if !stream.synchronize_timeout(LONG)? {
        return Err("the stream still waits after 10 s".into());
    }
    pair.check_target(100)
}

//! Errors that a program can provoke without harm: statuses, vendor syndromes, flushed work.

use super::super::probe::{Pair, Probe, everything};
use super::Step;
use gdsync::verbs::AsyncEventKind;
use gdsync::{Access, ConnectOptions, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, WorkRequest};
use gdsync_cli::failure::Failure;
use std::time::Duration;

const ADVICE: &str = "please send the file: the software card answers this mistake otherwise than this card";

pub(super) const STEPS: &[Step] = &[
    Step::new("error.remote-key", "a write with a key that no region has", ADVICE, remote_key),
    Step::new("error.remote-bounds", "a write beyond the end of a region", ADVICE, remote_bounds),
    Step::new("error.region-write", "a write to a region that may only be read", ADVICE, region_write),
    Step::new("error.region-read", "a read of a region that may only be written", ADVICE, region_read),
    Step::new("error.region-atomic", "an atomic on a region that allows none", ADVICE, region_atomic),
    Step::new("error.queue-write", "a write to a queue pair that allows none", ADVICE, queue_write),
    Step::new("error.queue-read", "a read from a queue pair that allows none", ADVICE, queue_read),
    Step::new("error.queue-atomic", "an atomic to a queue pair that allows none", ADVICE, queue_atomic),
    Step::new(
        "error.foreign-domain",
        "a write to a region of another protection domain",
        ADVICE,
        foreign_domain,
    ),
    Step::new("error.short-receive", "a send that is longer than its receive", ADVICE, short_receive),
    Step::new("error.no-receive", "a send that finds no receive, without RNR retries", ADVICE, no_receive),
    Step::new("error.rnr-retries", "a send that finds no receive in three RNR retries", ADVICE, rnr_retries),
    Step::new("error.flush", "what is flushed behind an error, in which order", ADVICE, flush),
    Step::new("error.events", "the asynchronous event of an access error", ADVICE, events),
    Step::new("error.silent-peer", "a send to a queue pair that is gone", ADVICE, silent_peer).slow(),
    Step::new("error.reset-peer", "a send to a queue pair that was reset", ADVICE, reset_peer).slow(),
];

/// Writes 8 bytes to the place, which must fail, and notes both sides.
fn refused_write(probe: &Probe, pair: &Pair, to: RemoteMemory) -> Result<(), Failure> {
    pair.post(WorkRequest::write(&[pair.source.slice(..8)?], to).wr_id(1))?;
    refused(probe, pair, "write")
}

fn refused_read(probe: &Probe, pair: &Pair, from: RemoteMemory) -> Result<(), Failure> {
    pair.post(WorkRequest::read(&[pair.source.slice(..8)?], from).wr_id(1))?;
    refused(probe, pair, "read")
}

fn refused_atomic(probe: &Probe, pair: &Pair, word: RemoteMemory) -> Result<(), Failure> {
    pair.post(WorkRequest::fetch_add(&pair.source.slice(..8)?, word, 1).wr_id(1))?;
    refused(probe, pair, "atomic")
}

/// Notes the failed request and both queue pairs' contexts.
fn refused(probe: &Probe, pair: &Pair, what: &str) -> Result<(), Failure> {
    probe.failure(what, &pair.left.send_cq())?;
    probe.context("requester", &pair.left)?;
    probe.context("responder", &pair.right)?;
    pair.check_target(0)
}

fn remote_key(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let to = pair.target.remote().slice(..8)?;
    // The upper bits of a key number regions; none of these is made.
    refused_write(probe, &pair, RemoteMemory { rkey: 0xffff_ff00 | to.rkey & 0xff, ..to })
}

fn remote_bounds(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let whole = pair.target.remote();
    refused_write(probe, &pair, RemoteMemory { addr: whole.addr + whole.len - 4, len: 8, ..whole })
}

fn with_target(probe: &Probe, access: Access) -> Result<(Pair, MemoryRegion), Failure> {
    Ok((probe.pair(probe.config())?, MemoryRegion::allocate(&probe.pd, 4096, access)?))
}

fn region_write(probe: &Probe) -> Result<(), Failure> {
    let (pair, region) = with_target(probe, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    refused_write(probe, &pair, region.remote().slice(..8)?)
}

fn region_read(probe: &Probe) -> Result<(), Failure> {
    let (pair, region) = with_target(probe, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    refused_read(probe, &pair, region.remote().slice(..8)?)
}

fn region_atomic(probe: &Probe) -> Result<(), Failure> {
    let (pair, region) =
        with_target(probe, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    refused_atomic(probe, &pair, region.remote().slice(..8)?)
}

fn without(probe: &Probe, right: Access) -> Result<Pair, Failure> {
    probe.pair(probe.config().access(everything().difference(right)))
}

fn queue_write(probe: &Probe) -> Result<(), Failure> {
    let pair = without(probe, Access::REMOTE_WRITE)?;
    refused_write(probe, &pair, pair.target.remote().slice(..8)?)
}

fn queue_read(probe: &Probe) -> Result<(), Failure> {
    let pair = without(probe, Access::REMOTE_READ)?;
    refused_read(probe, &pair, pair.target.remote().slice(..8)?)
}

fn queue_atomic(probe: &Probe) -> Result<(), Failure> {
    let pair = without(probe, Access::REMOTE_ATOMIC)?;
    refused_atomic(probe, &pair, pair.target.remote().slice(..8)?)
}

fn foreign_domain(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let other = ProtectionDomain::new(&probe.device)?;
    let region = MemoryRegion::allocate(&other, 4096, everything())?;
    refused_write(probe, &pair, region.remote().slice(..8)?)
}

fn short_receive(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    pair.right.post_recv(&[pair.target.slice(..8)?], 7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..16)?]).wr_id(1))?;
    probe.failure("send", &pair.left.send_cq())?;
    probe.failure("receive", &pair.right.recv_cq())
}

fn no_receive(probe: &Probe) -> Result<(), Failure> {
    without_receive(probe, 0)
}

fn rnr_retries(probe: &Probe) -> Result<(), Failure> {
    without_receive(probe, 3)
}

fn without_receive(probe: &Probe, retries: u8) -> Result<(), Failure> {
    let pair = probe.pair_with(probe.config(), ConnectOptions::default().rnr_retry(retries))?;
    pair.post(WorkRequest::send(&[pair.source.slice(..16)?]).wr_id(1))?;
    refused(probe, &pair, "send")
}

fn flush(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    for number in 0..3 {
        pair.left.post_recv(&[pair.target.slice(..8)?], 70 + number)?;
    }
    let to = RemoteMemory { rkey: 0xffff_ff00, ..pair.target.remote().slice(..8)? };
    let slices = [pair.source.slice(..8)?];
    for number in 0..4 {
        let request = WorkRequest::write(&slices, to).wr_id(number);
        pair.post(if number % 2 == 1 { request.unsignaled() } else { request })?;
    }
    (0..4).try_for_each(|_| probe.failure("sent", &pair.left.send_cq()))?;
    (0..3).try_for_each(|_| probe.failure("received", &pair.left.recv_cq()))
}

fn events(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    let to = RemoteMemory { rkey: 0xffff_ff00, ..pair.target.remote().slice(..8)? };
    refused_write(probe, &pair, to)?;
    // Cards report the responder's error by an event, or only in the answer.
    let wanted = [AsyncEventKind::QueuePairAccessError, AsyncEventKind::QueuePairRequestError];
    let event = probe.device.next_event(Duration::from_secs(2))?;
    probe.note("event", event.as_ref().map_or("none".to_owned(), |event| event.kind.to_string()))?;
    match event {
        Some(event) if !wanted.contains(&event.kind) => Err(format!("another event came: {event}").into()),
        _ => Ok(()),
    }
}

/// 67 ms, and two retries.
fn patience() -> ConnectOptions {
    ConnectOptions::default().timeout(14).retry_count(2)
}

fn silent_peer(probe: &Probe) -> Result<(), Failure> {
    let left = QueuePair::new(&probe.pd, probe.config())?;
    let gone = QueuePair::new(&probe.pd, probe.config())?;
    let endpoint = gone.endpoint()?;
    drop(gone);
    left.connect(&endpoint, patience())?;
    left.post_send(WorkRequest::send(&[]).wr_id(1))?;
    probe.failure("send", &left.send_cq())
}

fn reset_peer(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair_with(probe.config(), patience())?;
    pair.right.abort()?;
    pair.post(WorkRequest::send(&[pair.source.slice(..8)?]).wr_id(1))?;
    probe.failure("send", &pair.left.send_cq())
}

//! Waits that the card performs: for words and for completion queues.

use super::super::probe::{Probe, cannot_run};
use super::Step;
use gdsync::advanced::Collector;
use gdsync::advanced::MasterConfig;
use gdsync::memop::Condition;
use gdsync::verbs::CardWaits;
use gdsync::{Batch, SoftStream, Stream, Trigger, WorkRequest};
use gdsync_cli::failure::Failure;
use std::time::Duration;

const ADVICE: &str = "use doorbells instead of triggers, which work on any card, and send the file";
const LONG: Duration = Duration::from_secs(10);

pub(super) const STEPS: &[Step] = &[
    Step::new("card.wait-data", "a send that the card holds back until a word changes", ADVICE, wait_on_data),
    Step::new("card.trigger", "three sends that one store of a stream releases", ADVICE, trigger),
    Step::new("card.master", "sends that another queue releases (WAIT and SEND_EN)", ADVICE, master),
    Step::new("card.collector", "one word for the completions of four queues", ADVICE, collector),
];

fn needs(probe: &Probe, has: fn(&CardWaits) -> bool, what: &str) -> Result<(), Failure> {
    if has(&probe.device.card_waits()?) {
        return Ok(());
    }
    Err(cannot_run(
        format!("the card cannot wait for {what}"),
        "a ConnectX-7 or newer, with current firmware",
    ))
}

fn wait_on_data(probe: &Probe) -> Result<(), Failure> {
    needs(probe, |waits| waits.data, "words of memory")?;
    let trigger = Trigger::new(&probe.pd)?;
    released(probe, &trigger, |pair, trigger| {
        let send = pair.left.prepare(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
        std::thread::sleep(Duration::from_millis(20));
        probe.note("early", pair.right.recv_cq().poll()?.is_some())?;
        trigger.release(u64::MAX >> 1)?;
        Ok(send)
    })
}

fn released(
    probe: &Probe,
    trigger: &Trigger,
    release: impl FnOnce(&super::super::probe::Pair, &Trigger) -> Result<gdsync::PreparedSend, Failure>,
) -> Result<(), Failure> {
    let pair = probe.pair(probe.config().trigger(trigger))?;
    pair.receive(7)?;
    let _send = release(&pair, trigger)?;
    probe.success("receive", &pair.right.recv_cq())?;
    pair.check_target(100)
}

/// Three sends on three pairs, released by a software stream.
fn by_stream(probe: &Probe, trigger: &Trigger) -> Result<(), Failure> {
    let stream = Stream::new(SoftStream::new()?)?;
    let mut pairs = Vec::new();
    let mut batch = Batch::new();
    for number in 0..3 {
        let pair = probe.pair(probe.config().trigger(trigger))?;
        pair.receive(7)?;
        batch = batch.send(pair.left.prepare(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(number))?);
        pairs.push(pair);
    }
    let posted = stream.post(batch).map_err(|error| error.to_string())?;
    probe.note("operations", posted.operations as u64)?;
    for pair in &pairs {
        probe.success("send", &pair.left.send_cq())?;
        probe.success("receive", &pair.right.recv_cq())?;
        pair.check_target(100)?;
    }
    Ok(())
}

fn trigger(probe: &Probe) -> Result<(), Failure> {
    needs(probe, |waits| waits.data, "words of memory")?;
    by_stream(probe, &Trigger::new(&probe.pd)?)
}

fn master(probe: &Probe) -> Result<(), Failure> {
    needs(probe, |waits| waits.data && waits.queues, "words and completion queues")?;
    by_stream(probe, &Trigger::new(&probe.pd)?.with_master(MasterConfig::default().sends(64))?)
}

fn collector(probe: &Probe) -> Result<(), Failure> {
    needs(probe, |waits| waits.queues, "completion queues")?;
    let collector = Collector::new(&probe.device)?;
    let pairs = [probe.pair(probe.config())?, probe.pair(probe.config())?];
    let mut waits = Vec::new();
    for pair in &pairs {
        pair.receive(7)?;
        pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
        waits.extend([pair.left.send_cq().prepare_wait()?, pair.right.recv_cq().prepare_wait()?]);
    }
    let number = collector.collect(waits)?;
    let stream = Stream::new(SoftStream::new()?)?;
    let batch = Batch::new().wait_value64(collector.word(), Condition::Geq, number);
    stream.post(batch).map_err(|error| error.to_string())?;
    if !stream.synchronize_timeout(LONG)? {
        return Err("the word has not been written within 10 s".into());
    }
    probe.note("number", number)?;
    for pair in &pairs {
        probe.success("send", &pair.left.send_cq())?;
        probe.success("receive", &pair.right.recv_cq())?;
    }
    Ok(())
}

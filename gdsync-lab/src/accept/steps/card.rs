//! Waits that the card performs: for words, completion queues and times.

use super::super::probe::{Probe, cannot_run};
use super::Step;
use gdsync::advanced::{Collector, MasterConfig, QueueApi};
use gdsync::memop::Condition;
use gdsync::verbs::CardWaits;
use gdsync::{Batch, QueuePair, SoftStream, Stream, Trigger, WorkRequest};
use gdsync_cli::failure::Failure;
use std::time::Duration;

const ADVICE: &str = "use doorbells instead of triggers, which work on any card, and send the file";
const TIME_ADVICE: &str = "please send the file: gdsync waits for no times, and tells other programs (`gdsync doctor`) that this card can";
const LONG: Duration = Duration::from_secs(10);

pub(super) const STEPS: &[Step] = &[
    Step::new("card.wait-data", "a send that the card holds back until a word changes", ADVICE, wait_on_data),
    Step::new(
        "card.wait-time",
        "requests that the card holds back until its clock is past a time",
        TIME_ADVICE,
        wait_on_time,
    ),
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

fn wait_on_time(probe: &Probe) -> Result<(), Failure> {
    needs(probe, |waits| waits.time, "times of its clock")?;
    for (name, queues) in [("verbs", QueueApi::Verbs), ("devx", QueueApi::Devx)] {
        let queue_pair = QueuePair::new(&probe.pd, probe.config().queues(queues))?;
        queue_pair.connect(&queue_pair.endpoint()?, Default::default())?;
        let time = |what: &str| time_of_next(probe, &format!("{name}.{what}"), &queue_pair);
        queue_pair.post_send(WorkRequest::nop().wr_id(1))?;
        let first = time("first")?;
        std::thread::sleep(Duration::from_millis(20));
        queue_pair.post_send(WorkRequest::nop().wr_id(2))?;
        let second = time("second")?;
        // In the clock's own unit, which the card does not say.
        let rest = second.wrapping_sub(first);
        probe.note(format!("{name}.runs"), (rest as i64) > 0)?;
        let due = second.wrapping_add(rest.saturating_mul(4));
        queue_pair.post_send_after(due, WorkRequest::nop().wr_id(3))?;
        // By the card's clock: the CPU may have slept.
        probe.note(format!("{name}.early"), (time("due")?.wrapping_sub(due) as i64) < 0)?;
        queue_pair.post_send_after(first, WorkRequest::nop().wr_id(4))?;
        time("past")?;
        queue_pair.post_send_after(second.wrapping_add(1 << 62), WorkRequest::nop().wr_id(5))?;
        std::thread::sleep(Duration::from_millis(20));
        probe.note(format!("{name}.held"), queue_pair.send_cq().poll()?.is_none())?;
        queue_pair.abort()?;
        probe.failure(&format!("{name}.flushed"), &queue_pair.send_cq())?;
    }
    Ok(())
}

/// Returns the time in the next entry, by the card's clock.
fn time_of_next(probe: &Probe, what: &str, queue_pair: &QueuePair) -> Result<u64, Failure> {
    let queue = queue_pair.send_cq();
    let index = probe.success(what, &queue)?.index.ok_or("the completion has no entry")?;
    let entry = queue.entry_bytes(index);
    Ok(entry[48..56].iter().fold(0, |time, byte| time << 8 | u64::from(*byte)))
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

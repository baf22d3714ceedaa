//! Recoveries, events, teams.

use super::super::probe::{Pair, Probe, within_patience};
use super::Step;
use gdsync::qp::{ArmFor, CompletionChannel};
use gdsync::{CompletionQueue, CompletionQueueConfig, RemoteMemory, WorkRequest};
use gdsync_cli::failure::Failure;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{Team, TeamConfig};
use std::time::Duration;

const ADVICE: &str = "please send the file: gdsync's recovery does not work on this card";
const EVENTS: &str = "poll instead of sleeping: the card's interrupts do not reach this process";
const LONG: Duration = Duration::from_secs(10);

pub(super) const STEPS: &[Step] = &[
    Step::new("life.recover", "a failed pair that is reset and connected again", ADVICE, recover),
    Step::new("life.abort", "a pair that is aborted with work outstanding", ADVICE, abort),
    Step::new("life.channel", "the event of an armed completion queue", EVENTS, channel),
    Step::new("life.solicited", "an event for solicited entries only", EVENTS, solicited),
    Step::new("life.team", "a team of two ranks: notified writes and a barrier", ADVICE, team),
];

fn exchange(probe: &Probe, pair: &Pair, what: &str) -> Result<(), Failure> {
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[pair.source.slice(..100)?]).wr_id(1))?;
    probe.success(&format!("{what}.send"), &pair.left.send_cq())?;
    probe.success(&format!("{what}.receive"), &pair.right.recv_cq())?;
    pair.check_target(100)
}

fn recover(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    exchange(probe, &pair, "before")?;
    let to = RemoteMemory { rkey: 0xffff_ff00, ..pair.target.remote().slice(..8)? };
    pair.post(WorkRequest::write(&[pair.source.slice(..8)?], to).wr_id(2))?;
    probe.failure("mistake", &pair.left.send_cq())?;
    pair.right.abort()?;
    pair.left.reset()?;
    pair.right.reset()?;
    pair.connect(Default::default())?;
    exchange(probe, &pair, "after")
}

fn abort(probe: &Probe) -> Result<(), Failure> {
    let pair = probe.pair(probe.config())?;
    (0..4).try_for_each(|number| pair.receive(number))?;
    pair.right.abort()?;
    (0..4).try_for_each(|_| probe.failure("receive", &pair.right.recv_cq()))?;
    probe.context("aborted", &pair.right)
}

fn with_channel(probe: &Probe) -> Result<(Pair, CompletionChannel, CompletionQueue), Failure> {
    let channel = CompletionChannel::new(&probe.device)?;
    let queue = CompletionQueue::new(&probe.device, CompletionQueueConfig::from(64).channel(&channel))?;
    let pair = probe.pair(probe.config().completion_queues(&queue, &queue))?;
    Ok((pair, channel, queue))
}

fn channel(probe: &Probe) -> Result<(), Failure> {
    let (pair, channel, queue) = with_channel(probe)?;
    queue.arm(ArmFor::Next)?;
    pair.post(WorkRequest::nop().wr_id(1))?;
    probe.note("event", channel.next_event(LONG)?.is_some())?;
    probe.success("nop", &queue)?;
    pair.post(WorkRequest::nop().wr_id(2))?;
    probe.note("event_unarmed", channel.next_event(Duration::from_millis(200))?.is_some())
}

fn solicited(probe: &Probe) -> Result<(), Failure> {
    let (pair, channel, queue) = with_channel(probe)?;
    queue.arm(ArmFor::Solicited)?;
    pair.receive(7)?;
    pair.post(WorkRequest::send(&[]).wr_id(1))?;
    // The order of entries in a queue of both sides is the card's.
    (0..2).try_for_each(|_| within_patience("an entry", || Ok(queue.poll()?)).map(drop))?;
    probe.note("event_of_others", channel.next_event(Duration::from_millis(200))?.is_some())?;
    pair.receive(8)?;
    pair.post(WorkRequest::send(&[]).solicited().wr_id(2))?;
    probe.note("event_of_solicited", channel.next_event(LONG)?.is_some())
}

fn team(probe: &Probe) -> Result<(), Failure> {
    let rank = |bootstrap: Bootstrap| -> Result<u32, Failure> {
        let team = Team::new(&probe.pd, bootstrap, TeamConfig::default())?;
        let segment = team.allocate(4096, 1)?;
        let (queue, other) = (team.queue(0)?, 1 - team.rank());
        segment.write(0, &[team.rank() as u8 + 1; 64])?;
        queue.write_notify(&segment.slice(..64)?, other, &segment, 64, 0, 1)?;
        segment.notify_waitsome(0..1, LONG)?.ok_or("no notification within 10 s")?;
        let mut bytes = [0; 64];
        segment.read(64, &mut bytes)?;
        queue.flush(LONG)?;
        team.barrier()?;
        Ok(bytes.iter().map(|byte| u32::from(*byte)).sum())
    };
    let sums = std::thread::scope(|scope| -> Result<Vec<u32>, Failure> {
        let ranks: Vec<_> =
            Bootstrap::threads(2, LONG)?.into_iter().map(|one| scope.spawn(move || rank(one))).collect();
        ranks.into_iter().map(|one| one.join().map_err(|_| "a rank panicked")?).collect()
    })?;
    sums.into_iter().try_for_each(|sum| probe.note("sum", sum))
}

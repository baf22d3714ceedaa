//! Notified writes between ranks as threads and as processes.

use crate::ranks::{
    LONG, Prepare, Ranks, SendAll, config, domain, each_on_a_thread, ended_well, joined, on_threads,
};
use gdsync::memop::{Condition, Word32};
use gdsync::memory::OutOfBounds;
use gdsync::queue::{OrderError, RequestError};
use gdsync::verbs::{Provider, Transport};
use gdsync::{Batch, ConnectOptions, PinnedMemory, QueueError, QueuePairConfig};
use gdsync::{SoftStream, Stream};
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{NotifyError, Operation, Queue, Segment, Team, TeamConfig, WaitNotification};
use gdsync_test_support::pair;
use gdsync_test_support::process::role;
use std::time::{Duration, Instant};

/// All ranks, for one thread.
pub(crate) fn in_one_hand(
    size: u32,
    config: &TeamConfig,
    len: usize,
    notifications: u32,
) -> Vec<(Team, Segment)> {
    let pd = domain();
    each_on_a_thread(size, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config.clone()).unwrap();
        let segment = team.allocate(len, notifications).unwrap();
        (team, segment)
    })
}

/// What refused a request to rank 1.
fn refusal<T: std::fmt::Debug>(posted: Result<T, NotifyError>) -> QueueError {
    match posted.unwrap_err() {
        NotifyError::Post { rank: 1, source } => source,
        other => panic!("{other}"),
    }
}

fn wait(segment: &Segment, ids: std::ops::Range<u32>) -> u32 {
    segment.notify_waitsome(ids, LONG).unwrap().unwrap_or_else(|| panic!("no notification came"))
}

/// Lengths and bytes that both sides compute: some messages are empty, some a few words, some span packets.
fn message(from: u32, to: u32, round: usize, most: usize) -> Vec<u8> {
    let seed = (from as usize * 31 + to as usize * 17 + round * 101) * 2_654_435_761 % 1_000_003;
    let len = match seed % 5 {
        0 => 0,
        1 => 4 + seed % 8,
        _ => seed % (most + 1),
    };
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

const SLOT: usize = 20_000;
const GUARD: u8 = 0xa5;

/// Every rank writes to every rank, itself included, in many rounds. Notification `r` announces a message of rank `r`:
/// its value is the length plus one. Notification `size + r` confirms that rank `r` has read its message.
fn all_to_all(team: &Team, rounds: usize) {
    let (own, size) = (team.rank(), team.size());
    // Both have a slot for each rank.
    let outbox = team.allocate(SLOT * size as usize, 0).unwrap();
    let inbox = team.allocate(SLOT * size as usize, 2 * size).unwrap();
    let queue = team.queue(0).unwrap();
    for round in 0..rounds {
        inbox.write(0, &vec![GUARD; inbox.len()]).unwrap();
        team.barrier().unwrap();
        for to in (0..size).map(|i| (i + own) % size) {
            let bytes = message(own, to, round, SLOT);
            let at = to as usize * SLOT;
            outbox.write(at, &bytes).unwrap();
            let from = outbox.slice(at..at + bytes.len()).unwrap();
            let offset = u64::from(own) * SLOT as u64;
            queue.write_notify(&from, to, &inbox, offset, own, bytes.len() as u32 + 1).unwrap();
        }
        for _ in 0..size {
            let from = wait(&inbox, 0..size);
            let len = inbox.notify_reset(from).unwrap() as usize - 1;
            assert_eq!(inbox.notify_reset(from).unwrap(), 0, "it was taken");
            let mut slot = vec![0; SLOT];
            inbox.read(from as usize * SLOT, &mut slot).unwrap();
            let mut expected = message(from, own, round, SLOT);
            assert_eq!(len, expected.len());
            expected.resize(SLOT, GUARD);
            assert!(slot == expected, "round {round}, from {from} to {own}");
            queue.notify(from, &inbox, size + own, round as u32 + 1).unwrap();
        }
        for to in 0..size {
            wait(&inbox, size + to..size + to + 1);
            assert_eq!(inbox.notify_reset(size + to).unwrap(), round as u32 + 1);
        }
    }
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn every_rank_writes_to_every_rank_between_threads() {
    on_threads(4, &config(), |team| all_to_all(team, 30));
}

#[test]
fn every_rank_writes_to_every_rank_between_processes() {
    if role().is_some() {
        return all_to_all(&joined(config()), 20);
    }
    Ranks::new(module_path!(), "every_rank_writes_to_every_rank_between_processes", 4).run("all-to-all");
}

#[test]
fn nothing_is_lost_or_early_where_packets_are() {
    const TEST: &str = "nothing_is_lost_or_early_where_packets_are";
    if role().is_some() {
        // 4.096 µs * 2^15 * 8 is a second, within which cards answer even on a busy machine.
        let team = joined(config().connect(ConnectOptions::default().timeout(15)));
        all_to_all(&team, 6);
        // The card counts its faults while the team keeps it; under the system's libraries it counts elsewhere.
        let own = pair::device().provider() == Provider::Software;
        assert!(!own || softhca::fault_counts().iter().any(|rule| rule.injected > 0), "no fault was met");
        return;
    }
    let ranks = Ranks::new(module_path!(), TEST, 4);
    let faults = "seed=9; drop p=0.01; duplicate p=0.03; delay=200us p=0.03; hold=3 p=0.03";
    let spawn = |rank| ranks.command(rank, "faults").env("SOFTHCA_FAULTS", faults).spawn().unwrap();
    let children: Vec<_> = (0..4).map(spawn).collect();
    children.into_iter().for_each(|child| _ = ended_well(child));
}

/// A ring on streams, prepared by the CPU: each rank sends to the next and checks messages from the previous one.
fn ring(team: &Team, rounds: u32) {
    let (own, size) = (team.rank(), team.size());
    let (next, before) = ((own + 1) % size, (own + size - 1) % size);
    // Two halves in turn, so that no message overwrites the one before it; the reader confirms each half.
    let segment = team.allocate(4 * 1024, 4).unwrap();
    let queue = team.queue(1).unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let failures = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    for round in 0..rounds {
        let half = (round % 2) as usize;
        let (out, into) = (half * 1024, 2048 + half * 1024);
        let (arrived, taken) = (half as u32, 2 + half as u32);
        if round >= 2 {
            // The next rank has read this half.
            stream.post(Batch::new().wait_notification(&segment.notification(taken).unwrap())).unwrap();
        }
        let fill = segment.clone();
        let content = move |rank: u32| vec![(rank * 50 + round) as u8; 1024];
        stream.launch(move || fill.write(out, &content(own)).unwrap()).unwrap();
        let from = segment.slice(out..out + 1024).unwrap();
        let written = queue
            .sends(Operation::WriteNotify {
                from: &from,
                rank: next,
                to: &segment,
                offset: into as u64,
                id: arrived,
                value: round + 1,
            })
            .unwrap();
        let word = segment.notification(arrived).unwrap();
        stream.post(Batch::new().send_all(written).wait_notification(&word)).unwrap();
        let (check, failed) = (segment.clone(), failures.clone());
        stream
            .launch(move || {
                let mut bytes = [0; 1024];
                check.read(into, &mut bytes).unwrap();
                if bytes[..] != content(before) {
                    failed.store(round + 1);
                }
            })
            .unwrap();
        let answer = queue
            .sends(Operation::Notify { rank: before, to: &segment, id: taken, value: round + 1 })
            .unwrap();
        stream.post(Batch::new().send_all(answer)).unwrap();
    }
    // The stream waits until everything has arrived.
    let waits = [next, before].into_iter().flat_map(|rank| queue.prepare_waits(rank).unwrap());
    stream.post(waits.fold(Batch::new(), Batch::wait)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "the stream is stuck: {:?}", stream.oldest_wait());
    assert_eq!(failures.load(), 0, "the first wrong round");
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn streams_write_and_wait_between_threads() {
    on_threads(4, &config().queues(2), |team| ring(team, 200));
}

#[test]
fn streams_write_and_wait_between_processes() {
    if role().is_some() {
        return ring(&joined(config().queues(2)), 100);
    }
    Ranks::new(module_path!(), "streams_write_and_wait_between_processes", 4).run("ring");
}

#[test]
fn a_dead_rank_is_named_and_the_others_go_on() {
    if let Some(role) = role() {
        let team = joined(config().queues(2));
        let segment = team.allocate(64, 3).unwrap();
        let queue = team.queue(0).unwrap();
        queue.ping(2, LONG).unwrap();
        team.barrier().unwrap();
        if role == "die" {
            std::process::abort();
        }
        let dead = |result: Result<(), NotifyError>| match result {
            Err(NotifyError::PeerDead { rank: 2, cause: _ }) => {}
            other => panic!("{other:?}"),
        };
        // Nothing arrives from it, and the wait ends although nothing is sent to it.
        dead(segment.notify_waitsome(2..3, LONG).map(drop));
        let slice = segment.slice(..8).unwrap();
        dead(queue.write_notify(&slice, 2, &segment, 0, 0, 1));
        dead(queue.flush(LONG));
        // Later calls fail alike; another queue detects it anew.
        dead(queue.flush_rank(2, LONG));
        dead(queue.write(&slice, 2, &segment, 0));
        dead(queue.sends(Operation::Notify { rank: 2, to: &segment, id: 0, value: 1 }).map(drop));
        dead(team.queue(1).unwrap().ping(2, LONG));
        // The other two ranks write to each other as before.
        let other = 1 - team.rank();
        segment.expect_from(other..other + 1, other).unwrap();
        queue.write_notify(&slice, other, &segment, 8, team.rank(), 9).unwrap();
        wait(&segment, other..other + 1);
        queue.flush_rank(other, LONG).unwrap();
        dead(team.barrier());
        assert_eq!(team.shrink().unwrap(), [2]);
        return team.barrier().unwrap();
    }
    let ranks = Ranks::new(module_path!(), "a_dead_rank_is_named_and_the_others_go_on", 3);
    let children = [ranks.spawn(0, ""), ranks.spawn(1, ""), ranks.spawn(2, "die")];
    for (rank, child) in children.into_iter().enumerate() {
        if rank == 2 {
            assert!(!child.wait_with_output().unwrap().status.success());
        } else {
            ended_well(child);
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_limit() {
    let teams = in_one_hand(2, &config(), 100, 3);
    let (team, segment) = &teams[0];
    let queue = team.queue(0).unwrap();
    let slice = segment.slice(..10).unwrap();
    let text = |result: Result<(), NotifyError>| result.unwrap_err().to_string();
    assert_eq!(
        text(queue.write(&slice, 2, segment, 0)),
        "rank 2 is none of the 2 of the team, which count from 0"
    );
    for offset in [91, 100, u64::MAX] {
        let error = queue.write_notify(&slice, 1, segment, offset, 0, 1).unwrap_err();
        assert!(matches!(error, NotifyError::OutOfSegment { rank: 1, len: 10, size: 100, .. }), "{error}");
    }
    queue.write(&slice, 1, segment, 90).unwrap();
    assert!(text(queue.notify(1, segment, 3, 1)).starts_with("notification 3 is none of the 3"));
    assert!(text(queue.write_notify(&slice, 1, segment, 0, 3, 1)).starts_with("notification 3"));
    assert!(text(queue.notify(1, segment, 0, 0)).contains("value 0"));
    assert!(
        text(queue.sends(Operation::Notify { rank: 1, to: segment, id: 0, value: 0 }).map(drop))
            .contains("value 0")
    );
    assert!(text(segment.notification(3).map(drop)).contains("at rank 0"));
    assert!(segment.notify_reset(3).is_err() && segment.notify_waitsome(0..4, Duration::ZERO).is_err());
    assert_eq!(segment.notify_waitsome(2..2, LONG).unwrap(), None, "of no notifications none comes");
    assert!(text(team.queue(1).map(drop)).contains("queue 1 is none of the 1"));
    assert!(matches!(
        segment.slice(50..101),
        Err(NotifyError::LocalQueue(QueueError::Bounds(OutOfBounds { end: 101, .. })))
    ));
    assert!(segment.read(95, &mut [0; 6]).is_err() && segment.write(usize::MAX, &[1]).is_err());
    assert!(segment.remote(2).is_err() && queue.queue_pair(2).is_err() && queue.flush_rank(2, LONG).is_err());
    let foreign = gdsync::MemoryRegion::allocate(&domain(), 10, gdsync::Access::empty()).unwrap();
    let error = refusal(queue.write(&foreign.slice(..).unwrap(), 1, segment, 0));
    assert!(matches!(error, QueueError::Request(RequestError::WrongDomain { .. })), "{error}");
    // None of that was sent.
    queue.flush(LONG).unwrap();
    assert_eq!(teams[1].1.notify_waitsome(0..3, Duration::ZERO).unwrap(), None);
}

#[test]
fn ranks_that_disagree_or_fail_are_told_on_all() {
    let ranks = Bootstrap::threads(2, LONG).unwrap();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..)
            .zip(ranks)
            .map(|(queues, one)| {
                scope.spawn(move || Team::new(&domain(), one, config().queues(queues)).map(drop))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err().to_string()).collect()
    });
    assert_eq!(outcomes[0], "rank 1 has 2 queues, this one 1: give all ranks the same");
    assert_eq!(outcomes[1], "rank 0 has 1 queues, this one 2: give all ranks the same");
    on_threads(2, &config(), |team| {
        // More memory than there is.
        let len = if team.rank() == 1 { usize::MAX / 4 } else { 8 };
        match (team.rank(), team.allocate(len, 1)) {
            (0, Err(NotifyError::FailedOnRank { rank: 1, .. })) | (1, Err(NotifyError::Device(_))) => {}
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
        // The next allocation succeeds.
        let segment = team.allocate(8 * (team.rank() as usize + 1), 1).unwrap();
        let lens: Vec<_> = (0..2).map(|rank| segment.remote(rank).unwrap().data.len).collect();
        assert_eq!(lens, [8, 16], "each rank's own length");
        team.queue(0).unwrap().notify(1 - team.rank(), &segment, 0, 5).unwrap();
        wait(&segment, 0..1);
        team.queue(0).unwrap().flush(LONG).unwrap();
    });
    let unreliable = config().queue_pair(QueuePairConfig::default().transport(Transport::Uc));
    let alone = Bootstrap::threads(1, LONG).unwrap().remove(0);
    assert!(matches!(Team::new(&domain(), alone, unreliable), Err(NotifyError::Transport)));
}

#[test]
fn a_short_queue_takes_any_number_of_writes() {
    let config = config().queue_pair(QueuePairConfig::default().send_depth(4));
    const WRITES: usize = 500;
    let teams = in_one_hand(2, &config, 8 * WRITES, 1);
    let (queue, segment) = (teams[0].0.queue(0).unwrap(), &teams[0].1);
    for at in (0..WRITES).map(|i| 8 * i) {
        segment.write(at, &(at as u64).to_ne_bytes()).unwrap();
        queue
            .write_notify(&segment.slice(at..at + 8).unwrap(), 1, segment, at as u64, 0, at as u32 + 1)
            .unwrap();
    }
    queue.flush(LONG).unwrap();
    assert_eq!(teams[1].1.notify_reset(0).unwrap() as usize, 8 * (WRITES - 1) + 1);
    let (mut sent, mut arrived) = ([0; 8 * WRITES], [0; 8 * WRITES]);
    segment.read(0, &mut sent).unwrap();
    teams[1].1.read(0, &mut arrived).unwrap();
    assert!(arrived == sent && sent[8..16] == 8u64.to_ne_bytes());
}

#[test]
fn a_full_queue_that_a_stream_holds_is_a_time_out() {
    fill(&config().timeout(SHORT), |queue| queue);
}

#[test]
fn a_handle_of_a_queue_may_have_a_time_out_of_its_own() {
    fill(&config().timeout(Duration::MAX), |queue| queue.with_timeout(SHORT));
}

const SHORT: Duration = Duration::from_millis(50);

/// Prepares until there is no room.
fn fill(config: &TeamConfig, with: impl FnOnce(Queue) -> Queue) {
    let config = config.clone().queue_pair(QueuePairConfig::default().send_depth(4));
    let teams = in_one_hand(2, &config, 8, 1);
    let (queue, segment) = (with(teams[0].0.queue(0).unwrap()), &teams[0].1);
    let mut held = Vec::new();
    let error = loop {
        match queue.sends(Operation::Notify { rank: 1, to: segment, id: 0, value: 1 }) {
            Ok(send) => held.push(send),
            Err(error) => break error,
        }
        assert!(held.len() < 1000);
    };
    assert!(matches!(error, NotifyError::TimedOut { .. }), "{error}");
}

fn stream_of(queue: &Queue, segment: &Segment) -> (Stream<SoftStream>, Word32) {
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let send = queue.sends(Operation::Notify { rank: 1, to: segment, id: 0, value: 77 }).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1).send_all(send)).unwrap();
    (stream, gate)
}

#[test]
fn a_flush_includes_what_streams_were_given_and_not_what_was_dropped() {
    let teams = in_one_hand(2, &config(), 8, 1);
    let (queue, segment) = (teams[0].0.queue(0).unwrap(), &teams[0].1);
    let (stream, gate) = stream_of(&queue, segment);
    // The stream has not reached the send.
    let started = Instant::now();
    let error = refusal(queue.flush(Duration::from_millis(100)));
    assert!(matches!(error, QueueError::Order(OrderError::OtherStream { .. })), "{error}");
    assert!(started.elapsed() >= Duration::from_millis(100));
    assert_eq!(teams[1].1.notify_reset(0).unwrap(), 0);
    gate.store(1);
    queue.flush(LONG).unwrap();
    assert_eq!(teams[1].1.notify_reset(0).unwrap(), 77);
    assert!(stream.synchronize_timeout(LONG).unwrap());
    // Sends that were dropped: one in the middle, then the newest.
    let [first, second] =
        [1, 2].map(|value| queue.sends(Operation::Notify { rank: 1, to: segment, id: 0, value }).unwrap());
    let error = refusal(queue.flush(Duration::from_millis(20)));
    assert!(matches!(error, QueueError::Order(OrderError::OutOfOrder { .. })), "{error}");
    drop(first);
    stream.post(Batch::new().send_all(second)).unwrap();
    queue.flush(LONG).unwrap();
    assert_eq!(teams[1].1.notify_reset(0).unwrap(), 2);
    drop(
        queue
            .sends(Operation::WriteNotify {
                from: &segment.slice(..).unwrap(),
                rank: 1,
                to: segment,
                offset: 0,
                id: 0,
                value: 3,
            })
            .unwrap(),
    );
    queue.flush(LONG).unwrap();
    assert_eq!(teams[1].1.notify_reset(0).unwrap(), 0);
}

#[test]
fn any_value_wakes_a_stream() {
    let teams = in_one_hand(1, &config(), 0, 1);
    let (queue, segment) = (teams[0].0.queue(0).unwrap(), &teams[0].1);
    assert!(segment.is_empty());
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    for value in [1, 2, i32::MAX as u32, 1 << 31, (1 << 31) + 1, u32::MAX] {
        stream.post(Batch::new().wait_notification(&segment.notification(0).unwrap())).unwrap();
        queue.notify(0, segment, 0, value).unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "{value:#x} does not wake it");
        assert_eq!(segment.notify_reset(0).unwrap(), 0, "the stream has taken it");
        queue.flush(LONG).unwrap();
    }
}

#[test]
fn a_closed_team_has_ended_unless_others_use_it() {
    let mut ranks = in_one_hand(2, &config(), 8, 1);
    for (team, segment) in ranks.drain(..) {
        let queue = team.queue(0).unwrap();
        assert!(!team.close(Duration::ZERO), "a queue holds the connections");
        drop((queue, segment));
    }
    for (team, segment) in in_one_hand(2, &config(), 8, 1) {
        drop(segment);
        assert!(team.close(LONG));
    }
}

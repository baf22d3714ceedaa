//! Teams whose queues reach their ranks by DC: other tests again, and the differences.

use crate::ranks::{CONNECTIONS, LONG, Prepare, SendAll, config, domain, each_on_a_thread};
use gdsync::advanced::DevxError;
use gdsync::queue::{FailureCause, Syndrome};
use gdsync::stream::Cpu;
use gdsync::{Batch, ConnectOptions, Error, QueuePair, QueuePairConfig, SoftStream, Stream};
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{ConnectionKind, NotifyError, Operation, Segment, Team, TeamConfig};
use gdsync_test_support::process::alone;
use std::process::{Command, Stdio};

fn dynamic() -> TeamConfig {
    config().connections(ConnectionKind::Dynamic)
}

/// All ranks of a team, for one thread, with one queue pair for all ranks.
fn in_one_hand(size: u32, notifications: u32) -> Vec<(Team, Segment)> {
    let pd = domain();
    each_on_a_thread(size, |bootstrap| {
        let team = Team::new(&pd, bootstrap, dynamic().initiators(1)).unwrap();
        let segment = team.allocate(64, notifications).unwrap();
        (team, segment)
    })
}

/// Three ranks: the first, whose requests tests observe; the second, which refuses writes, its memory gone; and the third.
fn with_a_rank_that_refuses(notifications: u32) -> ((Team, Segment), Team, (Team, Segment)) {
    let teams: [_; 3] = in_one_hand(3, notifications).try_into().unwrap();
    let [first, (second, memory), third] = teams;
    drop(memory);
    (first, second, third)
}

/// Runs other tests again over DC.
fn again(tests: &[&str]) {
    if std::env::var_os(CONNECTIONS).is_some() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    // Kernels drive no DC queue pairs.
    command.args(tests).args(["--skip", "kernel", "--skip", "gpu_", "--skip", "dynamic::", "--nocapture"]);
    // Their stderr may contain a line SKIPPED.
    let output = command.env(CONNECTIONS, "dynamic").stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains(" 0 passed"), "{tests:?}: {}\n{said}", output.status);
}

#[test]
fn writes_of_the_cpu_and_of_streams_pass_their_tests() {
    again(&["notify::", "notify_model::"]);
}

#[test]
fn registered_memory_reads_and_atomics_pass_their_tests() {
    again(&["registered::", "fetches::"]);
}

#[test]
fn deaths_and_what_follows_pass_their_tests() {
    again(&["death::", "survivors::"]);
}

fn is_refused(result: Result<(), NotifyError>) {
    let Err(NotifyError::Failed { rank: 1, cause: FailureCause::Work(error) }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(error.kind(), Some(Syndrome::RemoteAccess));
}

#[test]
fn what_one_rank_refuses_costs_the_others_nothing() {
    let (first, second, third) = with_a_rank_that_refuses(40);
    let (queue, segment) = (first.0.queue(0).unwrap(), &first.1);
    let from = segment.slice(..8).unwrap();
    for id in 0..40 {
        queue.write_notify(&from, 2, segment, 8, id, id + 1).unwrap();
        if id == 20 {
            queue.write(&from, 1, segment, 0).unwrap();
        }
    }
    queue.flush_rank(2, LONG).unwrap();
    (0..40).for_each(|id| assert_eq!(third.1.notify_reset(id).unwrap(), id + 1, "once, and not twice"));
    // The rank stays failed, and the others are served.
    for _ in 0..2 {
        is_refused(queue.flush_rank(1, LONG));
        is_refused(queue.notify(1, segment, 0, 1));
        queue.notify(2, segment, 0, 9).unwrap();
        queue.notify(0, segment, 0, 9).unwrap();
        queue.flush_rank(2, LONG).unwrap();
        queue.flush_rank(0, LONG).unwrap();
        assert_eq!((third.1.notify_reset(0).unwrap(), segment.notify_reset(0).unwrap()), (9, 9));
    }
    is_refused(queue.flush(LONG));
    drop(second);
}

#[test]
fn what_one_rank_refuses_has_no_atomic_of_the_others_executed_twice() {
    let (first, second, third) = with_a_rank_that_refuses(1);
    let (queue, segment) = (first.0.queue(0).unwrap(), &first.1);
    let [old, read, refused] = [0, 8, 16].map(|at| segment.slice(at..at + 8).unwrap());
    for count in 0..40 {
        queue.fetch_add(&old, 2, segment, 0, 1).unwrap();
        if count == 20 {
            queue.fetch_add(&refused, 1, segment, 0, 1).unwrap();
        }
        if count % 7 == 0 {
            queue.read(&read, 2, segment, 0).unwrap();
        }
    }
    queue.notify(2, segment, 0, 1).unwrap();
    queue.flush_rank(2, LONG).unwrap();
    // After all of them, as a request after a read or an atomic is.
    assert_eq!(third.1.notify_reset(0).unwrap(), 1);
    let number = |segment: &Segment, at| {
        let mut bytes = [0; 8];
        segment.read(at, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    };
    assert_eq!(number(&third.1, 0), 40, "each once");
    assert_eq!((number(segment, 0), number(segment, 8), number(segment, 16)), (39, 36, 0));
    is_refused(queue.flush_rank(1, LONG));
    is_refused(queue.fetch_add(&refused, 1, segment, 0, 1));
    is_refused(queue.read(&refused, 1, segment, 0));
    drop(second);
}

#[test]
fn a_write_is_done_again_whether_its_rank_looks_or_not() {
    let (first, second, third) = with_a_rank_that_refuses(1);
    let queue = first.0.queue(0).unwrap();
    queue.write(&first.1.slice(..8).unwrap(), 1, &first.1, 0).unwrap();
    queue.notify(2, &first.1, 0, 7).unwrap();
    // The team's thread recovers the queue without the caller.
    assert_eq!(third.1.notify_waitsome(0..1, LONG).unwrap(), Some(0));
    drop(second);
}

#[test]
fn what_a_stream_was_given_behind_a_refused_write_is_done_again() {
    let (first, second, third) = with_a_rank_that_refuses(2);
    let (queue, segment) = (first.0.queue(0).unwrap(), &first.1);
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    segment.write(0, b"content.").unwrap();
    let from = segment.slice(..8).unwrap();
    let refused = queue.sends(Operation::Write { from: &from, rank: 1, to: segment, offset: 0 }).unwrap();
    let behind = queue
        .sends(Operation::WriteNotify { from: &from, rank: 2, to: segment, offset: 8, id: 0, value: 7 })
        .unwrap();
    // Never posted, so never executed.
    let held = queue.sends(Operation::Notify { rank: 2, to: segment, id: 1, value: 5 }).unwrap();
    stream.post(Batch::new().send_all(refused).send_all(behind)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
    assert_eq!(third.1.notify_waitsome(0..1, LONG).unwrap(), Some(0));
    let mut bytes = [0; 8];
    third.1.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"content.");
    let error = stream.post(Batch::new().send_all(held)).unwrap_err();
    assert!(error.to_string().contains("was prepared before reset()"), "{error}");
    drop(error);
    queue.flush_rank(2, LONG).unwrap();
    assert_eq!((third.1.notify_reset(0).unwrap(), third.1.notify_reset(1).unwrap()), (7, 0));
    drop(second);
}

#[test]
fn what_a_stream_has_waited_for_behind_a_refused_write_is_told_as_lost() {
    let (first, second, third) = with_a_rank_that_refuses(2);
    let (queue, segment) = (first.0.queue(0).unwrap(), &first.1);
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    let from = segment.slice(..8).unwrap();
    let refused = queue.sends(Operation::Write { from: &from, rank: 1, to: segment, offset: 0 }).unwrap();
    let behind = queue.sends(Operation::Notify { rank: 2, to: segment, id: 0, value: 7 }).unwrap();
    let waits = queue.prepare_waits(2).unwrap();
    stream
        .post(waits.into_iter().fold(Batch::new().send_all(refused).send_all(behind), Batch::wait))
        .unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
    is_refused(queue.flush_rank(2, LONG));
    assert_eq!(third.1.notify_reset(0).unwrap(), 0);
    // It is reported once, and later requests arrive.
    queue.flush_rank(2, LONG).unwrap();
    let send = queue.sends(Operation::Notify { rank: 2, to: segment, id: 1, value: 8 }).unwrap();
    stream.post(Batch::new().send_all(send)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap());
    queue.flush_rank(2, LONG).unwrap();
    assert_eq!(third.1.notify_reset(1).unwrap(), 8);
    drop(second);
}

#[test]
fn no_queue_pair_goes_to_one_rank() {
    let teams = in_one_hand(2, 1);
    let queue = teams[0].0.queue(0).unwrap();
    assert!(matches!(queue.queue_pair(1), Err(NotifyError::NoQueuePair { rank: 1 })));
    assert!(matches!(queue.queue_pair(2), Err(NotifyError::Rank { rank: 2, size: 2 })));
    let error = queue.attach_device(&Cpu::new(), &Default::default()).unwrap_err();
    assert!(error.to_string().contains("make the team with ConnectionKind::Each"), "{error}");
    queue.ping(1, LONG).unwrap();
}

#[test]
fn ranks_with_other_connections_are_told_on_all() {
    let kinds = [ConnectionKind::Each, ConnectionKind::Dynamic];
    let pd = domain();
    let outcomes: Vec<_> = each_on_a_thread(2, |bootstrap| {
        let config = config().connections(kinds[bootstrap.rank() as usize]);
        Team::new(&pd, bootstrap, config).unwrap_err().to_string()
    });
    assert_eq!(
        outcomes,
        [
            "rank 1 has dynamic connections, this one separate: give all ranks the same",
            "rank 0 has separate connections, this one dynamic: give all ranks the same"
        ]
    );
    let by_commands = QueuePairConfig::default().queues(gdsync::advanced::QueueApi::Devx);
    let alone = Bootstrap::threads(1, LONG).unwrap().remove(0);
    let error = Team::new(&pd, alone, dynamic().queue_pair(by_commands)).unwrap_err();
    assert!(
        matches!(error, NotifyError::Device(Error::Devx(DevxError::NoDc | DevxError::Unavailable { .. }))),
        "{error}"
    );
}

/// Counts the objects that each rank of a team of that size creates on its card, by their consecutive numbers.
fn objects_of_a_rank(size: u32, kind: ConnectionKind) -> u32 {
    let pd = domain();
    let number = || QueuePair::new(&pd, QueuePairConfig::default()).unwrap().number();
    let before = number();
    // The objects of one queue pair.
    let own = number() - before;
    let before = number();
    let teams = each_on_a_thread(size, |bootstrap| {
        Team::new(&pd, bootstrap, config().connections(kind).initiators(4)).unwrap()
    });
    let made = number() - before - own;
    drop(teams);
    made.div_ceil(size)
}

#[test]
fn what_a_rank_needs_does_not_grow_with_the_team() {
    // Other tests create objects on their card, too.
    if !alone(module_path!(), "what_a_rank_needs_does_not_grow_with_the_team", &[]) {
        return;
    }
    let [small, large] = [6, 24].map(|size| objects_of_a_rank(size, ConnectionKind::Dynamic));
    assert_eq!(small, large);
    let [small, large] = [3, 6].map(|size| objects_of_a_rank(size, ConnectionKind::Each));
    assert!(large > small, "{small} {large}: a team with a connection for each rank grows");
}

#[test]
fn sixty_four_ranks_write_to_each_other() {
    const SIZE: u32 = 64;
    let pd = domain();
    // 4.096 µs * 2^20 * 8, because so many threads may starve one on a busy machine.
    let patient = ConnectOptions::default().timeout(20);
    each_on_a_thread(SIZE, |bootstrap| {
        let team = Team::new(&pd, bootstrap, dynamic().connect(patient)).unwrap();
        let (own, segment) = (team.rank(), team.allocate(8 * SIZE as usize, SIZE).unwrap());
        let queue = team.queue(0).unwrap();
        segment.write(8 * own as usize, &u64::from(own * 7 + 1).to_ne_bytes()).unwrap();
        let from = segment.slice(8 * own as usize..8 * own as usize + 8).unwrap();
        // To itself, to neighbours, and far away: each queue pair changes targets.
        let steps = [0, 1, 2, 17, 32];
        for to in steps.map(|step| (own + step) % SIZE) {
            queue.write_notify(&from, to, &segment, 8 * u64::from(own), own, to + 1).unwrap();
        }
        for from in steps.map(|step| (own + SIZE - step) % SIZE) {
            assert_eq!(segment.notify_waitsome(from..from + 1, LONG).unwrap(), Some(from));
            assert_eq!(segment.notify_reset(from).unwrap(), own + 1);
            let mut bytes = [0; 8];
            segment.read(8 * from as usize, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), u64::from(from * 7 + 1));
        }
        queue.flush(LONG).unwrap();
        team.barrier().unwrap();
    });
}

//! Ranks that are killed while others wait for them on the CPU, on streams and in kernels.

use crate::notify_device::{Kernels, LIBRARY, SOURCE, kernels};
use crate::notify_rig::Rank;
use crate::ranks::{LONG, Prepare, Ranks, SendAll, config, joined};
use gdsync::memop::{Condition, Word32};
use gdsync::stream::{Cpu, DoorbellPath};
use gdsync::{Batch, PinnedMemory, QueuePairConfig, SoftStream, Stream};
use gdsync_notify::{NotifyError, Operation, Segment, Team, WaitNotification};
use gdsync_test_support::device::{self, Ended};
use gdsync_test_support::process::role;
use gdsync_test_support::skipped;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The transport's time-out, 4.096 µs * 2^16 * 8, is 2.1 s on hardware and 0.1 s at the speed of the ranks' cards. The
/// rest is for a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_secs(15);
pub(crate) const VICTIM: u32 = 2;

pub(crate) fn team(queues: u32) -> Team {
    joined(config().queues(queues))
}

/// Ends this process by SIGKILL.
pub(crate) fn be_killed() -> ! {
    // SAFETY: a signal to this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("the signal ends the process")
}

fn is_dead<T: std::fmt::Debug>(result: Result<T, NotifyError>) {
    match result {
        Err(error @ NotifyError::PeerDead { rank: VICTIM, .. }) => {
            let text = error.to_string();
            assert!(text.starts_with("rank 2 is dead, as "), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// Starts three ranks, one of which kills itself in its role, and asserts that the others pass.
fn three(test: &'static str) {
    three_in(test, &[]);
}

/// As [`three`], with environment variables.
fn three_in(test: &'static str, environment: &[(&str, &str)]) {
    let ranks = Ranks::new(module_path!(), test, 3);
    let spawn = |rank, role| {
        let mut command = ranks.command(rank, role);
        command.envs(environment.iter().copied()).spawn().unwrap()
    };
    let children = [spawn(0, "live"), spawn(1, "live"), spawn(VICTIM, "die")];
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    let [.., dead] = &outputs;
    assert_eq!(dead.status.signal(), Some(libc::SIGKILL), "{dead:?}");
    // A rank that fails is dead for the other: print the output of both.
    let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let said = outputs.each_ref().map(text).join("\n");
    assert!(outputs[..VICTIM as usize].iter().all(|output| output.status.success()), "{said}");
}

/// Waits on the CPU in one way, and measures the time.
fn ended_by_death(wait: impl FnOnce() -> Result<(), NotifyError>) {
    let started = Instant::now();
    is_dead(wait());
    assert!(started.elapsed() < WITHIN, "{:?}", started.elapsed());
}

#[test]
fn a_wait_for_a_notification_ends_with_the_death_of_its_sender() {
    let Some(role) = role() else {
        return three("a_wait_for_a_notification_ends_with_the_death_of_its_sender");
    };
    let team = team(1);
    let segment = team.allocate(64, 6).unwrap();
    segment.expect_from(5..6, VICTIM).unwrap();
    segment.expect_from(2..5, 1 - team.rank().min(1)).unwrap();
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    // This rank sends nothing to the dead one.
    ended_by_death(|| segment.notify_waitsome(5..6, LONG).map(drop));
    // Any rank may set those; and the dead one ends a range.
    ended_by_death(|| segment.notify_waitsome(0..1, LONG).map(drop));
    ended_by_death(|| segment.notify_waitsome(4..6, LONG).map(drop));
    is_dead(segment.check_notification(5));
    assert_eq!(segment.notify_reset(5).unwrap(), 0, "a release is no notification");
    // A living rank's notification is waited for.
    assert_eq!(segment.notify_waitsome(3..4, Duration::from_millis(50)).unwrap(), None);
    segment.check_notification(3).unwrap();
    let queue = team.queue(0).unwrap();
    queue.notify(1 - team.rank(), &segment, 2, 7).unwrap();
    queue.flush_rank(1 - team.rank(), LONG).unwrap();
    assert_eq!(segment.notify_waitsome(2..3, LONG).unwrap(), Some(2));
    assert_eq!(segment.notify_waitsome(2..6, LONG).unwrap(), Some(2), "what is there comes first");
    assert_eq!(segment.notify_reset(2).unwrap(), 7);
    // All other calls that would wait for the dead rank.
    is_dead(queue.flush(LONG));
    is_dead(queue.flush_rank(VICTIM, LONG));
    is_dead(queue.ping(VICTIM, LONG));
    is_dead(queue.notify(VICTIM, &segment, 0, 1));
    is_dead(team.allocate(8, 1));
    is_dead(team.barrier());
    assert_eq!(team.dead().iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [VICTIM]);
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    assert_eq!((team.members(), team.dead().len()), (vec![0, 1], 0));
    // No notification of the range can arrive; then one may.
    is_dead(segment.notify_waitsome(5..6, LONG));
    assert_eq!(segment.notify_waitsome(0..6, Duration::from_millis(50)).unwrap(), None);
    team.barrier().unwrap();
    // The value of released words is an ordinary one where nothing is released.
    queue.notify(1 - team.rank(), &segment, 4, 0x9d5d_ead1).unwrap();
    assert_eq!(segment.notify_waitsome(4..6, LONG).unwrap(), Some(4));
    assert_eq!(segment.notify_reset(4).unwrap(), 0x9d5d_ead1);
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn reads_atomics_and_registered_memory_end_with_a_death_as_writes_do() {
    let Some(role) = role() else {
        return three("reads_atomics_and_registered_memory_end_with_a_death_as_writes_do");
    };
    let team = team(2);
    let memory = PinnedMemory::allocate(4096).unwrap();
    let segment = team.register(&memory, 3).unwrap();
    segment.expect_from(VICTIM..VICTIM + 1, VICTIM).unwrap();
    let (queue, other) = (team.queue(0).unwrap(), 1 - team.rank().min(1));
    let [old, read] = [16..24, 1024..2048].map(|range| segment.slice(range).unwrap());
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    // The stream waits for a word without data in front of it.
    let seen = Word32::new(&memory, 4092).unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    post_wait(&stream, &segment, VICTIM, &seen);
    // To the dead one until that is known, and to the other rank.
    for _ in 0..20 {
        _ = queue.fetch_add(&old, VICTIM, &segment, 8, 1);
        _ = queue.read(&read, VICTIM, &segment, 2048);
        queue.fetch_add(&old, other, &segment, 0, 1).unwrap();
    }
    ended_by_death(|| queue.flush_rank(VICTIM, LONG));
    ended_by_death(|| segment.notify_waitsome(VICTIM..VICTIM + 1, LONG).map(drop));
    is_dead(queue.fetch_add(&old, VICTIM, &segment, 8, 1));
    is_dead(queue.compare_swap(&old, VICTIM, &segment, 8, 0, 1));
    is_dead(queue.read(&read, VICTIM, &segment, 2048));
    // A stream gets no new work, for any rank.
    is_dead(queue.sends(Operation::Read { into: &read, rank: other, of: &segment, offset: 2048 }).map(drop));
    is_dead(
        queue
            .sends(Operation::FetchAdd { into: &old, rank: other, of: &segment, offset: 0, add: 1 })
            .map(drop),
    );
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{:?}", stream.oldest_wait());
    assert_eq!(seen.load(), 1 << 31 | VICTIM);
    queue.flush_rank(other, LONG).unwrap();
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
    // The survivors' atomics were executed, each once.
    assert_eq!(memory.words64()[0].load(Ordering::Acquire), 20);
    segment.write(2048, &[team.rank() as u8 + 1; 1024]).unwrap();
    team.barrier().unwrap();
    queue.read(&read, other, &segment, 2048).unwrap();
    queue.flush(LONG).unwrap();
    let mut found = [0; 1024];
    segment.read(1024, &mut found).unwrap();
    assert_eq!(found, [other as u8 + 1; 1024]);
    team.barrier().unwrap();
}

#[test]
fn a_rank_that_waits_for_one_that_has_given_up_is_not_left_waiting() {
    let Some(role) = role() else {
        return three("a_rank_that_waits_for_one_that_has_given_up_is_not_left_waiting");
    };
    let team = team(1);
    let segment = team.allocate(64, 2).unwrap();
    segment.expect_from(0..2, 1 - team.rank().min(1)).unwrap();
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    if team.rank() == 0 {
        // Rank 1 lives but sends nothing any more.
        ended_by_death(|| segment.notify_waitsome(0..1, LONG).map(drop));
        is_dead(segment.check_notification(1));
    } else {
        ended_by_death(|| team.barrier());
    }
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    team.queue(0).unwrap().notify(1 - team.rank(), &segment, 0, 5).unwrap();
    assert_eq!(segment.notify_waitsome(0..2, LONG).unwrap(), Some(0));
    team.queue(0).unwrap().flush(LONG).unwrap();
    team.barrier().unwrap();
}

/// Posts a wait for the victim's notification, and writes after it.
fn post_wait(stream: &Stream<SoftStream>, segment: &Segment, id: u32, after: &Word32) {
    let status = segment.notification_status(id).unwrap();
    let seen = after.clone();
    stream.post(Batch::new().wait_notification(&segment.notification(id).unwrap())).unwrap();
    stream.launch(move || seen.store(status.load())).unwrap();
}

#[test]
fn a_death_is_found_over_tcp() {
    let Some(role) = role() else {
        // A busy machine may suspend a rank for longer than fast time-outs, which cards of one host notice.
        let environment = [
            ("SOFTHCA_LISTEN", "127.83.214.1:32000"),
            ("SOFTHCA_KEY", "the key of this very test"),
            ("SOFTHCA_CLOCK", "1"),
        ];
        return three_in("a_death_is_found_over_tcp", &environment);
    };
    let team = team(1);
    let segment = team.allocate(64, 1).unwrap();
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    ended_by_death(|| segment.notify_waitsome(0..1, LONG).map(drop));
    is_dead(team.barrier());
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    team.barrier().unwrap();
}

#[test]
fn a_stream_is_released_with_a_status_that_is_read_behind_the_wait() {
    let Some(role) = role() else {
        return three("a_stream_is_released_with_a_status_that_is_read_behind_the_wait");
    };
    let team = team(2);
    let segment = team.allocate(64, 6).unwrap();
    segment.expect_from(5..6, VICTIM).unwrap();
    let memory = PinnedMemory::allocate(12).unwrap();
    let [named, any, branch] = [0, 4, 8].map(|at| Word32::new(&memory, at).unwrap());
    let [first, second, third] = [(); 3].map(|()| Stream::new(SoftStream::new().unwrap()).unwrap());
    // Here the rank's notification arrives before its death.
    team.queue(1).unwrap().notify(team.rank(), &segment, 1, 7).unwrap();
    assert_eq!(segment.notify_waitsome(1..2, LONG).unwrap(), Some(1));
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    // Several waits for one notification: each is released.
    (0..3).for_each(|_| post_wait(&first, &segment, 5, &named));
    let oldest = first.oldest_wait().unwrap();
    assert!(oldest.contains("notification 5 of rank 2"), "{oldest}");
    post_wait(&second, &segment, 0, &any);
    let oldest = second.oldest_wait().unwrap();
    assert!(oldest.contains(&format!("notification 0 of rank {}'s segment", team.rank())), "{oldest}");
    // A later descriptor waits for the status itself.
    let status = segment.notification_status(5).unwrap();
    third
        .post(Batch::new().wait_value32(&status, Condition::And, 1 << 31).write_value32(&branch, 1))
        .unwrap();
    let started = Instant::now();
    for stream in [&first, &second, &third] {
        assert!(stream.synchronize_timeout(WITHIN).unwrap(), "{:?}", stream.oldest_wait());
    }
    assert!(started.elapsed() < WITHIN);
    assert_eq!((named.load(), any.load(), branch.load()), (1 << 31 | VICTIM, 1 << 31 | VICTIM, 1));
    is_dead(segment.check_notification(5));
    is_dead(segment.check_notification(0));
    // Notifications from before the death are there.
    assert_eq!(segment.notify_waitsome(0..2, LONG).unwrap(), Some(1));
    assert_eq!(segment.notify_reset(1).unwrap(), 7);
    // A later wait is released, too; once the rank is dropped, its status shows that.
    post_wait(&first, &segment, 5, &named);
    assert!(first.synchronize_timeout(WITHIN).unwrap());
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    post_wait(&first, &segment, 5, &named);
    assert!(first.synchronize_timeout(WITHIN).unwrap());
    assert_eq!(named.load(), 3 << 30 | VICTIM);
    // Waits for any rank wait again.
    post_wait(&second, &segment, 0, &any);
    assert!(!second.synchronize_timeout(Duration::from_millis(100)).unwrap());
    team.barrier().unwrap();
    team.queue(0).unwrap().notify(1 - team.rank(), &segment, 0, 9).unwrap();
    assert!(second.synchronize_timeout(WITHIN).unwrap());
    assert_eq!(any.load(), 0);
    segment.check_notification(0).unwrap();
    team.queue(0).unwrap().flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn a_ring_of_streams_ends_with_the_death_of_a_rank() {
    let Some(role) = role() else {
        return three("a_ring_of_streams_ends_with_the_death_of_a_rank");
    };
    // A short queue: ranks soon wait for room.
    let team = joined(config().queue_pair(QueuePairConfig::default().send_depth(8)));
    // A rank may be three rounds behind its predecessor.
    let segment = team.allocate(64, 4).unwrap();
    let (queue, next) = (team.queue(0).unwrap(), (team.rank() + 1) % 3);
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    team.barrier().unwrap();
    let mut last = Instant::now();
    let error = (0..)
        .find_map(|round| {
            if role == "die" && round == 100 {
                assert!(stream.synchronize_timeout(LONG).unwrap());
                be_killed();
            }
            last = Instant::now();
            let send = match queue.sends(Operation::Notify {
                rank: next,
                to: &segment,
                id: round % 4,
                value: round + 1,
            }) {
                Ok(send) => send,
                Err(error) => return Some(error),
            };
            let arrival = segment.notification(round % 4).unwrap();
            match stream.post_timeout(Batch::new().send_all(send).wait_notification(&arrival), LONG) {
                Ok(_) => None,
                // Prepared before its queue pair was aborted.
                Err(error) if !team.dead().is_empty() => {
                    Some(queue.flush(LONG).expect_err(&error.to_string()))
                }
                Err(error) => panic!("{error}"),
            }
        })
        .unwrap();
    is_dead::<()>(Err(error));
    assert!(last.elapsed() < WITHIN, "{:?}", last.elapsed());
    assert!(stream.synchronize_timeout(WITHIN).unwrap(), "{:?}", stream.oldest_wait());
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    queue.flush(LONG).unwrap();
    team.barrier().unwrap();
}

#[test]
fn a_kernel_that_waits_for_a_dead_rank_is_told() {
    const TEST: &str = "a_kernel_that_waits_for_a_dead_rank_is_told";
    let Some(role) = role() else {
        return match device::build(SOURCE) {
            Ok(built) => three_in(TEST, &[(LIBRARY, built.path().to_str().unwrap())]),
            Err(why) => skipped(TEST, &why),
        };
    };
    let Some(kernels): Option<&Kernels> = kernels(TEST) else { return };
    let team = team(1);
    let segments = (team.allocate(64, 1).unwrap(), team.allocate(64, 6).unwrap());
    segments.1.expect_from(5..6, VICTIM).unwrap();
    let rank = Rank::new(&team, segments, &Cpu::new(), (DoorbellPath::Direct, None));
    let job = rank.job(0, 0, LONG);
    team.barrier().unwrap();
    if role == "die" {
        be_killed();
    }
    let started = Instant::now();
    assert_eq!(kernels.waitsome(&job, 5..6, LONG), (Ended::PeerDead, VICTIM));
    assert_eq!(kernels.waitsome(&job, 0..1, LONG), (Ended::PeerDead, VICTIM));
    assert!(started.elapsed() < WITHIN, "{:?}", started.elapsed());
    assert_eq!(kernels.reset(&job, 5), (Ended::Ok, 0));
    // Requests to the dead rank fail; a detached queue reports the cause.
    assert_eq!(kernels.quiet(&job, 0, LONG), Ended::Ok);
    is_dead(rank.queue.detach_device(LONG).unwrap().flush(LONG));
    assert_eq!(team.shrink().unwrap(), [VICTIM]);
    assert_eq!(kernels.waitsome(&job, 5..6, LONG), (Ended::PeerDead, VICTIM));
    assert_eq!(kernels.waitsome(&job, 0..6, Duration::from_millis(20)).0, Ended::TimedOut);
    // A queue attached now excludes the dropped rank.
    let queue = team.queue(0).unwrap().attach_device(&Cpu::new(), &Default::default()).unwrap();
    let mut later = job;
    later.queue = queue.data();
    assert_eq!(kernels.quiet(&later, VICTIM, LONG), Ended::Invalid);
    assert_eq!(kernels.quiet_all(&later, LONG), Ended::Ok);
    is_dead(queue.queue_pair(VICTIM).map(drop));
    queue.detach_device(LONG).unwrap();
    team.barrier().unwrap();
}

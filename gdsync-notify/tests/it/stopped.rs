//! Streams that stop at waits that a death would end.

use crate::collectives::plans;
use crate::notify::in_one_hand;
use crate::ranks::{LONG, config, domain, each_on_a_thread};
use gdsync::memop::StreamError;
use gdsync::stream::{PostFailure, StreamOptions};
use gdsync::{Batch, SoftStream, Stream};
use gdsync_notify::collective::{Collective, CollectiveError};
use gdsync_notify::{ConnectionKind, NotifyError, Operation, Segment, Team, WaitNotification};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn stopping() -> Stream<SoftStream> {
    let options = StreamOptions::default().stop_at_death(true);
    Stream::with_options(SoftStream::new().unwrap(), options).unwrap()
}

/// Two ranks, of which the second ends when its team is dropped.
fn two() -> ((Team, Segment), Team) {
    let mut teams = in_one_hand(2, &config().connections(ConnectionKind::Each), 64, 4).into_iter();
    let (own, (other, _segment)) = (teams.next().unwrap(), teams.next().unwrap());
    own.1.expect_from(0..3, 1).unwrap();
    (own, other)
}

/// Makes the stream wait for a notification and then run a kernel. Returns whether that has run.
fn kernel_behind(stream: &Stream<SoftStream>, segment: &Segment, id: u32) -> Arc<AtomicBool> {
    let has_run = Arc::new(AtomicBool::new(false));
    stream.post(Batch::new().wait_notification(&segment.notification(id).unwrap())).unwrap();
    let kernel = has_run.clone();
    stream.launch(move || kernel.store(true, Ordering::Release)).unwrap();
    has_run
}

fn stops(stream: &Stream<SoftStream>) {
    let error = stream.synchronize().unwrap_err();
    let StreamError::Stopped { rank: Some(1), .. } = &error else { panic!("{error:?}") };
    let said = error.to_string();
    assert!(
        said.contains("rank 1 is dead") && said.contains("does not perform what follows its wait"),
        "{said}"
    );
    assert_eq!(stream.synchronize_timeout(Duration::ZERO).unwrap_err(), error);
}

fn stops_still(stream: &Stream<SoftStream>) {
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, StreamError::Stopped { rank: Some(1), .. }), "{error}");
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stream_stops_at_the_wait_for_a_dead_rank_until_it_is_told_to_go_on() {
    let ((team, segment), other) = two();
    let (stopping, plain) = (stopping(), Stream::new(SoftStream::new().unwrap()).unwrap());
    // What came before the death counts.
    let came = kernel_behind(&stopping, &segment, 0);
    other.queue(0).unwrap().notify(0, &segment, 0, 1).unwrap();
    stopping.synchronize().unwrap();
    assert!(came.load(Ordering::Acquire));

    let (stopped, goes_on) = (kernel_behind(&stopping, &segment, 0), kernel_behind(&plain, &segment, 1));
    drop(other);
    assert!(plain.synchronize_timeout(LONG).unwrap());
    assert!(goes_on.load(Ordering::Acquire), "a stream without the option goes on");
    stops(&stopping);
    let said = stopping.explain_wait().unwrap();
    assert!(said.contains("rank 1 is dead"), "{said}");
    for id in [0, 1] {
        assert!(matches!(segment.check_notification(id), Err(NotifyError::PeerDead { rank: 1, .. })));
        let waited = segment.notify_waitsome(id..id + 1, LONG);
        assert!(matches!(waited, Err(NotifyError::PeerDead { rank: 1, .. })), "{waited:?}");
    }
    // Later waits, of this stream and of one that is made after the death.
    let later = self::stopping();
    let behind = [kernel_behind(&stopping, &segment, 1), kernel_behind(&later, &segment, 2)];
    stops(&later);
    assert!(!stopped.load(Ordering::Acquire) && behind.iter().all(|one| !one.load(Ordering::Acquire)));
    // A full stream says why.
    let full = loop {
        if let Err(error) = stopping.post(Batch::new().barrier()) {
            break error.source;
        }
    };
    assert!(matches!(full, PostFailure::Stream(StreamError::Stopped { rank: Some(1), .. })), "{full}");

    stopping.go_on();
    assert!(stopping.synchronize_timeout(LONG).unwrap());
    assert!(stopped.load(Ordering::Acquire) && behind[0].load(Ordering::Acquire));
    assert!(!behind[1].load(Ordering::Acquire), "the other one stands still");
    drop(team);
}

#[test]
fn a_stopped_stream_that_is_dropped_performs_nothing_and_keeps_nothing() {
    let ((team, segment), other) = two();
    let stream = stopping();
    let word = segment.notification(0).unwrap();
    let queue = team.queue(0).unwrap();
    // To itself: the send is prepared, and must not leave.
    let notify = Operation::Notify { rank: 0, to: &segment, id: 2, value: 1 };
    let sends = queue.prepare(notify).unwrap();
    stream.post(sends.fold(Batch::new().wait_notification(&word), Batch::send)).unwrap();
    let has_run = kernel_behind(&stream, &segment, 1);
    drop(other);
    stops(&stream);
    drop(stream);
    until("the kernel is dropped", || Arc::strong_count(&has_run) == 1);
    assert!(!has_run.load(Ordering::Acquire));
    assert!(queue.queue_pair(0).unwrap().failure().is_some(), "nothing may ring for the send");
    // The thread of the stream has ended, and what it held is let go with the next stream that looks.
    drop((word, queue));
    let last = Stream::new(SoftStream::new().unwrap()).unwrap();
    until("the waits are let go", || {
        last.synchronize().unwrap();
        last.outstanding();
        segment.notify_reset(2).unwrap() == 0 && team.dead().len() == 1
    });
    assert!(team.close(LONG));
}

#[test]
fn a_stream_that_waits_for_any_rank_waits_again_after_the_team_has_dropped_the_dead_one() {
    let ((team, segment), other) = two();
    let stream = stopping();
    let has_run = kernel_behind(&stream, &segment, 3);
    drop(other);
    stops(&stream);
    assert_eq!(team.shrink().unwrap(), [1]);
    assert!(!stream.synchronize_timeout(Duration::from_millis(50)).unwrap());
    assert!(!has_run.load(Ordering::Acquire));
    team.queue(0).unwrap().notify(0, &segment, 3, 1).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap());
    assert!(has_run.load(Ordering::Acquire));
}

#[test]
fn the_end_of_the_own_team_stops_a_stream_too() {
    let ((team, segment), other) = two();
    let stream = stopping();
    let has_run = kernel_behind(&stream, &segment, 3);
    drop((team, segment));
    let error = stream.synchronize().unwrap_err();
    assert!(
        matches!(&error, StreamError::Stopped { rank: None, reason } if reason.contains("the team has ended")),
        "{error}"
    );
    assert!(!has_run.load(Ordering::Acquire));
    drop(other);
}

#[test]
fn a_stream_stops_in_a_collective_whose_member_is_dead() {
    let pd = domain();
    each_on_a_thread(3, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config()).unwrap();
        let plan = plans(&team, 0, &[Collective::AllGather { block: 64 }]).remove(0);
        team.barrier().unwrap();
        if team.rank() == 1 {
            // It takes no part, and ends.
            return;
        }
        let (stream, has_run) = (stopping(), Arc::new(AtomicBool::new(false)));
        plan.post(&stream).unwrap();
        let kernel = has_run.clone();
        stream.launch(move || kernel.store(true, Ordering::Release)).unwrap();
        stops(&stream);
        let found = plan.check();
        let is_dead = matches!(&found, Err(CollectiveError::Notify(NotifyError::PeerDead { rank: 1, .. })));
        assert!(is_dead, "rank {}: {found:?}", team.rank());
        // The collective cannot go on without it, so the stream stays.
        assert_eq!(team.shrink().unwrap(), [1]);
        stops_still(&stream);
        assert!(!has_run.load(Ordering::Acquire));
        stream.go_on();
        assert!(stream.synchronize_timeout(LONG).unwrap() && has_run.load(Ordering::Acquire));
        team.barrier().unwrap();
    });
}

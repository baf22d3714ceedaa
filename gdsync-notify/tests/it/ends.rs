//! What waits for notifications that cannot come any more is released: the team has ended, or the program has failed its
//! connections.

use crate::ranks::{LONG, config, domain, each_on_a_thread};
use gdsync::queue::FailureCause;
use gdsync::{Batch, SoftStream, Stream};
use gdsync_notify::collective::{Collective, CollectiveError, Collectives};
use gdsync_notify::{ConnectionKind, NotifyError, Segment, Team, WaitNotification};
use gdsync_test_support::pair;
use std::time::Duration;

/// Ranks of this process, each with a segment of 8 bytes and 3 notifications.
fn ranks(size: u32, kind: Option<ConnectionKind>) -> Vec<(Team, Segment)> {
    let (pd, config) = (domain(), config());
    let config = kind.map_or(config.clone(), |kind| config.connections(kind));
    each_on_a_thread(size, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config.clone()).unwrap();
        let segment = team.allocate(8, 3).unwrap();
        (team, segment)
    })
}

/// A stream that waits for some notifications, for each twice.
fn waiting(segment: &Segment, ids: &[u32]) -> Stream<SoftStream> {
    let stream = pair::soft();
    for id in ids.iter().flat_map(|id| [id, id]) {
        stream.post(Batch::new().wait_notification(&segment.notification(*id).unwrap())).unwrap();
    }
    stream
}

fn has_ended(stream: &Stream<SoftStream>) {
    assert!(stream.synchronize_timeout(LONG).unwrap(), "it waits: {:?}", stream.oldest_wait());
}

#[test]
fn a_stream_is_released_when_its_team_ends() {
    for size in 1..3 {
        let mut all = ranks(size, None);
        // The others are alive meanwhile.
        let (team, segment) = all.remove(0);
        let queue = team.queue(0).unwrap();
        segment.expect_from(1..2, 0).unwrap();
        queue.notify(0, &segment, 2, 7).unwrap();
        assert_eq!(segment.notify_waitsome(2..3, LONG).unwrap(), Some(2));
        let stream = waiting(&segment, &[0, 1]);
        drop(team);
        assert!(stream.oldest_wait().is_some(), "the queue is a handle");
        drop(queue);
        has_ended(&stream);
        for id in 0..2 {
            assert!(matches!(segment.check_notification(id), Err(NotifyError::Ended)));
        }
        // What came before the end is there.
        let found = segment.notify_waitsome(0..3, LONG).unwrap();
        assert_eq!((found, segment.notify_reset(2).unwrap()), (Some(2), 7));
        assert!(matches!(segment.notify_waitsome(0..3, LONG), Err(NotifyError::Ended)));
        assert!(matches!(segment.notification(0), Err(NotifyError::Ended)));
    }
}

#[test]
fn a_word_that_outlives_its_team_and_segment_never_blocks_a_stream() {
    let (team, segment) = ranks(1, None).remove(0);
    let word = segment.notification(0).unwrap();
    assert!(team.close(LONG), "words are no handles of the team");
    drop(segment);
    let stream = pair::soft();
    for _ in 0..3 {
        stream.post(Batch::new().wait_notification(&word)).unwrap();
        has_ended(&stream);
    }
}

#[test]
fn a_segment_lives_as_long_as_a_stream_waits_for_its_notification() {
    let mut both = ranks(2, None);
    let (own, other) = (both.remove(0), both.remove(0));
    let stream = waiting(&own.1, &[0]);
    drop(own.1);
    let queue = other.0.queue(0).unwrap();
    queue.notify(0, &other.1, 0, 1).unwrap();
    queue.flush(LONG).unwrap();
    assert!(!stream.synchronize_timeout(Duration::ZERO).unwrap(), "it waits twice");
    drop(own.0);
    has_ended(&stream);
}

#[test]
fn a_stream_is_released_when_all_connections_with_the_sender_have_failed() {
    let all = ranks(2, Some(ConnectionKind::Each));
    let (team, segment) = &all[0];
    segment.expect_from(0..1, 0).unwrap();
    segment.expect_from(1..2, 1).unwrap();
    let [of_own, of_other, of_any] = [0, 1, 2].map(|id| waiting(segment, &[id]));
    let (_, segment_of_other) = &all[1];
    segment_of_other.expect_from(0..1, 0).unwrap();
    let at_other = waiting(segment_of_other, &[0]);
    let queue = team.queue(0).unwrap();
    queue.queue_pair(1).unwrap().abort().unwrap();
    has_ended(&of_other);
    let check = |id, of| {
        let error = segment.check_notification(id).unwrap_err();
        assert!(
            matches!(error, NotifyError::Failed { rank, cause: FailureCause::Aborted } if rank == of),
            "{error}"
        );
    };
    check(1, 1);
    let waited = segment.notify_waitsome(1..2, LONG);
    assert!(matches!(waited, Err(NotifyError::Failed { rank: 1, .. })), "{waited:?}");
    // This rank may still set the others.
    for id in [0, 2] {
        queue.notify(0, segment, id, 3).unwrap();
        segment.check_notification(id).unwrap();
    }
    queue.flush_rank(0, LONG).unwrap();
    assert!([&of_own, &of_any].iter().all(|one| !one.synchronize_timeout(Duration::ZERO).unwrap()));
    queue.queue_pair(0).unwrap().abort().unwrap();
    [&of_own, &of_any].into_iter().for_each(has_ended);
    check(0, 0);
    check(2, 0);
    // The other side has learnt it.
    has_ended(&at_other);
    let failed = segment_of_other.check_notification(0);
    assert!(matches!(failed, Err(NotifyError::Failed { rank: 0, .. })), "{failed:?}");
}

#[test]
fn a_collective_is_released_when_all_connections_with_a_rank_have_failed() {
    let pd = domain();
    each_on_a_thread(2, |bootstrap| {
        let team = Team::new(&pd, bootstrap, config().connections(ConnectionKind::Each)).unwrap();
        let (queue, gather) = (team.queue(0).unwrap(), Collective::AllGather { block: 8 });
        let segment = team.allocate(gather.bytes(2), gather.notifications(2)).unwrap();
        let plan = Collectives::new(&queue, &segment).unwrap().plan(gather).unwrap();
        let stream = pair::soft();
        plan.post(&stream).unwrap();
        has_ended(&stream);
        plan.check().unwrap();
        team.barrier().unwrap();
        if team.rank() == 0 {
            plan.post(&stream).unwrap();
            queue.queue_pair(1).unwrap().abort().unwrap();
            has_ended(&stream);
            let failed = plan.check();
            assert!(
                matches!(failed, Err(CollectiveError::Notify(NotifyError::Failed { rank: 1, .. }))),
                "{failed:?}"
            );
        }
        team.barrier().unwrap();
    });
}

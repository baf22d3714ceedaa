//! The result of `QueuePair::failure()` when both queues of a queue pair hold errors, whichever the program polls
//! first.

use gdsync::persistent::PersistentRecv;
use gdsync::queue::{FailureCause, Syndrome, WorkError};
use gdsync::verbs::AsyncEventKind;
use gdsync::{QueuePair, RemoteMemory, WorkRequest};
use gdsync_test_support::pair::{self, LONG, Pair, drain_and_reconnect, poll, ring};
use std::time::Instant;

const BAD: RemoteMemory = RemoteMemory { addr: 0, len: 8, rkey: 1 };

fn cause(queue_pair: &QueuePair) -> Option<Syndrome> {
    match queue_pair.failure() {
        Some(FailureCause::Work(error)) => WorkError::kind(error),
        other => panic!("{other:?}"),
    }
}

/// The cause, once the card has written its entry: the flush of another queue may come earlier.
fn cause_in_time(queue_pair: &QueuePair) -> Option<Syndrome> {
    let deadline = Instant::now() + LONG;
    while cause(queue_pair) == Some(Syndrome::WrFlush) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    cause(queue_pair)
}

#[test]
fn a_failed_send_is_the_cause_though_flushed_receives_are_polled_first() {
    let pair = Pair::new();
    for round in 0..50 {
        for wr_id in 0..3 {
            pair.left.post_recv(&[], wr_id).unwrap();
        }
        ring(pair.left.prepare(WorkRequest::write_inline(&[1], BAD).wr_id(9)).unwrap());
        let flushed = poll(&pair.left.recv_cq());
        assert!(flushed.status.unwrap_err().is_flush(), "round {round}");
        assert_eq!(cause_in_time(&pair.left), Some(Syndrome::RemoteAccess), "round {round}");
        let failed = poll(&pair.left.send_cq());
        assert_eq!((failed.wr_id, failed.status.unwrap_err().kind()), (9, Some(Syndrome::RemoteAccess)));
        drain_and_reconnect(&pair);
    }
}

#[test]
fn a_flush_names_the_failure_that_it_follows() {
    let pair = Pair::new();
    pair.left.post_recv(&[], 1).unwrap();
    ring(pair.left.prepare(WorkRequest::write_inline(&[1], BAD).wr_id(9)).unwrap());
    ring(pair.left.prepare(WorkRequest::write_inline(&[1], BAD).wr_id(10)).unwrap());
    let failed = poll(&pair.left.send_cq()).status.unwrap_err();
    assert_eq!((failed.kind(), failed.flushed_after()), (Some(Syndrome::RemoteAccess), None));
    for queue in [pair.left.send_cq(), pair.left.recv_cq()] {
        let flushed = poll(&queue).status.unwrap_err();
        let (cause, before) = flushed.flushed_after().unwrap();
        assert!(flushed.is_flush() && cause == FailureCause::Work(failed) && before < 2 * LONG, "{flushed}");
        let said = flushed.to_string();
        let expected = format!(" ms before: {failed}");
        assert!(said.starts_with("flushed: ") && said.ends_with(&expected), "{said}");
    }
    // A new connection has a history of its own.
    drain_and_reconnect(&pair);
    pair.left.post_recv(&[], 1).unwrap();
    pair.left.abort().unwrap();
    let flushed = poll(&pair.left.recv_cq()).status.unwrap_err();
    assert_eq!(flushed.flushed_after().map(|(cause, _)| cause), Some(FailureCause::Aborted));
}

#[test]
fn a_failed_receive_is_the_cause_though_flushed_sends_are_polled_first() {
    let pair = Pair::new();
    let region = pair.region(64);
    let slices = [region.slice(..).unwrap()];
    for round in 0..50 {
        pair.right.post_recv(&[region.slice(..8).unwrap()], 0).unwrap();
        // Rung and not answered, as the left side has no receive.
        ring(pair.right.prepare(WorkRequest::send(&[])).unwrap());
        ring(pair.left.prepare(WorkRequest::send(&slices)).unwrap());
        let flushed = poll(&pair.right.send_cq());
        assert!(flushed.status.unwrap_err().is_flush(), "round {round}");
        assert_eq!(cause_in_time(&pair.right), Some(Syndrome::LocalLength), "round {round}");
        drain_and_reconnect(&pair);
    }
}

#[test]
fn progress_of_a_persistent_request_finds_the_cause_too() {
    let pair = Pair::new();
    let region = pair.region(8);
    let stream = pair::soft();
    let mut recv = PersistentRecv::new(&pair.left, &[region.slice(..).unwrap()]).unwrap();
    recv.start(&stream).unwrap();
    ring(pair.left.prepare(WorkRequest::write_inline(&[1], BAD)).unwrap());
    assert!(recv.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    assert_eq!(cause_in_time(&pair.left), Some(Syndrome::RemoteAccess));
}

#[test]
fn a_flush_gives_way_to_the_event_that_is_read_later_and_to_nothing_after_that() {
    if !pair::events_of_queues("a_flush_gives_way_to_the_event_that_is_read_later_and_to_nothing_after_that")
    {
        return;
    }
    let pair = Pair::new();
    pair.right.post_recv(&[], 0).unwrap();
    ring(pair.left.prepare(WorkRequest::write_inline(&[1], BAD)).unwrap());
    assert!(poll(&pair.right.recv_cq()).status.unwrap_err().is_flush());
    assert_eq!(cause(&pair.right), Some(Syndrome::WrFlush), "nothing else has been told yet");
    pair.right.abort().unwrap();
    assert_eq!(cause(&pair.right), Some(Syndrome::WrFlush), "an abort comes too late to be the cause");
    let told = FailureCause::Event(AsyncEventKind::QueuePairAccessError);
    while !pair.device.next_event(LONG).unwrap().unwrap().queue_pairs.contains(&pair.right.number()) {}
    assert_eq!(pair.right.failure(), Some(told));
    pair.right.abort().unwrap();
    assert_eq!(pair.right.failure(), Some(told));
}

#[test]
fn an_abort_stays_the_cause_of_what_it_flushes() {
    let pair = Pair::new();
    pair.left.post_recv(&[], 0).unwrap();
    pair.left.abort().unwrap();
    assert!(poll(&pair.left.recv_cq()).status.unwrap_err().is_flush());
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
}

//! The effects of each failure on a stream's program: the rows of `docs/failure-model.md`.

use gdsync::memop::{Condition, Word32};
use gdsync::queue::{FailureCause, Status, Syndrome, WorkError};
use gdsync::verbs::AsyncEventKind;
use gdsync::{
    Batch, ConnectOptions, Endpoint, PinnedMemory, QueuePair, QueuePairConfig, RemoteMemory, SoftStream,
    Stream, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, poll, soft, synchronize};
use gdsync_test_support::process::{again, role};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Posts a request with a checked wait, and returns its outcome after the stream has continued.
fn outcome(queue_pair: &QueuePair, request: WorkRequest<'_>) -> Option<Syndrome> {
    let stream = soft();
    let send = queue_pair.prepare(request).unwrap();
    let wait = queue_pair.send_cq().prepare_wait().unwrap().checked().unwrap();
    let status: Status = wait.status();
    stream.post(Batch::new().send(send).wait_checked(wait)).unwrap();
    synchronize(&stream);
    let told = status.get().unwrap();
    assert_eq!(poll(&queue_pair.send_cq()).status, told, "the completion says the same");
    let cause = queue_pair.failure();
    assert_eq!(cause, told.err().map(FailureCause::Work), "and so does the queue pair");
    told.err().and_then(WorkError::kind)
}

#[test]
fn a_remote_access_error_is_told_to_the_remote_side_as_an_event() {
    if !pair::events_of_queues("a_remote_access_error_is_told_to_the_remote_side_as_an_event") {
        return;
    }
    let pair = Pair::new();
    let stream = soft();
    pair.right.post_recv(&[], 4).unwrap();
    stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    assert_eq!(outcome(&pair.left, WorkRequest::write_inline(&[1], bad)), Some(Syndrome::RemoteAccess));
    let event = loop {
        let event = pair.device.next_event(LONG).unwrap().expect("the remote side's card says so");
        if event.queue_pairs.contains(&pair.right.number()) {
            break event;
        }
    };
    assert_eq!(event.kind, AsyncEventKind::QueuePairAccessError);
    assert_eq!(pair.right.failure(), Some(FailureCause::Event(AsyncEventKind::QueuePairAccessError)));
    synchronize(&stream);
    assert!(poll(&pair.right.recv_cq()).status.unwrap_err().is_flush());
}

#[test]
fn a_thread_that_was_asked_for_reads_events() {
    if !pair::events_of_queues("a_thread_that_was_asked_for_reads_events") {
        return;
    }
    let pair = Pair::new();
    let (told, heard) = mpsc::channel();
    let watch = pair.device.watch_events(move |event| told.send(event.clone()).unwrap()).unwrap();
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    assert_eq!(outcome(&pair.left, WorkRequest::write_inline(&[1], bad)), Some(Syndrome::RemoteAccess));
    while !heard.recv_timeout(LONG).unwrap().queue_pairs.contains(&pair.right.number()) {}
    assert!(pair.right.failure().is_some());
    drop(watch);
    assert!(matches!(heard.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected)), "it has ended");
    assert!(pair.device.next_event(Duration::ZERO).is_ok());
}

#[test]
fn receiver_not_ready_retries_are_exhausted() {
    let options = ConnectOptions::default().rnr_retry(1).min_rnr_timer(1);
    let pair = Pair::with(QueuePairConfig::default(), options);
    assert_eq!(outcome(&pair.left, WorkRequest::send(&[])), Some(Syndrome::RnrRetryExceeded));
}

#[test]
fn transport_retries_are_exhausted() {
    let pair = Pair::new();
    let options = ConnectOptions::default().timeout(8).retry_count(2);
    let lonely = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    let deaf = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    lonely.connect(&deaf.endpoint().unwrap(), options).unwrap();
    assert_eq!(outcome(&lonely, WorkRequest::send(&[])), Some(Syndrome::RetryExceeded));
}

#[test]
fn a_receive_that_is_too_short_fails_both_sides() {
    let pair = Pair::new();
    let region = pair.region(64);
    pair.right.post_recv(&[region.slice(..8).unwrap()], 3).unwrap();
    let slices = [region.slice(..).unwrap()];
    assert_eq!(outcome(&pair.left, WorkRequest::send(&slices)), Some(Syndrome::RemoteInvalidRequest));
    assert_eq!(poll(&pair.right.recv_cq()).status.unwrap_err().kind(), Some(Syndrome::LocalLength));
}

#[test]
fn a_stream_that_never_comes_to_its_operations_is_named_and_called_off() {
    let pair = Pair::new();
    let target = pair.region(8);
    let gate = target.word32(0).unwrap();
    let stream = soft();
    let send =
        pair.left.prepare(WorkRequest::write_inline(&[1], target.remote().slice(4..).unwrap())).unwrap();
    let sent = pair.left.send_cq().prepare_wait().unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 7).send(send).wait(sent)).unwrap();
    // The obstacle is not the card's, so failing the queue pair does not help.
    pair.left.abort().unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
    assert!(stream.oldest_wait().unwrap().contains("eq 0x7"));
    assert!(pair.left.send_cq().poll().unwrap().is_none(), "the stream has still to ring for it");
    gate.store(7);
    synchronize(&stream);
    assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
    pair.left.reset().unwrap();
}

/// The peer is this test again, in a separate process, which is killed.
#[test]
fn a_dead_peer_is_given_up() {
    let options = ConnectOptions::default().timeout(10).retry_count(3);
    if let Some(endpoint) = role() {
        let pair = Pair::new();
        let own = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
        own.post_recv(&[], 0).unwrap();
        own.connect(&endpoint.parse().unwrap(), options).unwrap();
        let line = format!("\nENDPOINT {}\n", own.endpoint().unwrap());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        poll(&own.recv_cq());
        std::thread::sleep(LONG);
        return;
    }
    let pair = Pair::new();
    let own = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    let endpoint = own.endpoint().unwrap().to_string();
    let mut peer = again(module_path!(), "a_dead_peer_is_given_up", &endpoint)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(peer.stderr.take().unwrap()).lines();
    let endpoint: Endpoint = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("ENDPOINT ").map(|text| text.parse().unwrap()))
        .expect("the peer says where it is");
    own.connect(&endpoint, options).unwrap();
    assert_eq!(outcome(&own, WorkRequest::send(&[])), None, "while it lives");
    // A stream that waits for the peer learns nothing of its death...
    own.post_recv(&[], 1).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait(own.recv_cq().prepare_wait().unwrap())).unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
    // ...until it sends something to the peer.
    assert_eq!(outcome(&own, WorkRequest::send(&[])), Some(Syndrome::RetryExceeded));
    synchronize(&stream);
    assert!(poll(&own.recv_cq()).status.unwrap_err().is_flush());
    own.reset().unwrap();
}

/// Fails the left side by a request of the right one while a stream is behind its doorbell, with a prepared send that no
/// stream has. `pass` opens the gate at which the stream stands.
fn prepared_work_is_flushed_after(pass: impl FnOnce(Stream<SoftStream>, Word32)) {
    let pair = Pair::new();
    let target = pair.region(8);
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let write = |wr_id| WorkRequest::write_inline(b"x", target.remote()).wr_id(wr_id);
    let first = pair.left.prepare(write(1).unsignaled()).unwrap();
    let second = pair.left.prepare(write(2)).unwrap();
    let stream = soft();
    stream.post(Batch::new().send(first).wait_value32(&gate, Condition::Eq, 1)).unwrap();
    pair.left.post_recv(&[], 9).unwrap();
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    pair.right.post_send(WorkRequest::write_inline(b"x", bad)).unwrap();
    assert!(poll(&pair.left.recv_cq()).status.unwrap_err().is_flush());
    pass(stream, gate);
    // A call of any stream looks after those that were dropped.
    let (other, deadline) = (soft(), Instant::now() + LONG);
    let flushed = loop {
        synchronize(&other);
        match pair.left.send_cq().poll().unwrap() {
            // The first fails, too, if the failure was before its acknowledgement.
            Some(completion) if completion.wr_id == 2 => break completion,
            _ => assert!(Instant::now() < deadline, "what was only prepared is not flushed"),
        }
    };
    assert_eq!((flushed.wr_id, flushed.was_posted), (2, false));
    assert!(flushed.status.unwrap_err().is_flush());
    drop(second);
}

#[test]
fn prepared_work_is_flushed_when_its_stream_has_passed_everything() {
    prepared_work_is_flushed_after(|stream, gate| {
        gate.store(1);
        synchronize(&stream);
    });
}

#[test]
fn prepared_work_is_flushed_when_its_dropped_stream_has_passed_everything() {
    prepared_work_is_flushed_after(|stream, gate| {
        drop(stream);
        gate.store(1);
    });
}

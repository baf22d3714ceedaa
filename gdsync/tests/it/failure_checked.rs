//! Checked waits and the watchdog, as documented in `docs/failure-model.md`.

use gdsync::batch::BatchShape;
use gdsync::memop::{Condition, Word32};
use gdsync::persistent::PersistentRecv;
use gdsync::queue::{FailureCause, Status, Syndrome};
use gdsync::verbs::OutOfRange;
use gdsync::{Batch, Error, PinnedMemory, RemoteMemory, Stream, WorkRequest};
use gdsync_test_support::gpu::{self, Rig};
use gdsync_test_support::pair::{LONG, Pair, cpu, drain_and_reconnect, poll, soft, synchronize};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const BAD: RemoteMemory = RemoteMemory { addr: 0, len: 8, rkey: 1 };

#[test]
fn a_checked_wait_tells_success_from_failure_to_what_comes_next_on_the_stream() {
    let pair = Pair::new();
    let target = pair.region(8);
    let stream = soft();
    for (remote, expected) in [(target.remote(), None), (BAD, Some(Syndrome::RemoteAccess))] {
        let send = pair.left.prepare(WorkRequest::write_inline(&[1], remote)).unwrap();
        let wait = pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
        let status = wait.status();
        assert_eq!(status.get(), None);
        let done = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        let (seen, word) = (mpsc::channel(), status.word().clone());
        stream.post(Batch::new().send(send).wait_checked(wait)).unwrap();
        stream.launch(move || seen.0.send(word.load()).unwrap()).unwrap();
        // Another descriptor that depends on it: continues for this outcome only.
        let bit = if expected.is_some() { Status::FAILED } else { Status::OK };
        stream
            .post(Batch::new().wait_value32(status.word(), Condition::And, bit).write_value32(&done, 1))
            .unwrap();
        synchronize(&stream);
        let word = seen.1.recv_timeout(LONG).unwrap();
        assert_eq!(
            (word == Status::OK, word & Status::FAILED != 0),
            (expected.is_none(), expected.is_some())
        );
        assert_eq!(done.load(), 1);
        let outcome = status.get().unwrap();
        assert_eq!(outcome.err().and_then(gdsync::queue::WorkError::kind), expected);
        // The failure is known without a poll.
        assert_eq!(pair.left.failure().is_some(), expected.is_some());
        assert_eq!(poll(&pair.left.send_cq()).status, outcome);
    }
}

#[test]
fn many_checked_waits_and_plain_ones_take_turns() {
    let pair = Pair::new();
    let target = pair.region(8);
    let stream = soft();
    for round in 0..50 {
        let mut batch = Batch::new();
        let mut checked = Vec::new();
        for i in 0..5 {
            let byte = [i];
            let request = WorkRequest::write_inline(&byte, target.remote());
            batch = batch.send(pair.left.prepare(request).unwrap());
            let wait = pair.left.send_cq().prepare_wait().unwrap();
            batch = if (i + round) % 2 == 0 {
                let wait = wait.checked().unwrap();
                checked.push(wait.status());
                batch.wait_checked(wait)
            } else {
                batch.wait(wait)
            };
        }
        stream.post(batch).unwrap();
        synchronize(&stream);
        assert!(checked.iter().all(|status| status.get() == Some(Ok(()))));
        (0..5).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
    }
}

#[test]
fn a_checked_wait_takes_the_place_of_a_wait_and_kernels_find_its_word() {
    let pair = Pair::new();
    let target = pair.region(8);
    let stream = soft();
    let send = pair.left.prepare(WorkRequest::write_inline(&[1], target.remote())).unwrap();
    let wait = pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    let address = status.address_on(&stream).unwrap();
    assert_eq!(address.get(), status.word().addr().get(), "a stream of the CPU's has its addresses");
    let batch = Batch::new().send(send).wait_checked(wait);
    assert_eq!(BatchShape::of(&batch), BatchShape::new().send().wait());
    stream.post(batch).unwrap();
    synchronize(&stream);
    assert_eq!(status.get(), Some(Ok(())));
}

#[test]
fn an_abort_ends_checked_waits_as_flushed() {
    let pair = Pair::new();
    let stream = soft();
    pair.left.post_recv(&[], 1).unwrap();
    let arrival = pair.left.recv_cq().prepare_wait().unwrap().checked().unwrap();
    // Prepared and never posted: it is rung when the queue pair has failed.
    let unposted = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let sent = pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let statuses = [arrival.status(), sent.status()];
    stream.post(Batch::new().wait_checked(arrival).wait_checked(sent)).unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap());
    assert!(statuses.iter().all(|status| status.get().is_none()));
    pair.left.abort().unwrap();
    synchronize(&stream);
    for status in statuses {
        assert_eq!(followed(&status), Some(FailureCause::Aborted));
    }
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted), "the first cause stays");
    drop(unposted);
}

/// The failure that flushed work follows.
fn followed(status: &Status) -> Option<FailureCause> {
    let error = status.get().unwrap().unwrap_err();
    assert!(error.is_flush());
    error.flushed_after().map(|(cause, _)| cause)
}

#[test]
fn a_checked_wait_for_flushed_work_names_the_failure_before() {
    let pair = Pair::new();
    let stream = soft();
    pair.left.post_recv(&[], 1).unwrap();
    let mut batch = Batch::new().send(pair.left.prepare(WorkRequest::write_inline(&[1], BAD)).unwrap());
    batch = batch.send(pair.left.prepare(WorkRequest::write_inline(&[1], BAD)).unwrap());
    let queues = [pair.left.send_cq(), pair.left.send_cq(), pair.left.recv_cq()];
    let waits = queues.map(|queue| queue.prepare_wait().unwrap().checked().unwrap());
    let [failed, send, receive] = [waits[0].status(), waits[1].status(), waits[2].status()];
    stream.post(waits.into_iter().fold(batch, Batch::wait_checked)).unwrap();
    synchronize(&stream);
    let failed = failed.get().unwrap().unwrap_err();
    assert_eq!((failed.kind(), failed.flushed_after()), (Some(Syndrome::RemoteAccess), None));
    assert_eq!(followed(&send), Some(FailureCause::Work(failed)));
    assert_eq!(followed(&receive), Some(FailureCause::Work(failed)));
    let said = send.get().unwrap().unwrap_err().to_string();
    assert!(said.ends_with(&format!(" ms before: {failed}")), "{said}");
}

#[test]
fn work_that_no_card_has_flushed_names_the_failure_before() {
    let pair = Pair::new();
    let (gated, stream) = (soft(), soft());
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    gated.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    // The gated stream rings for the send after the other's wait was ended, and announces the receive then.
    gated.post(Batch::new().send(pair.left.prepare(WorkRequest::send(&[])).unwrap())).unwrap();
    let wait = pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let sent = wait.status();
    stream.post(Batch::new().wait_checked(wait)).unwrap();
    let mut receive = PersistentRecv::new(&pair.right, &[]).unwrap();
    receive.start(&gated).unwrap();
    let received = receive.status().unwrap();
    pair.left.abort().unwrap();
    pair.right.abort().unwrap();
    synchronize(&stream);
    assert_eq!(followed(&sent), Some(FailureCause::Aborted));
    let flushed = receive.complete(LONG).unwrap().unwrap();
    assert_eq!((flushed.index, flushed.was_posted), (None, false));
    assert_eq!(followed(&received), Some(FailureCause::Aborted));
    gate.store(1);
    synchronize(&gated);
}

#[test]
fn a_checked_wait_for_what_a_former_life_has_left_does_not_fail_the_new_one() {
    let pair = Pair::new();
    let stream = soft();
    pair.left.post_recv(&[], 1).unwrap();
    let wait = pair.left.recv_cq().prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    pair.left.post_recv(&[], 3).unwrap();
    let later = pair.left.recv_cq().prepare_wait().unwrap().checked().unwrap();
    let later_status = later.status();
    drain_and_reconnect(&pair);
    stream.post(Batch::new().wait_checked(wait)).unwrap();
    synchronize(&stream);
    assert_eq!(followed(&status), None, "what has become of the receive of that time");
    assert_eq!(pair.left.failure(), None);
    pair.right.post_recv(&[], 2).unwrap();
    pair.left.post_send(WorkRequest::send(&[])).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    // Nor does the failure of the new one explain the flush of the former.
    pair.left.abort().unwrap();
    stream.post(Batch::new().wait_checked(later)).unwrap();
    synchronize(&stream);
    assert_eq!(followed(&later_status), None);
}

#[test]
fn a_checked_wait_that_is_not_posted_can_be_posted_later_or_dropped() {
    let pair = Pair::new();
    pair.left.post_recv(&[], 1).unwrap();
    let wait = pair.left.recv_cq().prepare_wait().unwrap();
    let index = wait.index();
    drop(wait.checked().unwrap());
    let wait = pair.left.recv_cq().prepare_wait().unwrap();
    assert_eq!(wait.index(), index, "the newest is given back");
    let wait = wait.checked().unwrap();
    let status = wait.status();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    // A batch that is refused as a whole: its last wait can never be satisfied.
    let refused =
        soft().post(Batch::new().wait_checked(wait).wait_value32(&word, Condition::And, 0)).unwrap_err();
    assert_eq!((refused.posted, refused.batch.len()), (0, 2));
    drop(refused);
    assert_eq!(status.get(), None);
    let wait = pair.left.recv_cq().prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    cpu_send(&pair);
    cpu().post(Batch::new().wait_checked(wait)).unwrap();
    assert_eq!(status.get(), Some(Ok(())));
}

fn cpu_send(pair: &Pair) {
    pair.right.post_send(WorkRequest::send(&[])).unwrap();
}

#[test]
fn the_watchdog_names_the_wait_that_a_stream_stands_at_once() {
    let pair = Pair::new();
    let stream = Arc::new(soft());
    let (told, heard) = mpsc::channel();
    let watchdog = stream
        .watchdog(Duration::from_millis(20), move |wait, stood| told.send((wait.clone(), stood)).unwrap())
        .unwrap();
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    word.store(1);
    for wr_id in 0..2 {
        pair.left.post_recv(&[], wr_id).unwrap();
    }
    let waits = [pair.left.recv_cq().prepare_wait().unwrap(), pair.left.recv_cq().prepare_wait().unwrap()];
    let [first, second] = waits;
    // A satisfied wait precedes, and an unreached one follows: the stream is blocked at neither.
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    stream.post(Batch::new().wait(first).wait(second)).unwrap();
    for index in 0..2 {
        let (wait, stood) = heard.recv_timeout(LONG).unwrap();
        assert!(stood >= Duration::from_millis(20));
        assert_eq!(
            (wait.index, wait.queue_pairs.as_slice()),
            (Some(index), &[pair.left.number()][..]),
            "{wait}"
        );
        assert!(wait.completion_queue.is_some());
        assert!(heard.recv_timeout(Duration::from_millis(100)).is_err(), "each is reported once");
        cpu_send(&pair);
    }
    synchronize(&stream);
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 5)).unwrap();
    let (named, _) = heard.recv_timeout(LONG).unwrap();
    assert_eq!((named.index, named.completion_queue), (None, None));
    drop(watchdog);
    word.store(5);
    synchronize(&stream);
    assert!(
        matches!(heard.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected)),
        "its thread has ended"
    );
    assert!(matches!(stream.watchdog(Duration::ZERO, |_, _| {}), Err(Error::OutOfRange(OutOfRange { .. }))));
}

#[test]
fn a_watchdog_does_not_keep_its_stream() {
    let stream = Arc::new(soft());
    let (told, heard) = mpsc::channel();
    let _watchdog = stream.watchdog(Duration::from_millis(4), move |_, _| told.send(()).unwrap()).unwrap();
    let weak = Arc::downgrade(&stream);
    drop(stream);
    assert!(matches!(heard.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected)));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_checked_wait_on_a_gpu_stream_tells_what_comes_next() {
    let Some(rig) = Rig::new("a_checked_wait_on_a_gpu_stream_tells_what_comes_next") else { return };
    let target = rig.pair.region(8);
    for (remote, expected) in [(target.remote(), None), (BAD, Some(Syndrome::RemoteAccess))] {
        let stream: Stream<_> = rig.stream();
        let send = rig.pair.left.prepare(WorkRequest::write_inline(&[1], remote)).unwrap();
        let wait = rig.pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
        let status = wait.status();
        let done = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        let bit = if expected.is_some() { Status::FAILED } else { Status::OK };
        let batch = Batch::new().send(send).wait_checked(wait);
        stream.post(batch.wait_value32(status.word(), Condition::And, bit).write_value32(&done, 1)).unwrap();
        gpu::synchronize(&stream);
        assert_eq!(done.load(), 1);
        assert_eq!(status.get().unwrap().err().and_then(gdsync::queue::WorkError::kind), expected);
        assert_eq!(poll(&rig.pair.left.send_cq()).status, status.get().unwrap());
    }
}

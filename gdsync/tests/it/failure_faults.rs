//! The effects on a stream's program of each fault that the software card injects: the rows of "Injected faults" in
//! `docs/failure-model.md`. Faults concern the whole process, so the tests take turns.

#![cfg(feature = "software-card")]

use gdsync::memop::{Condition, Word32};
use gdsync::queue::{FailureCause, StateError, Status, Syndrome};
use gdsync::verbs::{AsyncEventKind, Transport};
use gdsync::{
    Batch, ConnectOptions, MemoryRegion, PinnedMemory, QueueError, QueuePair, QueuePairConfig, SoftStream,
    Stream, WorkRequest,
};
use gdsync_test_support::pair::{
    self, LONG, Pair, content, drain_and_reconnect, fill, poll, soft, synchronize,
};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Two connected queue pairs with short time-outs, and a plan in force until this is dropped.
struct Rig {
    pair: Pair,
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Rig {
    /// Runs the test in a separate process. `None` elsewhere, and on the system's libraries, whose card takes the
    /// faults from its environment.
    fn new(test: &str) -> Option<Rig> {
        Rig::with(test, QueuePairConfig::default())
    }

    fn with(test: &str, config: QueuePairConfig<'_>) -> Option<Rig> {
        if on_system() {
            skipped(test, "faults are injected into the software card of this process");
            return None;
        }
        // A plan applies to every card of a process.
        if !alone(module_path!(), test, &[]) {
            return None;
        }
        let pair = Pair::with(config, options());
        let (source, target) = (pair.open_region(4096), pair.open_region(4096));
        Some(Rig { pair, source, target })
    }

    fn message(&self) -> [gdsync::Slice; 1] {
        [self.source.slice(..).unwrap()]
    }

    /// Messages from left to right that must arrive, awaited by streams; the first of them `checked`.
    fn exchange(&self, count: usize) {
        let (sender, receiver) = (soft(), soft());
        for round in 0..count {
            let bytes = fill(&self.source, round + 1);
            self.pair.right.post_recv(&[self.target.slice(..).unwrap()], round as u64).unwrap();
            let send = self.pair.left.prepare(WorkRequest::send(&self.message())).unwrap();
            let sent = self.pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
            let status = sent.status();
            receiver.post(Batch::new().wait(self.pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
            sender.post(Batch::new().send(send).wait_checked(sent)).unwrap();
            synchronize(&sender);
            synchronize(&receiver);
            assert_eq!(status.get(), Some(Ok(())));
            assert_eq!(poll(&self.pair.left.send_cq()).status, Ok(()));
            let arrived = poll(&self.pair.right.recv_cq());
            assert_eq!((arrived.wr_id, arrived.status, arrived.byte_len), (round as u64, Ok(()), 4096));
            assert!(content(&self.target) == bytes, "message {round}");
        }
        assert!(self.pair.left.send_cq().poll().unwrap().is_none(), "nothing comes twice");
        assert!(self.pair.right.recv_cq().poll().unwrap().is_none(), "nothing comes twice");
        assert_eq!((self.pair.left.failure(), self.pair.right.failure()), (None, None));
    }

    /// Ends the faults, reconnects both sides, and sends messages, which must arrive.
    fn recover(&self) {
        softhca::set_faults(None);
        drain_and_reconnect(&self.pair);
        self.exchange(2);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        softhca::set_faults(None);
    }
}

fn options() -> ConnectOptions {
    // 4.096 µs * 2^9: two milliseconds.
    ConnectOptions::default().timeout(9).retry_count(7).min_rnr_timer(1)
}

fn inject(plan: &str) {
    softhca::set_faults(Some(plan.parse().unwrap()));
}

fn injected() -> Vec<u64> {
    softhca::fault_counts().iter().map(|count| count.injected).collect()
}

/// The effect on the other side.
enum Remote {
    /// Nothing.
    Nothing,
    Event(AsyncEventKind),
    /// Its receive fails.
    Receive(Syndrome),
}

/// Posts a request that is to fail, and a later one, on a stream with a checked and a plain wait; then checks
/// everything that the failure model says about both sides.
fn fails(rig: &Rig, request: WorkRequest<'_>, expected: Syndrome, remote: Remote) {
    let (left, right) = (&rig.pair.left, &rig.pair.right);
    let (stream, theirs, ours) = (soft(), soft(), soft());
    right.post_recv(&[rig.target.slice(..).unwrap()], 3).unwrap();
    theirs.post(Batch::new().wait(right.recv_cq().prepare_wait().unwrap())).unwrap();
    left.post_recv(&[], 4).unwrap();
    ours.post(Batch::new().wait(left.recv_cq().prepare_wait().unwrap())).unwrap();

    let failing = left.prepare(request.wr_id(1)).unwrap();
    let failed = left.send_cq().prepare_wait().unwrap().checked().unwrap();
    let behind = left.prepare(WorkRequest::send(&[]).wr_id(2)).unwrap();
    let flushed = left.send_cq().prepare_wait().unwrap();
    let (status, (tell, told)) = (failed.status(), mpsc::channel());
    let word = status.word().clone();
    // All of it is enqueued before any of it happens: after the failure, posting is refused.
    let gate = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    stream.post(Batch::new().send(failing).wait_checked(failed)).unwrap();
    stream.launch(move || tell.send(word.load()).unwrap()).unwrap();
    stream.post(Batch::new().send(behind).wait(flushed)).unwrap();
    gate.store(1);
    synchronize(&stream);

    // In stream order, then on the CPU, before any poll.
    let seen = told.recv_timeout(LONG).unwrap();
    assert_eq!((seen & 0xff, seen & Status::FAILED), (expected as u32, Status::FAILED));
    let error = status.get().unwrap().unwrap_err();
    assert_eq!(error.kind(), Some(expected));
    assert_eq!(left.failure(), Some(FailureCause::Work(error)));
    synchronize(&ours);
    assert_eq!((stream.outstanding(), ours.outstanding()), (0, 0), "every point is past");
    let refused = left.prepare(WorkRequest::send(&[])).unwrap_err();
    assert!(
        matches!(refused, QueueError::State(StateError::Failed { cause: FailureCause::Work(told), .. }) if told == error)
    );
    let completion = poll(&left.send_cq());
    assert_eq!((completion.wr_id, completion.status), (1, Err(error)));
    let completion = poll(&left.send_cq());
    assert_eq!((completion.wr_id, completion.status.unwrap_err().is_flush()), (2, true));
    let completion = poll(&left.recv_cq());
    assert_eq!((completion.wr_id, completion.status.unwrap_err().is_flush()), (4, true));
    remote_side(rig, right, &theirs, remote);
    assert!(injected().iter().all(|count| *count > 0), "{:?}", softhca::fault_counts());
}

fn remote_side(rig: &Rig, right: &QueuePair, theirs: &Stream<SoftStream>, remote: Remote) {
    let receive = match remote {
        Remote::Nothing => {
            assert!(!theirs.query().unwrap(), "nothing ends its wait");
            assert_eq!(right.failure(), None);
            return right.abort().unwrap();
        }
        Remote::Event(kind) => {
            while !rig.pair.device.next_event(LONG).unwrap().unwrap().queue_pairs.contains(&right.number()) {}
            assert_eq!(right.failure(), Some(FailureCause::Event(kind)));
            Syndrome::WrFlush
        }
        Remote::Receive(syndrome) => syndrome,
    };
    synchronize(theirs);
    let error = poll(&right.recv_cq()).status.unwrap_err();
    assert_eq!(error.kind(), Some(receive));
    if receive != Syndrome::WrFlush {
        assert_eq!(right.failure(), Some(FailureCause::Work(error)));
    }
    assert_eq!(theirs.outstanding(), 0);
}

#[test]
fn what_a_network_does_to_packets_is_not_seen() {
    let Some(rig) = Rig::new("what_a_network_does_to_packets_is_not_seen") else { return };
    for plan in [
        "drop nth=2",
        "drop nth=3 dir=in",
        "drop nth=2 kind=ack",
        "duplicate every=2",
        "delay=3ms nth=2",
        "hold=3 nth=2",
    ] {
        inject(plan);
        rig.exchange(4);
        assert!(injected()[0] > 0, "{plan}");
        softhca::set_faults(None);
    }
}

#[test]
fn an_unreliable_connection_loses_what_is_lost_and_the_next_message_comes() {
    let config = QueuePairConfig::default().transport(Transport::Uc);
    let test = "an_unreliable_connection_loses_what_is_lost_and_the_next_message_comes";
    let Some(rig) = Rig::with(test, config) else { return };
    inject("drop nth=1 kind=send");
    let bytes = fill(&rig.source, 5);
    let (stream, receiver) = (soft(), soft());
    rig.pair.right.post_recv(&[rig.target.slice(..).unwrap()], 1).unwrap();
    receiver.post(Batch::new().wait(rig.pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
    for last in [false, true] {
        let send = rig.pair.left.prepare(WorkRequest::send(&rig.message())).unwrap();
        let sent = rig.pair.left.send_cq().prepare_wait().unwrap().checked().unwrap();
        let status = sent.status();
        stream.post(Batch::new().send(send).wait_checked(sent)).unwrap();
        synchronize(&stream);
        assert_eq!(status.get(), Some(Ok(())), "the sender is not told");
        if !last {
            assert_eq!(injected(), [1]);
            assert!(!receiver.query().unwrap(), "nor is the receiver");
        }
    }
    synchronize(&receiver);
    assert_eq!(poll(&rig.pair.right.recv_cq()).status, Ok(()));
    assert!(content(&rig.target) == bytes);
}

#[test]
fn a_receiver_that_becomes_ready_in_time_is_not_noticed() {
    let Some(rig) = Rig::new("a_receiver_that_becomes_ready_in_time_is_not_noticed") else { return };
    inject("rnr every=2 times=3");
    rig.exchange(6);
    assert_eq!(injected(), [3]);
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_retries() {
    let Some(rig) = Rig::new("a_receiver_that_is_never_ready_ends_the_retries") else { return };
    drain_and_reconnect_with(&rig.pair, options().rnr_retry(2));
    inject("rnr");
    fails(&rig, WorkRequest::send(&rig.message()), Syndrome::RnrRetryExceeded, Remote::Nothing);
    assert_eq!(injected(), [3], "the first time, and two more");
    rig.recover();
}

#[test]
fn packets_that_are_always_lost_end_the_retries() {
    let Some(rig) = Rig::new("packets_that_are_always_lost_end_the_retries") else { return };
    inject("drop kind=send");
    fails(&rig, WorkRequest::send(&rig.message()), Syndrome::RetryExceeded, Remote::Nothing);
    assert_eq!(injected(), [8], "the first time, and seven more");
    rig.recover();
}

#[test]
fn every_syndrome_of_the_requester_is_told() {
    let Some(rig) = Rig::new("every_syndrome_of_the_requester_is_told") else { return };
    for (word, syndrome) in [
        ("local-length", Syndrome::LocalLength),
        ("local-qp-operation", Syndrome::LocalQpOperation),
        ("local-protection", Syndrome::LocalProtection),
        ("remote-access", Syndrome::RemoteAccess),
        ("remote-invalid-request", Syndrome::RemoteInvalidRequest),
        ("remote-operation", Syndrome::RemoteOperation),
        ("retry-exceeded", Syndrome::RetryExceeded),
        ("rnr-retry-exceeded", Syndrome::RnrRetryExceeded),
        ("flush", Syndrome::WrFlush),
    ] {
        inject(&format!("fail={word} nth=1 kind=send"));
        fails(&rig, WorkRequest::send(&rig.message()), syndrome, Remote::Nothing);
        rig.recover();
    }
}

#[test]
fn every_refusal_of_the_responder_is_told_on_both_sides() {
    let Some(rig) = Rig::new("every_refusal_of_the_responder_is_told_on_both_sides") else { return };
    for (word, syndrome, event) in [
        ("remote-access", Syndrome::RemoteAccess, AsyncEventKind::QueuePairAccessError),
        ("remote-invalid-request", Syndrome::RemoteInvalidRequest, AsyncEventKind::QueuePairRequestError),
        ("remote-operation", Syndrome::RemoteOperation, AsyncEventKind::QueuePairFatal),
    ] {
        inject(&format!("fail={word} nth=1 dir=in"));
        fails(&rig, WorkRequest::send(&rig.message()), syndrome, Remote::Event(event));
        rig.recover();
    }
}

#[test]
fn a_late_completion_is_waited_for() {
    let Some(rig) = Rig::new("a_late_completion_is_waited_for") else { return };
    let late = Duration::from_millis(40);
    for plan in ["late=40ms dir=out nth=1", "late=40ms dir=in nth=1"] {
        inject(plan);
        let start = Instant::now();
        rig.exchange(3);
        // A lower bound that no busy machine can violate.
        assert!(start.elapsed() >= late, "{plan}");
        assert_eq!(injected(), [1], "{plan}");
    }
}

#[test]
fn a_failure_that_shows_later_than_what_it_flushed_is_the_cause_all_the_same() {
    let test = "a_failure_that_shows_later_than_what_it_flushed_is_the_cause_all_the_same";
    let Some(rig) = Rig::new(test) else { return };
    inject("fail=remote-access nth=1 kind=send; late=40ms dir=out");
    let left = &rig.pair.left;
    left.post_recv(&[], 1).unwrap();
    left.post_send(WorkRequest::send(&rig.message())).unwrap();
    assert!(poll(&left.recv_cq()).status.unwrap_err().is_flush());
    assert!(left.failure().is_some());
    let error = poll(&left.send_cq()).status.unwrap_err();
    assert_eq!(error.kind(), Some(Syndrome::RemoteAccess));
    assert_eq!(left.failure(), Some(FailureCause::Work(error)));
    rig.recover();
}

#[test]
fn memory_lost_under_the_card_fails_requests_that_name_it() {
    let Some(rig) = Rig::new("memory_lost_under_the_card_fails_requests_that_name_it") else { return };
    inject("gone access=local nth=1");
    fails(&rig, WorkRequest::send(&rig.message()), Syndrome::LocalProtection, Remote::Nothing);
    rig.recover();
    // The second access by one of the card's keys is the receive's.
    inject("gone access=local nth=2");
    let remote = Remote::Receive(Syndrome::LocalProtection);
    fails(&rig, WorkRequest::send(&rig.message()), Syndrome::RemoteOperation, remote);
    rig.recover();
    inject("gone access=remote nth=1");
    let write = rig.message();
    let remote = Remote::Event(AsyncEventKind::QueuePairAccessError);
    fails(&rig, WorkRequest::write(&write, rig.target.remote()), Syndrome::RemoteAccess, remote);
    rig.recover();
}

fn drain_and_reconnect_with(pair: &Pair, options: ConnectOptions) {
    for side in [&pair.left, &pair.right] {
        side.abort().unwrap();
        pair::drain(side);
    }
    let (left, right) = (pair.left.endpoint().unwrap(), pair.right.endpoint().unwrap());
    pair.left.reconnect(&right, options).unwrap();
    pair.right.reconnect(&left, options).unwrap();
}

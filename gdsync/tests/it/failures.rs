//! Failures as a program sees them. No stream may hang because a send failed.

use gdsync::memop::{Condition, StreamError};
use gdsync::memory::OutOfBounds;
use gdsync::queue::{FailureCause, OrderError, QueueFull, RequestError, StateError, Syndrome};
use gdsync::stream::{Cpu, PostFailure};
use gdsync::verbs::{OutOfRange, QueuePairError};
use gdsync::{
    Access, Batch, ConnectOptions, Error, MemoryRegion, ProtectionDomain, QueueError, QueuePairConfig,
    RemoteMemory, Stream, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, content, cpu, poll, ring, soft, synchronize};
use std::time::{Duration, Instant};

fn syndrome(pair: &Pair) -> Option<Syndrome> {
    poll(&pair.left.send_cq()).status.unwrap_err().kind()
}

#[test]
fn wrong_remote_keys_and_bounds_fail_the_queue_pair_and_flush_the_rest() {
    let wrong = |target: RemoteMemory| {
        [
            RemoteMemory { rkey: target.rkey ^ 0x100, ..target },
            RemoteMemory { addr: target.addr + 1, ..target },
            RemoteMemory { addr: 0, ..target },
        ]
    };
    for which in 0..3 {
        let pair = Pair::new();
        let (source, target) = (pair.region(4096), pair.region(4096));
        let slices = [source.slice(..).unwrap()];
        pair.left.post_recv(&slices, 77).unwrap();
        let sends = (0..3u64).map(|i| {
            let remote = if i == 1 { wrong(target.remote())[which] } else { target.remote() };
            pair.left.prepare(WorkRequest::write(&slices, remote).wr_id(i)).unwrap()
        });
        let batch = sends.collect::<Vec<_>>().into_iter().fold(Batch::new(), Batch::send);
        cpu().post(batch).unwrap();
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        let completion = poll(&pair.left.send_cq());
        assert_eq!(
            (completion.wr_id, completion.status.unwrap_err().kind()),
            (1, Some(Syndrome::RemoteAccess))
        );
        let completion = poll(&pair.left.send_cq());
        assert!(completion.wr_id == 2 && completion.status.unwrap_err().is_flush());
        let completion = poll(&pair.left.recv_cq());
        assert!(completion.wr_id == 77 && completion.status.unwrap_err().is_flush());
        assert!(
            matches!(pair.left.failure(), Some(FailureCause::Work(e)) if e.kind() == Some(Syndrome::RemoteAccess))
        );
        let error = pair.left.prepare(WorkRequest::send(&[])).unwrap_err();
        assert!(matches!(error, QueueError::State(StateError::Failed { .. })), "{error}");
        assert!(pair.left.post_recv(&[], 0).is_err());
    }
}

#[test]
fn what_the_card_would_refuse_locally_is_refused_before_it_is_asked() {
    let pair = Pair::new();
    let other = ProtectionDomain::new(&pair.device).unwrap();
    let foreign = MemoryRegion::allocate(&other, 64, Access::LOCAL_WRITE).unwrap();
    let slices = [foreign.slice(..).unwrap()];
    let error = pair.left.prepare(WorkRequest::send(&slices)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::WrongDomain { .. })), "{error}");
    assert!(matches!(
        pair.left.post_recv(&slices, 0),
        Err(QueueError::Request(RequestError::WrongDomain { .. }))
    ));
    let readonly = MemoryRegion::allocate(&pair.pd, 64, Access::empty()).unwrap();
    let slices = [readonly.slice(..).unwrap()];
    assert!(matches!(
        pair.left.post_recv(&slices, 0),
        Err(QueueError::Request(RequestError::NotWritable { .. }))
    ));
    let remote = pair.region(64).remote();
    assert!(matches!(
        pair.left.prepare(WorkRequest::read(&slices, remote)),
        Err(QueueError::Request(RequestError::NotWritable { .. }))
    ));
    assert!(matches!(readonly.slice(60..65), Err(OutOfBounds { start: 60, end: 65, len: 64 })));
    assert!(MemoryRegion::allocate(&pair.pd, 64, Access::REMOTE_WRITE).is_err(), "needs local write");
    let unconnected = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    assert!(matches!(
        unconnected.prepare(WorkRequest::send(&[])),
        Err(QueueError::State(StateError::NotConnected { .. }))
    ));
    let remote = pair.left.endpoint().unwrap();
    let mut options = ConnectOptions::default();
    options.retry_count = 8;
    assert!(matches!(
        unconnected.connect(&remote, options),
        Err(Error::OutOfRange(OutOfRange { what: "retry_count", .. }))
    ));
    assert!(matches!(
        pair.left.connect(&remote, ConnectOptions::default()),
        Err(Error::QueuePair(QueuePairError::State { .. }))
    ));
}

#[test]
fn a_full_send_queue_says_so_and_loses_nothing() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(4), ConnectOptions::default());
    let target = pair.region(8);
    let stream = cpu();
    let mut posted = 0;
    let error = loop {
        match pair.left.prepare(WorkRequest::write_inline(&[1], target.remote())) {
            Ok(send) => stream.post(Batch::new().send(send)).map(|_| posted += 1).unwrap(),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            error,
            QueueError::Full(QueueFull::SendQueue { .. })
                | QueueError::Full(QueueFull::CompletionQueue { .. })
        ),
        "{error}"
    );
    assert!(posted >= 4);
    (0..posted).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
    ring(pair.left.prepare(WorkRequest::write_inline(&[2], target.remote())).unwrap());
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target)[0], 2);
}

#[test]
fn a_full_receive_queue_says_so() {
    let pair = Pair::with(QueuePairConfig::default().recv_depth(4), ConnectOptions::default());
    let error = std::iter::repeat_with(|| pair.right.post_recv(&[], 0)).find_map(Result::err).unwrap();
    assert!(matches!(error, QueueError::Full(QueueFull::ReceiveQueue { .. })), "{error}");
}

#[test]
fn dropped_sends_are_taken_back_and_never_fire() {
    let pair = Pair::new();
    let target = pair.region(8);
    let byte = |i: usize| {
        let remote = target.remote().slice(i..i + 1).unwrap();
        pair.left.prepare(WorkRequest::write_inline(&[i as u8 + 1], remote).wr_id(i as u64)).unwrap()
    };
    drop(byte(0));
    let (one, two, three, four) = (byte(1), byte(2), byte(3), byte(4));
    drop(two);
    drop(four);
    cpu().post(Batch::new().send(one).send(three)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).wr_id, 1);
    assert_eq!(poll(&pair.left.send_cq()).wr_id, 3, "the NOP's completion is not told");
    assert_eq!(content(&target), [0, 2, 0, 4, 0, 0, 0, 0]);
    assert!(pair.left.send_cq().poll().unwrap().is_none());
}

#[test]
fn a_dropped_batch_takes_its_sends_back() {
    let pair = Pair::new();
    let target = pair.region(8);
    let sends = (0..5).map(|_| pair.left.prepare(WorkRequest::write_inline(&[9], target.remote())).unwrap());
    drop(sends.fold(Batch::new(), Batch::send));
    ring(pair.left.prepare(WorkRequest::write_inline(&[0, 5], target.remote())).unwrap());
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target)[..2], [0, 5]);
}

#[test]
fn a_wait_for_a_dropped_send_is_still_satisfied() {
    let pair = Pair::new();
    let target = pair.region(8);
    let dropped = pair.left.prepare(WorkRequest::write_inline(&[1], target.remote())).unwrap();
    let wait = pair.left.send_cq().prepare_wait().unwrap();
    drop(dropped);
    let next = pair.left.prepare(WorkRequest::write_inline(&[2], target.remote()).wr_id(2)).unwrap();
    let stream = soft();
    stream.post(Batch::new().send(next).wait(wait)).unwrap();
    synchronize(&stream);
    assert_eq!(poll(&pair.left.send_cq()).wr_id, 2);
}

#[test]
fn sends_posted_out_of_order_are_refused_and_nothing_is_lost() {
    if crate::lacks_order("sends_posted_out_of_order_are_refused_and_nothing_is_lost") {
        return;
    }
    let pair = Pair::new();
    let target = pair.region(8);
    let send = |value: u8| pair.left.prepare(WorkRequest::write_inline(&[value], target.remote())).unwrap();
    let (first, second) = (send(1), send(2));
    let stream = cpu();
    let error = stream.post(Batch::new().send(second)).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::Queue(QueueError::Order(OrderError::OutOfOrder { .. }))),
        "{error}"
    );
    assert_eq!((error.posted, error.batch.len()), (0, 1));
    let third = send(3);
    let alone = stream.post_send(third).unwrap_err();
    assert!(
        matches!(alone.source, PostFailure::Queue(QueueError::Order(OrderError::OutOfOrder { .. }))),
        "{alone}"
    );
    assert_eq!((alone.posted, alone.batch.len()), (0, 1));
    stream.post_send(first).unwrap();
    stream.post(error.batch).unwrap();
    stream.post(alone.batch).unwrap();
    (0..3).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
    assert_eq!(content(&target)[0], 3);
}

#[test]
fn one_queue_pair_is_on_one_stream_at_a_time() {
    let pair = Pair::new();
    let target = pair.region(8);
    let word = target.word32(4).unwrap();
    let send = |value: u8| pair.left.prepare(WorkRequest::write_inline(&[value], target.remote())).unwrap();
    let (blocked, other) = (soft(), soft());
    blocked.post(Batch::new().wait_value32(&word, Condition::Eq, 1).send(send(1))).unwrap();
    let error = other.post(Batch::new().send(send(2))).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::Queue(QueueError::Order(OrderError::OtherStream { .. }))),
        "{error}"
    );
    word.store(1);
    synchronize(&blocked);
    other.post(error.batch).unwrap();
    synchronize(&other);
    (0..2).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
    assert_eq!(content(&target)[0], 2);
}

#[test]
fn waits_that_nothing_would_satisfy_are_refused() {
    let pair = Pair::new();
    let region = pair.region(8);
    assert!(matches!(
        pair.left.recv_cq().prepare_wait(),
        Err(QueueError::Order(OrderError::NothingToWaitFor { waits: 0 }))
    ));
    pair.left.post_recv(&[region.slice(..).unwrap()], 0).unwrap();
    let first = pair.left.recv_cq().prepare_wait().unwrap();
    assert!(matches!(
        pair.left.recv_cq().prepare_wait(),
        Err(QueueError::Order(OrderError::NothingToWaitFor { waits: 1 }))
    ));
    let index = first.index();
    drop(first);
    assert_eq!(pair.left.recv_cq().prepare_wait().unwrap().index(), index, "the newest is given back");
    let unsignaled = pair.left.prepare(WorkRequest::send(&[]).unsignaled()).unwrap();
    assert!(pair.left.send_cq().prepare_wait().is_err(), "it has no completion");
    drop(unsignaled);
}

#[test]
fn entries_that_a_stream_has_to_see_are_not_recycled_under_it() {
    let pair = Pair::with(QueuePairConfig::default().recv_depth(4), ConnectOptions::default());
    let gate = pair.region(8);
    let word = gate.word32(0).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    let entries = pair.right.recv_cq().entries();
    let mut blocked = None;
    for _ in 0..2 * entries {
        if let Err(error) = pair.right.post_recv(&[], 0) {
            blocked = Some(error);
            break;
        }
        stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
        ring(pair.left.prepare(WorkRequest::send(&[])).unwrap());
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        // Polling is not gated: the CPU sees the completion long before the stream does.
        assert_eq!(poll(&pair.right.recv_cq()).status, Ok(()));
    }
    let blocked = blocked.expect("the stream holds entries");
    assert!(matches!(blocked, QueueError::Full(QueueFull::Stream(_))), "{blocked}");
    word.store(1);
    synchronize(&stream);
    pair.right.post_recv(&[], 0).unwrap();
}

#[test]
fn a_failed_send_wakes_the_stream_that_waits_for_it() {
    let pair = Pair::new();
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    let stream = soft();
    for _ in 0..2 {
        // The second fails because the first did: that wakes the stream, too.
        let Ok(send) = pair.left.prepare(WorkRequest::write_inline(&[1], bad)) else { break };
        let wait = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(wait)).unwrap();
    }
    synchronize(&stream);
    assert_eq!(syndrome(&pair), Some(Syndrome::RemoteAccess));
}

#[test]
fn abort_wakes_streams_that_wait_for_the_other_side() {
    let pair = Pair::new();
    let region = pair.region(8);
    let stream = soft();
    for i in 0..3 {
        pair.left.post_recv(&[region.slice(..).unwrap()], i).unwrap();
        stream.post(Batch::new().wait(pair.left.recv_cq().prepare_wait().unwrap())).unwrap();
    }
    // Prepared, awaited, never posted: it is rung now.
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    stream.post(Batch::new().wait(pair.left.send_cq().prepare_wait().unwrap())).unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap());
    pair.left.abort().unwrap();
    pair.left.abort().unwrap();
    synchronize(&stream);
    assert_eq!(pair.left.failure(), Some(FailureCause::Aborted));
    (0..3).for_each(|i| assert_eq!(poll(&pair.left.recv_cq()).wr_id, i));
    let error = stream.post(Batch::new().send(send)).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::Queue(QueueError::State(StateError::Failed { .. }))),
        "{error}"
    );
}

#[test]
fn dropping_everything_in_flight_hangs_nothing_and_frees_nothing_too_early() {
    let pair = Pair::new();
    let region = pair.region(1 << 20);
    let stream = soft();
    let slices = [region.slice(..).unwrap()];
    pair.left.post_recv(&slices, 0).unwrap();
    let arrival = pair.left.recv_cq().prepare_wait().unwrap();
    pair.right.post_recv(&slices, 0).unwrap();
    let send = pair.left.prepare(WorkRequest::send(&slices)).unwrap();
    stream.post(Batch::new().send(send).wait(arrival)).unwrap();
    drop(slices);
    drop(region);
    // No send will ever arrive: dropping the queue pair aborts it, which wakes the stream.
    drop(pair);
    synchronize(&stream);
}

#[test]
fn a_stream_may_be_dropped_before_its_work_is_done() {
    let pair = Pair::new();
    let target = pair.region(8);
    let (gate, done) = (target.word32(0).unwrap(), target.word32(4).unwrap());
    let stream = soft();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    pair.right.post_recv(&[], 3).unwrap();
    stream
        .post(Batch::new().wait_value32(&gate, Condition::Eq, 1).send(send).write_value32(&done, 1))
        .unwrap();
    drop(stream);
    gate.store(1);
    assert_eq!(poll(&pair.right.recv_cq()).wr_id, 3);
    let deadline = Instant::now() + LONG;
    while done.load() == 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn a_stream_takes_so_many_submissions_and_then_says_no() {
    let pair = Pair::new();
    let memory = pair.region(8);
    let word = memory.word32(0).unwrap();
    let stream = soft();
    let wait = || Batch::new().wait_value32(&word, Condition::Eq, 1);
    let mut posted = 0;
    let error = loop {
        match stream.post(wait()) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(posted, 1021);
    assert!(
        matches!(error.source, PostFailure::WouldBlock { outstanding: 1021, limit: 1021, .. }),
        "{error}"
    );
    assert_eq!(error.batch.len(), 1);
    let error = stream.post_timeout(error.batch, Duration::from_millis(10)).unwrap_err();
    assert!(matches!(error.source, PostFailure::WouldBlock { .. }) && error.batch.len() == 1);
    let send = pair.left.prepare(WorkRequest::write_inline(&[1], memory.remote())).unwrap();
    let alone = stream.post_send(send).unwrap_err();
    assert!(matches!(alone.source, PostFailure::WouldBlock { .. }) && alone.batch.len() == 1);
    // Given time, the same call finds room.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            word.store(1);
        });
        assert_eq!(stream.post_timeout(error.batch, LONG).unwrap().submissions, 1);
    });
    synchronize(&stream);
    stream.post(alone.batch).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

#[test]
fn the_wait_that_a_stream_hangs_at_is_named() {
    let pair = Pair::new();
    let stream = soft();
    assert_eq!(stream.oldest_wait(), None);
    for wr_id in 0..2 {
        pair.left.post_recv(&[], wr_id).unwrap();
    }
    let (first, second) =
        (pair.left.recv_cq().prepare_wait().unwrap(), pair.left.recv_cq().prepare_wait().unwrap());
    stream.post(Batch::new().wait(first).wait(second)).unwrap();
    let named = stream.oldest_wait().unwrap();
    assert!(
        named.contains("completion 0") && named.contains(&format!("{:#x}", pair.left.number())),
        "{named}"
    );
    pair.left.abort().unwrap();
    synchronize(&stream);
    assert_eq!(stream.oldest_wait(), None);
}

#[test]
fn a_failed_stream_aborts_what_it_was_given() {
    let pair = Pair::new();
    let memory = pair.region(8);
    let word = memory.word32(0).unwrap();
    let stream = Stream::new(Cpu::with_timeout(Duration::from_millis(10))).unwrap();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let batch = Batch::new().wait_value32(&word, Condition::Eq, 1).send(send);
    let error = stream.post(batch).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    assert_eq!((pair.left.failure(), error.batch.len()), (Some(FailureCause::Aborted), 2));
    let soft = soft();
    let send = pair.right.prepare(WorkRequest::send(&[])).unwrap();
    soft.post(Batch::new().wait_value32(&word, Condition::Eq, 1).send(send)).unwrap();
    soft.launch(|| panic!("a broken kernel")).unwrap();
    word.store(1);
    assert!(matches!(soft.synchronize(), Err(StreamError::Failed { .. })));
    assert!(soft.post(Batch::new().write_value32(&word, 2)).is_err());
}

#[test]
fn a_silent_peer_is_given_up() {
    let pair = Pair::new();
    let mut options = ConnectOptions::default();
    (options.timeout, options.retry_count) = (8, 2);
    let lonely = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    let deaf = pair::queue_pair(&pair.pd, QueuePairConfig::default()).unwrap();
    lonely.connect(&deaf.endpoint().unwrap(), options).unwrap();
    ring(lonely.prepare(WorkRequest::send(&[])).unwrap());
    let error = poll(&lonely.send_cq()).status.unwrap_err();
    assert_eq!(error.kind(), Some(Syndrome::RetryExceeded));
}

//! From failure to a new connection, with the same queue pairs: "Recovery" in `docs/failure-model.md`.

use gdsync::memop::Condition;
use gdsync::qp::ResetError;
use gdsync::queue::{OrderError, ResetBlocker, StateError, Syndrome};
use gdsync::stream::PostFailure;
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, ProtectionDomain, QueueError, QueuePairConfig, RemoteMemory,
    WorkRequest,
};
use gdsync_test_support::pair::{
    self, LONG, Pair, content, cpu, drain_and_reconnect, fill, poll, ring, soft, synchronize,
};

fn exchange(pair: &Pair, seed: usize) {
    let (source, target) = (pair.region(3000), pair.region(3000));
    let bytes = fill(&source, seed);
    pair.right.post_recv(&[target.slice(..).unwrap()], 7).unwrap();
    let slices = [source.slice(..).unwrap()];
    let send = pair.left.prepare(WorkRequest::send(&slices).wr_id(9)).unwrap();
    let (sent, arrived) =
        (pair.left.send_cq().prepare_wait().unwrap(), pair.right.recv_cq().prepare_wait().unwrap());
    let stream = soft();
    stream.post(Batch::new().send(send).wait(sent).wait(arrived)).unwrap();
    synchronize(&stream);
    assert_eq!(content(&target), bytes);
    let (sent, arrived) = (poll(&pair.left.send_cq()), poll(&pair.right.recv_cq()));
    assert_eq!((sent.wr_id, sent.status, arrived.wr_id, arrived.status), (9, Ok(()), 7, Ok(())));
}

#[test]
fn a_failed_pair_starts_anew_again_and_again() {
    // Few entries, so that rings and completion queues are at another position each time.
    let config = QueuePairConfig::default().send_depth(5).recv_depth(3);
    let pair = Pair::with(config, ConnectOptions::default());
    let numbers = [pair.left.number(), pair.right.number()];
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    for round in 0..20 {
        for turn in 0..round % 4 {
            exchange(&pair, round + turn);
        }
        let first = pair.left.endpoint().unwrap();
        pair.right.post_recv(&[], 1).unwrap();
        ring(pair.left.prepare(WorkRequest::write_inline(&[1], bad)).unwrap());
        let error = poll(&pair.left.send_cq()).status.unwrap_err();
        assert_eq!(error.kind(), Some(Syndrome::RemoteAccess));
        assert!(matches!(
            pair.left.prepare(WorkRequest::send(&[])),
            Err(QueueError::State(StateError::Failed { .. }))
        ));
        drain_and_reconnect(&pair);
        assert_ne!(pair.left.endpoint().unwrap().psn, first.psn, "old packets are not taken for new ones");
        exchange(&pair, 100 + round);
    }
    assert_eq!([pair.left.number(), pair.right.number()], numbers);
}

#[test]
fn the_event_of_a_former_connection_does_not_fail_the_next_one() {
    if !pair::events_of_queues("the_event_of_a_former_connection_does_not_fail_the_next_one") {
        return;
    }
    let pair = Pair::new();
    let bad = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    ring(pair.left.prepare(WorkRequest::write_inline(&[1], bad)).unwrap());
    assert!(poll(&pair.left.send_cq()).status.is_err());
    drain_and_reconnect(&pair);
    // The program reads it late. It tells of the remote side's former connection.
    while !pair.device.next_event(LONG).unwrap().unwrap().queue_pairs.contains(&pair.right.number()) {}
    assert_eq!(pair.right.failure(), None);
    exchange(&pair, 1);
}

#[test]
fn what_is_in_the_way_of_a_reset_is_named() {
    let pair = Pair::new();
    let target = pair.region(8);
    let blocker = || match pair.left.reset().unwrap_err() {
        ResetError::Blocked { qpn, blocker } if qpn == pair.left.number() => blocker,
        other => panic!("{other}"),
    };
    let word = target.word32(4).unwrap();
    let stream = soft();
    let send = pair.left.prepare(WorkRequest::write_inline(&[1], target.remote())).unwrap();
    assert_eq!(blocker(), ResetBlocker::Sends(1), "prepared, not posted");
    pair.left.post_recv(&[], 5).unwrap();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1).send(send)).unwrap();
    assert!(matches!(blocker(), ResetBlocker::Stream(_)), "a reset would have the stream ring for nothing");
    pair.left.abort().unwrap();
    assert!(matches!(blocker(), ResetBlocker::Stream(_)));
    word.store(1);
    synchronize(&stream);
    assert_eq!(blocker(), ResetBlocker::Sends(1));
    assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
    assert_eq!(blocker(), ResetBlocker::Receives(1));
    assert_eq!(poll(&pair.left.recv_cq()).wr_id, 5);
    pair.left.reset().unwrap();
    pair.left.reset().unwrap();
    assert!(matches!(
        pair.left.prepare(WorkRequest::send(&[])),
        Err(QueueError::State(StateError::NotConnected { .. }))
    ));
    assert_eq!(content(&target)[0], 0, "what was posted after the abort was flushed");
}

#[test]
fn a_send_prepared_before_a_reset_is_refused_after_it() {
    let pair = Pair::new();
    let stream = cpu();
    let target = pair.region(8);
    let prepare = || pair.left.prepare(WorkRequest::write_inline(&[1], target.remote())).unwrap();
    let (kept, dropped) = (prepare(), prepare());
    drain_and_reconnect(&pair);
    let fresh = pair.left.prepare(WorkRequest::write_inline(&[0, 2], target.remote())).unwrap();
    let error = stream.post_send(kept).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::Queue(QueueError::Order(OrderError::Stale { .. }))),
        "{error}"
    );
    drop((error, dropped));
    stream.post_send(fresh).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target)[..2], [0, 2]);
}

#[test]
fn waits_that_a_stream_has_not_come_to_survive_a_reset() {
    let pair = Pair::new();
    let gate = pair.region(8);
    let word = gate.word32(0).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    pair.right.post_recv(&[], 1).unwrap();
    stream.post(Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap())).unwrap();
    drain_and_reconnect(&pair);
    // The entry of the old connection stays in place until the stream has seen it.
    exchange(&pair, 3);
    assert!(!stream.synchronize_timeout(std::time::Duration::from_millis(5)).unwrap());
    word.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap());
}

#[test]
fn unsignaled_sends_that_are_done_do_not_stand_in_the_way() {
    let pair = Pair::new();
    let target = pair.region(8);
    for round in 1..4u8 {
        // Known to be done, as its effect is visible; no completion will ever report it.
        let remote = target.remote();
        pair.left.post_send(WorkRequest::write_inline(&[round], remote).unsignaled()).unwrap();
        let deadline = std::time::Instant::now() + LONG;
        while content(&target)[0] != round {
            assert!(std::time::Instant::now() < deadline, "the write does not arrive");
        }
        let error = pair.left.reset().unwrap_err();
        assert!(matches!(error, ResetError::Blocked { blocker: ResetBlocker::Sends(1), .. }), "{error}");
        drain_and_reconnect(&pair);
        // The first of a new life, and counted as such.
        pair.left.post_send(WorkRequest::write_inline(&[0], target.remote()).wr_id(5)).unwrap();
        let completion = poll(&pair.left.send_cq());
        assert_eq!((completion.wr_id, completion.status), (5, Ok(())));
        assert!(pair.left.send_cq().poll().unwrap().is_none());
    }
}

#[test]
fn a_datagram_queue_pair_is_ready_again_at_once() {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let config = QueuePairConfig::default().transport(Transport::Ud);
    let (left, right) = (pair::queue_pair(&pd, config).unwrap(), pair::queue_pair(&pd, config).unwrap());
    let target = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
    for _ in 0..3 {
        left.abort().unwrap();
        left.reset().unwrap();
        right.post_recv(&[target.slice(..).unwrap()], 1).unwrap();
        let there = left.address_handle(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        let request = WorkRequest::send_inline(b"again").to(&there, right.number(), config.qkey);
        left.post_send(request).unwrap();
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        assert_eq!(poll(&right.recv_cq()).status, Ok(()));
    }
}

#[test]
fn a_queue_pair_with_nothing_outstanding_moves_to_another_peer() {
    let (first, second) = (Pair::new(), Pair::new());
    exchange(&first, 1);
    first.left.reset().unwrap();
    second.right.reset().unwrap();
    let (left, right) = (first.left.endpoint().unwrap(), second.right.endpoint().unwrap());
    first.left.connect(&right, ConnectOptions::default()).unwrap();
    second.right.connect(&left, ConnectOptions::default()).unwrap();
    let target = second.region(8);
    ring(first.left.prepare(WorkRequest::write_inline(&[5], target.remote())).unwrap());
    assert_eq!(poll(&first.left.send_cq()).status, Ok(()));
    assert_eq!(content(&target)[0], 5);
}

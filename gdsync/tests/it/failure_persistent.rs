//! Persistent requests: prepared once, started many times on a stream.

use gdsync::memop::Condition;
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend};
use gdsync::queue::{QueueFull, RequestError, StateError, Status, Syndrome, WorkKind};
use gdsync::{Batch, ConnectOptions, QueueError, QueuePairConfig, WorkRequest};
use gdsync_test_support::pair::{LONG, Pair, content, drain_and_reconnect, poll, soft, synchronize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn a_request_is_started_again_and_again_on_a_stream_without_the_cpu() {
    let pair =
        Pair::with(QueuePairConfig::default().send_depth(64).recv_depth(64), ConnectOptions::default());
    let (source, target) = (pair.region(8), pair.region(8));
    let mut send = PersistentSend::send(&pair.left, &[source.slice(..).unwrap()]).unwrap();
    let mut recv = PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap();
    let (sender, receiver) = (soft(), soft());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let gate = pair.region(8).word32(0).unwrap();
    sender.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    receiver.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    for round in 0..20u8 {
        let memory = source.clone();
        sender.launch(move || assert_eq!(memory.write(0, &[round; 8]), 8)).unwrap();
        send.start(&sender).unwrap();
        send.wait_on(&sender).unwrap();
        recv.start(&receiver).unwrap();
        recv.wait_on(&receiver).unwrap();
        let (memory, seen) = (target.clone(), seen.clone());
        let status = recv.status().unwrap();
        receiver
            .launch(move || {
                assert_eq!(status.word().load(), Status::OK);
                // While the buffers are read, nothing may overwrite them.
                std::thread::yield_now();
                seen.lock().unwrap().push(content(&memory));
            })
            .unwrap();
    }
    gate.store(1);
    synchronize(&sender);
    synchronize(&receiver);
    let expected: Vec<_> = (0..20u8).map(|round| vec![round; 8]).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
    let (sent, received) = (send.complete(LONG).unwrap().unwrap(), recv.complete(LONG).unwrap().unwrap());
    assert_eq!((sent.status, sent.kind), (Ok(()), WorkKind::Send));
    assert_eq!((received.status, received.kind, received.byte_len), (Ok(()), WorkKind::Receive, 8));
    assert!(!send.is_active() && !recv.is_active());
}

#[test]
fn an_active_request_is_not_started() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(8));
    let (stream, other) = (soft(), soft());
    let mut send = PersistentSend::send(&pair.left, &[source.slice(..).unwrap()]).unwrap();
    assert!(matches!(send.wait_on(&stream), Err(PersistentError::Inactive)));
    assert!(matches!(send.complete(Duration::ZERO), Err(PersistentError::Inactive)));
    send.start(&stream).unwrap();
    assert!(send.is_active() && send.status().is_some());
    assert!(matches!(send.start(&stream), Err(PersistentError::Active)));
    send.wait_on(&stream).unwrap();
    assert!(
        matches!(send.start(&other), Err(PersistentError::Active)),
        "the other stream does not wait for it"
    );
    assert!(send.complete(Duration::from_millis(5)).unwrap().is_none(), "no receive is posted");
    pair.right.post_recv(&[target.slice(..).unwrap()], 1).unwrap();
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
    synchronize(&stream);
    assert!(!send.is_active() && send.status().is_none());
    // Dropped while active: started work continues.
    send.start(&other).unwrap();
    drop(send);
    drop(source);
    pair.right.post_recv(&[target.slice(..).unwrap()], 2).unwrap();
    assert_eq!((poll(&pair.right.recv_cq()).wr_id, poll(&pair.right.recv_cq()).wr_id), (1, 2));
    let mut recv = PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap();
    recv.start(&stream).unwrap();
    assert!(matches!(recv.start(&stream), Err(PersistentError::Active)));
    assert!(recv.is_active());
}

#[test]
fn an_error_in_the_middle_ends_the_rest_and_the_request_works_again_after_recovery() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(8));
    let stream = soft();
    let slices = [source.slice(..).unwrap()];
    let mut send = PersistentSend::send(&pair.left, &slices).unwrap();
    // The second receive is too short.
    pair.right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
    pair.right.post_recv(&[target.slice(..4).unwrap()], 1).unwrap();
    pair.right.post_recv(&[target.slice(..).unwrap()], 2).unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        match send.start(&stream) {
            Ok(()) => {
                send.wait_on(&stream).unwrap();
                outcomes.push(send.status().unwrap());
            }
            // The stream may have reached the failure already.
            Err(error) => {
                assert!(
                    matches!(error, PersistentError::Queue(QueueError::State(StateError::Failed { .. }))),
                    "{error}"
                )
            }
        }
    }
    synchronize(&stream);
    let kinds: Vec<_> = outcomes
        .iter()
        .map(|one| one.get().unwrap().err().and_then(gdsync::queue::WorkError::kind))
        .collect();
    assert_eq!(kinds[..2], [None, Some(Syndrome::RemoteInvalidRequest)]);
    assert!(kinds[2..].iter().all(|kind| *kind == Some(Syndrome::WrFlush)));
    let told = send.complete(LONG).unwrap().unwrap().status.unwrap_err();
    assert_eq!(told.kind(), Some(Syndrome::RemoteInvalidRequest), "the first failure");
    assert!(matches!(
        send.start(&stream),
        Err(PersistentError::Queue(QueueError::State(StateError::Failed { .. })))
    ));
    drain_and_reconnect(&pair);
    let mut recv = PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap();
    recv.start(&stream).unwrap();
    send.start(&stream).unwrap();
    assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
}

#[test]
fn a_failed_queue_pair_ends_receives_that_the_stream_has_not_come_to() {
    let pair = Pair::new();
    let target = pair.region(8);
    let gate = pair.region(8).word32(0).unwrap();
    let stream = soft();
    let mut recv = PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    recv.start(&stream).unwrap();
    recv.wait_on(&stream).unwrap();
    pair.right.abort().unwrap();
    assert!(recv.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    assert!(matches!(
        recv.start(&stream),
        Err(PersistentError::Queue(QueueError::State(StateError::Failed { .. })))
    ));
    gate.store(1);
    synchronize(&stream);
}

/// Only the drop can end the wait: its receive is not posted yet, and the handle for an abort is gone.
#[test]
fn a_queue_pair_dropped_before_the_stream_comes_to_a_start_is_aborted() {
    let pair = Pair::new();
    let target = pair.region(8);
    let gate = pair.region(8).word32(0).unwrap();
    let stream = soft();
    let mut recv = PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    recv.start(&stream).unwrap();
    recv.wait_on(&stream).unwrap();
    let status = recv.status().unwrap();
    drop(pair);
    gate.store(1);
    synchronize(&stream);
    assert!(status.get().unwrap().unwrap_err().is_flush());
    drop(recv);
}

#[test]
fn completions_of_others_stay_in_order_for_polling() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(16));
    let stream = soft();
    let slices = [source.slice(..).unwrap()];
    let mut write = PersistentSend::write(&pair.left, &slices, target.remote()).unwrap().immediate(5);
    for wr_id in 0..3 {
        pair.right.post_recv(&[], wr_id).unwrap();
        pair.left.post_send(WorkRequest::write(&slices, target.remote()).wr_id(10 + wr_id)).unwrap();
        write.start(&stream).unwrap();
        write.wait_on(&stream).unwrap();
        synchronize(&stream);
    }
    assert_eq!(write.complete(LONG).unwrap().unwrap().kind, WorkKind::RdmaWrite);
    for wr_id in 0..3 {
        assert_eq!(poll(&pair.left.send_cq()).wr_id, 10 + wr_id);
        assert_eq!(poll(&pair.right.recv_cq()).immediate, Some(5));
    }
    assert!(pair.left.send_cq().poll().unwrap().is_none());
}

#[test]
fn what_the_queue_pair_would_refuse_is_refused_at_the_beginning() {
    let (pair, other) = (Pair::new(), Pair::new());
    let foreign = [other.region(8).slice(..).unwrap()];
    assert!(matches!(
        PersistentSend::send(&pair.left, &foreign),
        Err(QueueError::Request(RequestError::WrongDomain { .. }))
    ));
    assert!(matches!(
        PersistentRecv::new(&pair.left, &foreign),
        Err(QueueError::Request(RequestError::WrongDomain { .. }))
    ));
    let own = pair.region(8);
    let many: Vec<_> = (0..40).map(|_| own.slice(..).unwrap()).collect();
    assert!(matches!(
        PersistentSend::send(&pair.left, &many),
        Err(QueueError::Request(RequestError::TooManySegments { .. }))
    ));
    assert!(matches!(
        PersistentRecv::new(&pair.left, &many),
        Err(QueueError::Request(RequestError::TooManySegments { .. }))
    ));
    // A full send queue is reported, and nothing was started.
    let small = Pair::with(QueuePairConfig::default().send_depth(2), ConnectOptions::default());
    let gate = small.region(8).word32(0).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    let target = small.region(8);
    let mut write =
        PersistentSend::write(&small.left, &[target.slice(..).unwrap()], target.remote()).unwrap();
    let mut started = 0;
    let error = loop {
        match write.start(&stream) {
            Ok(()) => started += 1,
            Err(error) => break error,
        }
        write.wait_on(&stream).unwrap();
    };
    assert!(
        matches!(
            error,
            PersistentError::Queue(
                QueueError::Full(QueueFull::SendQueue { .. })
                    | QueueError::Full(QueueFull::CompletionQueue { .. })
            )
        ),
        "{error}"
    );
    gate.store(1);
    assert!(started >= 2 && write.complete(LONG).unwrap().unwrap().status.is_ok());
}

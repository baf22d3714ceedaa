//! Failures of requests that are refused or not answered, and the recovery.

use super::*;
use gdsync::device::{DeviceQpError, DeviceQpOptions};
use gdsync::queue::{FailureCause, Syndrome, WorkError};
use gdsync::stream::Cpu;
use gdsync_test_support::pair::drain;

fn failed(queue_pair: &QueuePair) -> Option<Syndrome> {
    poll(&queue_pair.send_cq()).status.err().and_then(WorkError::kind)
}

/// The queue pair has failed, is reset, and sends to the target.
fn carry_on(queue_pair: &QueuePair, target: &Target) {
    assert!(matches!(queue_pair.failure(), Some(FailureCause::Work(_))), "{:?}", queue_pair.failure());
    let address = target.address(queue_pair);
    let refused = queue_pair.prepare(WorkRequest::send_inline(b"no").to_target(&address)).unwrap_err();
    assert!(matches!(refused, QueueError::State(StateError::Failed { .. })), "{refused}");
    drain(queue_pair);
    assert_eq!(queue_pair.failure(), None);
    target.post(0);
    queue_pair.post_send(WorkRequest::send_inline(&5u64.to_ne_bytes()).to_target(&address)).unwrap();
    assert_eq!(poll(&queue_pair.send_cq()).status, Ok(()));
    assert_eq!((poll(&target.dct.recv_cq()).status, target.slot(0)), (Ok(()), 5));
}

#[test]
fn a_wrong_key_fails_the_initiator_alone() {
    let bed = Bed::new();
    let (left, right, [target, other]) = (bed.initiator(), bed.initiator(), bed.targets());
    let endpoint = target.dct.endpoint().unwrap();
    let wrong = left.dc_address(&endpoint, KEY + 1, ConnectOptions::default()).unwrap();
    target.post(0);
    left.post_send(WorkRequest::send_inline(b"wrong").to_target(&wrong)).unwrap();
    let behind = other.address(&left);
    let written = WorkRequest::write_inline(b"behind", other.region.remote()).to_target(&behind);
    // May be refused: the failure may be known by now.
    let posted = left.post_send(written).is_ok();
    assert_eq!(failed(&left), Some(Syndrome::RemoteAccess));
    if posted {
        assert_eq!(failed(&left), Some(Syndrome::WrFlush));
    }
    assert_eq!((target.dct.failure(), target.receives.posted()), (None, 1));
    let address = target.address(&right);
    right.post_send(WorkRequest::send_inline(&7u64.to_ne_bytes()).to_target(&address)).unwrap();
    assert_eq!((poll(&target.dct.recv_cq()).status, target.slot(0)), (Ok(()), 7));
    carry_on(&left, &other);
    drain_one(&left, &target);
}

/// The same target again, after another target.
fn drain_one(queue_pair: &QueuePair, target: &Target) {
    let address = target.address(queue_pair);
    target.post(1);
    queue_pair.post_send(WorkRequest::send_inline(&6u64.to_ne_bytes()).to_target(&address)).unwrap();
    assert_eq!(poll(&queue_pair.send_cq()).status, Ok(()));
    assert_eq!((poll(&target.dct.recv_cq()).status, target.slot(1)), (Ok(()), 6));
}

#[test]
fn a_target_that_is_gone_is_given_up() {
    let bed = Bed::new();
    let (left, [gone, other]) = (bed.initiator(), bed.targets());
    let address = gone.address(&left);
    drop(gone);
    left.post_send(WorkRequest::send_inline(b"lost").to_target(&address)).unwrap();
    assert_eq!(failed(&left), Some(Syndrome::RetryExceeded));
    carry_on(&left, &other);
}

#[test]
fn what_a_target_refuses_costs_it_nothing() {
    let bed = Bed::new();
    let (left, [target]) = (bed.initiator(), bed.targets());
    let address = target.address(&left);
    let mut wrong = target.region.remote();
    wrong.rkey ^= 0x55;
    left.post_send(WorkRequest::write_inline(b"wrong", wrong).to_target(&address)).unwrap();
    assert_eq!(failed(&left), Some(Syndrome::RemoteAccess));
    carry_on(&left, &target);
    // A receive that is too short completes with an error, which a stream's wait sees first.
    target.receives.post_recv(&[target.region.slice(..4).unwrap()], 4).unwrap();
    let (stream, wait) = (soft(), target.dct.recv_cq().prepare_wait().unwrap().checked().unwrap());
    let status = wait.status();
    stream.post(Batch::new().wait_checked(wait)).unwrap();
    left.post_send(WorkRequest::send_inline(b"too long").to_target(&address)).unwrap();
    assert_eq!(failed(&left), Some(Syndrome::RemoteInvalidRequest));
    synchronize(&stream);
    assert_eq!(status.get().unwrap().err().and_then(WorkError::kind), Some(Syndrome::LocalLength));
    assert_eq!(target.dct.failure(), None);
    let refused = poll(&target.dct.recv_cq());
    assert_eq!((refused.wr_id, refused.qp_num), (4, target.dct.number()));
    assert_eq!(refused.status.err().and_then(WorkError::kind), Some(Syndrome::LocalLength));
    assert_eq!((target.dct.failure(), target.receives.posted()), (None, 0));
    carry_on(&left, &target);
}

#[test]
fn no_receive_is_a_failure_where_retries_are_few() {
    let bed = Bed::new();
    let (left, [target]) =
        (QueuePair::new(&bed.pd, config().connections(patience().rnr_retry(1))).unwrap(), bed.targets());
    let address = target.address(&left);
    left.post_send(WorkRequest::send_inline(b"early").to_target(&address)).unwrap();
    assert_eq!(failed(&left), Some(Syndrome::RnrRetryExceeded));
    carry_on(&left, &target);
}

#[test]
fn waits_for_receives_of_a_target_end_with_it() {
    let bed = Bed::new();
    for drops in [false, true] {
        let (stream, [target]) = (soft(), bed.targets());
        (0..3).for_each(|slot| target.post(slot));
        for _ in 0..3 {
            stream.post(Batch::new().wait(target.dct.recv_cq().prepare_wait().unwrap())).unwrap();
        }
        let left = bed.initiator();
        let address = target.address(&left);
        left.post_send(WorkRequest::send_inline(&1u64.to_ne_bytes()).to_target(&address)).unwrap();
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        if drops {
            let Target { dct, receives, .. } = target;
            drop(dct);
            synchronize(&stream);
            drop(receives);
        } else {
            target.dct.abort().unwrap();
            target.dct.abort().unwrap();
            synchronize(&stream);
            assert_eq!(target.dct.failure(), Some(FailureCause::Aborted));
            assert_eq!(target.dct.recv_cq().poll().unwrap(), None, "what had arrived is dropped");
            // Its receives are still those of the shared queue.
            let next = DcTarget::new(&bed.pd, &target.receives, DcTargetConfig::default()).unwrap();
            let address = left.dc_address(&next.endpoint().unwrap(), 0, ConnectOptions::default()).unwrap();
            left.post_send(WorkRequest::send_inline(&2u64.to_ne_bytes()).to_target(&address)).unwrap();
            let arrived = poll(&next.recv_cq());
            assert_eq!((arrived.wr_id, target.slot(1)), (1, 2));
        }
    }
}

#[test]
fn a_stream_passes_sends_that_fail() {
    let bed = Bed::new();
    let (left, stream, [target, other]) = (bed.initiator(), soft(), bed.targets());
    let (wrong, good) = (
        left.dc_address(&target.dct.endpoint().unwrap(), 1, ConnectOptions::default()).unwrap(),
        other.address(&left),
    );
    let remote = other.region.remote();
    let mut batch = Batch::new();
    for address in [&good, &wrong, &good] {
        batch = batch.send(left.prepare(WorkRequest::write_inline(b"w", remote).to_target(address)).unwrap());
    }
    for _ in 0..3 {
        batch = batch.wait(left.send_cq().prepare_wait().unwrap());
    }
    stream.post(batch).unwrap();
    synchronize(&stream);
    let ends: Vec<_> = (0..3).map(|_| poll(&left.send_cq()).status.err().and_then(WorkError::kind)).collect();
    assert_eq!(ends, [None, Some(Syndrome::RemoteAccess), Some(Syndrome::WrFlush)]);
    carry_on(&left, &other);
}

#[test]
fn what_was_only_prepared_at_a_failure_is_told_from_what_was_posted() {
    let bed = Bed::new();
    let (left, stream, [target, other]) = (bed.initiator(), soft(), bed.targets());
    let wrong = left.dc_address(&target.dct.endpoint().unwrap(), 1, ConnectOptions::default()).unwrap();
    let good = other.address(&left);
    let prepare = |address, wr_id| {
        let write = WorkRequest::write_inline(b"w", other.region.remote());
        left.prepare(write.to_target(address).wr_id(wr_id)).unwrap()
    };
    let batch = Batch::new().send(prepare(&wrong, 1)).send(prepare(&good, 2));
    let held = prepare(&good, 3);
    stream.post(batch).unwrap();
    synchronize(&stream);
    let ends = [(); 3].map(|()| poll(&left.send_cq())).map(|end| (end.wr_id, end.was_posted));
    assert_eq!(ends, [(1, true), (2, true), (3, false)]);
    assert_eq!(content(&other.region)[0], 0);
    drop(held);
    carry_on(&left, &other);
}

#[test]
fn kernels_are_refused() {
    let bed = Bed::new();
    let error = bed.initiator().attach_device(&Cpu::default(), &DeviceQpOptions::default()).unwrap_err();
    assert!(matches!(error, DeviceQpError::Transport { transport: Transport::Dc, .. }), "{error}");
    assert!(error.to_string().contains("make it with Transport::Rc"), "{error}");
}

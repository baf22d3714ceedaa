//! Dynamically connected transport: destinations, arrivals, and refusals.

mod failures;

use gdsync::advanced::{DevxError, QueueApi};
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend};
use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
use gdsync::queue::{RequestError, StateError, WorkKind};
use gdsync::verbs::{DcAddress, OutOfRange, QueuePairError, Transport};
use gdsync::{
    Access, Batch, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{LONG, content, device, fill, poll, ring, soft, synchronize};
use std::sync::atomic::Ordering;

const KEY: u64 = 0x1122_3344_5566_7788;

/// A short time-out for initiators.
fn patience() -> ConnectOptions {
    ConnectOptions::default().timeout(12).retry_count(3)
}

fn config() -> QueuePairConfig<'static> {
    QueuePairConfig::default().transport(Transport::Dc).connections(patience())
}

/// The domain of initiators and targets.
struct Bed {
    device: Device,
    pd: ProtectionDomain,
}

/// A target, with the memory that it serves.
struct Target {
    dct: DcTarget,
    receives: SharedReceiveQueue,
    region: MemoryRegion,
}

impl Bed {
    fn new() -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        Bed { device, pd }
    }

    fn initiator(&self) -> QueuePair {
        QueuePair::new(&self.pd, config()).unwrap()
    }

    fn region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::all()).unwrap()
    }

    fn target(&self, config: DcTargetConfig) -> Target {
        let receives = SharedReceiveQueue::new(&self.pd, 64).unwrap();
        let config = config.key(KEY).access(Access::all());
        let dct = DcTarget::new(&self.pd, &receives, config).unwrap();
        Target { dct, receives, region: self.region(1 << 16) }
    }

    fn targets<const N: usize>(&self) -> [Target; N] {
        std::array::from_fn(|_| self.target(DcTargetConfig::default()))
    }
}

impl Target {
    fn address(&self, from: &QueuePair) -> DcAddress {
        // As another process receives it.
        let endpoint = self.dct.endpoint().unwrap().to_string().parse().unwrap();
        from.dc_address(&endpoint, self.dct.key(), ConnectOptions::default()).unwrap()
    }

    fn post(&self, slot: usize) {
        let slice = self.region.slice(slot * 8..slot * 8 + 8).unwrap();
        self.receives.post_recv(&[slice], slot as u64).unwrap();
    }

    fn slot(&self, slot: usize) -> u64 {
        self.region.words64()[slot].load(Ordering::Acquire)
    }
}

#[test]
fn each_request_goes_to_the_target_that_it_names() {
    let bed = Bed::new();
    let (left, targets) = (bed.initiator(), bed.targets::<3>());
    let addresses = targets.each_ref().map(|target| target.address(&left));
    assert_eq!(left.transport(), Transport::Dc);
    assert_eq!((addresses[1].number(), addresses[1].key()), (targets[1].dct.number(), KEY));
    // Posted at once: the card switches from one target to the other.
    for round in 0..8usize {
        for (number, (target, address)) in targets.iter().zip(&addresses).enumerate() {
            target.post(round);
            let message = ((number + 1) * 1000 + round) as u64;
            let bytes = message.to_ne_bytes();
            let request = WorkRequest::send_inline(&bytes).wr_id(message).to_target(address);
            left.post_send(if round % 2 == 0 { request } else { request.immediate(7) }).unwrap();
        }
    }
    for round in 0..8u64 {
        (1..4).for_each(|number| assert_eq!(poll(&left.send_cq()).wr_id, number * 1000 + round));
    }
    for (number, target) in targets.iter().enumerate() {
        for round in 0..8usize {
            let arrived = poll(&target.dct.recv_cq());
            assert_eq!((arrived.wr_id, arrived.kind, arrived.byte_len), (round as u64, WorkKind::Receive, 8));
            assert_eq!((arrived.qp_num, arrived.source), (target.dct.number(), None));
            assert_eq!(arrived.immediate, (round % 2 == 1).then_some(7));
            assert_eq!(target.slot(round), ((number + 1) * 1000 + round) as u64);
        }
        assert_eq!((target.receives.posted(), target.dct.failure()), (0, None));
    }
}

#[test]
fn every_operation_of_a_connection_works_with_every_target() {
    let bed = Bed::new();
    let (left, targets) = (bed.initiator(), bed.targets::<2>());
    let (source, result) = (bed.region(50_000), bed.region(8));
    let (whole, place) = ([source.slice(..).unwrap()], result.slice(..).unwrap());
    for round in 0..4 {
        let target = &targets[round % 2];
        let (address, remote) = (target.address(&left), target.region.remote());
        let done = |request: WorkRequest<'_>| {
            ring(left.prepare(request.to_target(&address)).unwrap());
            let done = poll(&left.send_cq());
            assert_eq!(done.status, Ok(()));
            (done.kind, done.byte_len)
        };
        let sent = fill(&source, round);
        assert_eq!(done(WorkRequest::write(&whole, remote)), (WorkKind::RdmaWrite, 0));
        assert_eq!(content(&target.region)[..sent.len()], sent);
        source.write(0, &[0; 50_000]);
        assert_eq!(done(WorkRequest::read(&whole, remote)), (WorkKind::RdmaRead, 50_000));
        assert_eq!(content(&source), sent);
        done(WorkRequest::write_inline(&40u64.to_ne_bytes(), remote));
        assert_eq!(done(WorkRequest::fetch_add(&place, remote, 2)), (WorkKind::FetchAdd, 8));
        assert_eq!((result.words64()[0].load(Ordering::Acquire), target.slot(0)), (40, 42));
        assert_eq!(done(WorkRequest::compare_swap(&place, remote, 42, 9)), (WorkKind::CompareSwap, 8));
        assert_eq!((result.words64()[0].load(Ordering::Acquire), target.slot(0)), (42, 9));
        target.receives.post_recv(&[], 5).unwrap();
        done(WorkRequest::write_inline(b"imm", remote.slice(64..).unwrap()).immediate(77));
        let arrived = poll(&target.dct.recv_cq());
        assert_eq!((arrived.kind, arrived.immediate), (WorkKind::ReceiveRdmaWithImmediate, Some(77)));
    }
    // A request without a destination needs no target.
    left.post_send(WorkRequest::nop().fence().wr_id(9)).unwrap();
    assert_eq!(poll(&left.send_cq()).wr_id, 9);
}

#[test]
fn targets_share_receives() {
    let bed = Bed::new();
    let (left, right) = (bed.initiator(), bed.initiator());
    let receives = SharedReceiveQueue::new(&bed.pd, 8).unwrap();
    let config = DcTargetConfig::default();
    let targets = [1, 2].map(|key| DcTarget::new(&bed.pd, &receives, config.key(key)).unwrap());
    let region = bed.region(8);
    for round in 0..20u64 {
        let (from, target) = ([&left, &right][round as usize / 2 % 2], &targets[round as usize % 2]);
        receives.post_recv(&[region.slice(..).unwrap()], round).unwrap();
        let address =
            from.dc_address(&target.endpoint().unwrap(), target.key(), ConnectOptions::default()).unwrap();
        from.post_send(WorkRequest::send_inline(&round.to_ne_bytes()).to_target(&address)).unwrap();
        let arrived = poll(&target.recv_cq());
        assert_eq!((arrived.wr_id, arrived.qp_num), (round, target.number()));
        assert_eq!(region.words64()[0].load(Ordering::Acquire), round);
        assert_eq!(poll(&from.send_cq()).status, Ok(()));
    }
}

#[test]
fn streams_send_to_targets_and_wait_for_what_arrives() {
    let bed = Bed::new();
    let (left, targets) = (bed.initiator(), bed.targets::<2>());
    let addresses = targets.each_ref().map(|target| target.address(&left));
    let (sender, receiver) = (soft(), soft());
    for round in 0..100usize {
        let mut sends = Batch::new();
        for (target, address) in targets.iter().zip(&addresses) {
            target.post(round % 8);
            let message = (round as u64).to_ne_bytes();
            let send = left.prepare(WorkRequest::send_inline(&message).to_target(address)).unwrap();
            sends = sends.send(send);
            receiver.post(Batch::new().wait(target.dct.recv_cq().prepare_wait().unwrap())).unwrap();
            let region = target.region.clone();
            receiver
                .launch(move || {
                    assert_eq!(region.words64()[round % 8].load(Ordering::Acquire), round as u64);
                })
                .unwrap();
        }
        let done = [(); 2].map(|()| left.send_cq().prepare_wait().unwrap());
        sender.post(done.into_iter().fold(sends, Batch::wait)).unwrap();
        synchronize(&receiver);
        synchronize(&sender);
        (0..2).for_each(|_| assert_eq!(poll(&left.send_cq()).status, Ok(())));
        targets.iter().for_each(|target| assert_eq!(poll(&target.dct.recv_cq()).status, Ok(())));
    }
}

#[test]
fn a_send_behind_the_wait_that_only_it_ends_is_refused() {
    let bed = Bed::new();
    let (left, [target]) = (bed.initiator(), bed.targets());
    let (stream, address) = (soft(), target.address(&left));
    target.post(0);
    let send = left.prepare(WorkRequest::send_inline(b"late").to_target(&address)).unwrap();
    stream.post(Batch::new().wait(left.send_cq().prepare_wait().unwrap())).unwrap();
    let refused = stream.post_send(send).unwrap_err();
    assert!(refused.to_string().contains("follows, on the same stream, the wait"), "{refused}");
    drop(refused);
    left.abort().unwrap();
    synchronize(&stream);
}

#[test]
fn persistent_requests_go_to_their_target() {
    let bed = Bed::new();
    let (left, targets) = (bed.initiator(), bed.targets::<2>());
    let (stream, source) = (soft(), bed.region(8));
    let slices = [source.slice(..).unwrap()];
    let mut requests = targets.each_ref().map(|target| {
        let remote = target.region.remote().slice(32..40).unwrap();
        PersistentSend::write(&left, &slices, remote).unwrap().to_target(&target.address(&left))
    });
    let mut message =
        PersistentSend::send(&left, &slices).unwrap().immediate(3).to_target(&targets[1].address(&left));
    for round in 1..30u64 {
        source.words64()[0].store(round, Ordering::Release);
        targets[1].post(0);
        for request in requests.iter_mut().chain([&mut message]) {
            request.start(&stream).unwrap();
            request.wait_on(&stream).unwrap();
        }
        synchronize(&stream);
        for request in requests.iter_mut().chain([&mut message]) {
            assert_eq!(request.complete(LONG).unwrap().unwrap().status, Ok(()));
        }
        targets.iter().for_each(|target| assert_eq!(target.slot(4), round));
        assert_eq!((poll(&targets[1].dct.recv_cq()).immediate, targets[1].slot(0)), (Some(3), round));
    }
    let nowhere = PersistentSend::send(&left, &slices).unwrap().start(&stream).unwrap_err();
    let no_target = PersistentError::Queue(QueueError::Request(RequestError::NoTarget));
    assert_eq!(nowhere.to_string(), no_target.to_string());
    let refused = PersistentRecv::new(&left, &slices).unwrap_err();
    assert!(matches!(refused, QueueError::State(StateError::DcInitiatorCannotReceive { .. })), "{refused}");
}

#[test]
fn what_a_dc_queue_pair_cannot_do_is_refused_by_name() {
    let bed = Bed::new();
    let (left, [target]) = (bed.initiator(), bed.targets());
    let (address, endpoint) = (target.address(&left), target.dct.endpoint().unwrap());
    let options = ConnectOptions::default();
    let message = || WorkRequest::send_inline(b"to");
    let refused = |queue_pair: &QueuePair, request: WorkRequest<'_>| match queue_pair.prepare(request) {
        Err(QueueError::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&left, message()), RequestError::NoTarget);
    let ah = left.address_handle(&endpoint, options).unwrap();
    let operation = "an address of its own";
    let datagram = RequestError::NotOnTransport { operation, transport: Transport::Dc };
    assert_eq!(refused(&left, message().to(&ah, 1, 2)), datagram);
    assert!(datagram.to_string().contains("DC what has a target"));
    let connected =
        |transport| QueuePair::new(&bed.pd, QueuePairConfig::default().transport(transport)).unwrap();
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let other = connected(transport);
        if transport != Transport::Ud {
            other.connect(&other.endpoint().unwrap(), options).unwrap();
        }
        let error = RequestError::NotOnTransport { operation: "a DC target", transport };
        assert_eq!(refused(&other, message().to_target(&address)), error);
        let error = other.dc_address(&endpoint, 0, options).unwrap_err();
        assert!(
            matches!(error, Error::QueuePair(QueuePairError::NotAnInitiator { transport: named, .. }) if named == transport),
            "{error}"
        );
    }
    let error = left.connect(&endpoint, options).unwrap_err();
    assert!(error.to_string().contains("is DC, which is never connected"), "{error}");
    assert!(error.to_string().contains("WorkRequest::to_target"), "{error}");
    let error = left.post_recv(&[], 0).unwrap_err();
    assert!(matches!(error, QueueError::State(StateError::DcInitiatorCannotReceive { .. })), "{error}");
    // An address of another domain.
    let other = Bed { pd: ProtectionDomain::new(&bed.device).unwrap(), device: bed.device.clone() };
    let error = refused(&other.initiator(), message().to_target(&address));
    assert!(matches!(error, RequestError::OtherAddress { .. }), "{error}");
}

#[test]
fn configurations_that_dc_does_not_have_are_refused_by_name() {
    let bed = Bed::new();
    let [target] = bed.targets();
    let refused = |config: QueuePairConfig<'_>| QueuePair::new(&bed.pd, config).unwrap_err();
    let error = refused(config().shared_receive_queue(&target.receives));
    assert!(matches!(error, Error::QueuePair(QueuePairError::DcInitiatorCannotReceive)), "{error}");
    if bed.device.card_waits().unwrap().data {
        let trigger = Trigger::new(&bed.pd).unwrap();
        let error = refused(config().trigger(&trigger));
        assert!(matches!(error, Error::QueuePair(QueuePairError::NotTriggered)), "{error}");
    }
    let error = refused(config().queues(QueueApi::Devx));
    assert!(matches!(error, Error::Devx(DevxError::NoDc | DevxError::Unavailable { .. })), "{error}");
    let error = refused(config().connections(patience().retry_count(8)));
    assert!(matches!(error, Error::OutOfRange(OutOfRange { what: "retry_count", .. })), "{error}");
    let limited = DcTargetConfig::default().connections(patience().min_rnr_timer(32));
    let error = DcTarget::new(&bed.pd, &target.receives, limited).unwrap_err();
    assert!(matches!(error, Error::OutOfRange(OutOfRange { what: "min_rnr_timer", .. })), "{error}");
    let other = Bed::new();
    let error = DcTarget::new(&other.pd, &target.receives, DcTargetConfig::default()).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::OtherDevice { .. })), "{error}");
}

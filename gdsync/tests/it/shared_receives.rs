//! Shared receive queues: their users, the room for their receives, and the remains of a failed queue pair.

mod model;

use gdsync::advanced::{DevxError, QueueApi};
use gdsync::persistent::PersistentRecv;
use gdsync::qp::{ResetError, SharedReceiveQueue, SharedReceiveQueueConfig};
use gdsync::queue::{
    GRH_BYTES, OrderError, QueueFull, RequestError, ResetBlocker, StateError, Syndrome, WorkKind,
};
use gdsync::verbs::{AsyncEventKind, QueuePairError, Transport};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_test_support::pair::{LONG, content, device, poll, soft, synchronize};
use std::time::Duration;

/// A shared queue, with queue pairs that take from it, each connected to one that sends. They are made by verbs, as a
/// queue pair with a shared queue is.
struct Bed {
    device: Device,
    pd: ProtectionDomain,
    receives: SharedReceiveQueue,
    /// Slots of 8 bytes for receives.
    region: MemoryRegion,
}

struct Pair {
    taker: QueuePair,
    sender: QueuePair,
}

impl Bed {
    fn new(depth: u32) -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let receives = SharedReceiveQueue::new(&pd, depth).unwrap();
        let region = MemoryRegion::allocate(&pd, 8 * 256, Access::LOCAL_WRITE).unwrap();
        Bed { device, pd, receives, region }
    }

    fn queue(&self, entries: u32) -> CompletionQueue {
        CompletionQueue::new(&self.device, entries).unwrap()
    }

    fn taker(&self, queue: &CompletionQueue) -> Result<QueuePair, Error> {
        let config = QueuePairConfig::default().send_depth(4);
        let sends = self.queue(8);
        QueuePair::new(&self.pd, config.completion_queues(&sends, queue).shared_receive_queue(&self.receives))
    }

    fn pair(&self, queue: &CompletionQueue) -> Pair {
        let taker = self.taker(queue).unwrap();
        let sender = QueuePair::new(&self.pd, QueuePairConfig::default()).unwrap();
        let pair = Pair { taker, sender };
        pair.connect();
        pair
    }

    fn post(&self, slot: u64) -> Result<(), QueueError> {
        let at = slot as usize % 256 * 8;
        self.receives.post_recv(&[self.region.slice(at..at + 8).unwrap()], slot)
    }

    fn slot(&self, slot: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read(slot as usize % 256 * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl Pair {
    fn connect(&self) {
        let options = ConnectOptions::default;
        self.taker.connect(&self.sender.endpoint().unwrap(), options()).unwrap();
        self.sender.connect(&self.taker.endpoint().unwrap(), options()).unwrap();
    }

    fn send(&self, message: u64) {
        self.sender.post_send(WorkRequest::send_inline(&message.to_le_bytes())).unwrap();
        assert_eq!(poll(&self.sender.send_cq()).status, Ok(()));
    }

    /// Resets both sides, which have failed and are polled, and connects them again.
    fn renew(&self) {
        for side in [&self.taker, &self.sender] {
            while side.send_cq().poll().unwrap().is_some() {}
            side.reset().unwrap();
        }
        self.connect();
    }

    fn abort(&self) {
        self.taker.abort().unwrap();
        self.sender.abort().unwrap();
    }
}

#[test]
fn messages_of_all_queue_pairs_take_receives_in_their_order() {
    let bed = Bed::new(15);
    let queue = bed.queue(64);
    let pairs: Vec<_> = (0..4).map(|_| bed.pair(&queue)).collect();
    let mut next = 0;
    for round in 0..200u64 {
        while bed.receives.posted() < bed.receives.depth() {
            bed.post(next).unwrap();
            next += 1;
        }
        let sender = &pairs[(round * round % 4) as usize];
        sender.send(round * 3);
        let arrived = poll(&queue);
        assert_eq!((arrived.wr_id, arrived.qp_num), (round, sender.taker.number()));
        assert_eq!((arrived.kind, arrived.byte_len, arrived.status), (WorkKind::Receive, 8, Ok(())));
        assert_eq!(bed.slot(round), round * 3);
    }
    assert!(bed.receives.depth() >= 15 && bed.receives.number() != 0);
}

#[test]
fn receives_have_room_in_every_completion_queue() {
    let bed = Bed::new(63);
    // At least as many entries; the provider may have rounded up.
    let (small, large) = (bed.queue(8), bed.queue(64));
    let (room, depth) = (small.entries(), bed.receives.depth());
    assert!(room < depth);
    let (first, second) = (bed.pair(&small), bed.pair(&large));
    (0..room).for_each(|slot| bed.post(slot.into()).unwrap());
    let full = QueueError::Full(QueueFull::CompletionQueue { entries: room });
    assert_eq!(bed.post(0), Err(full.clone()));
    assert_eq!(bed.receives.posted(), room, "nothing was posted");

    // Each completes in one of them, and frees its place in both when it is polled.
    second.send(1);
    assert_eq!(bed.post(0), Err(full.clone()), "not polled");
    assert_eq!(poll(&large).wr_id, 0);
    bed.post(100).unwrap();
    assert_eq!(bed.post(0), Err(full));
    for _ in 0..room {
        first.send(2);
    }
    let seen: Vec<_> = (0..room).map(|_| poll(&small).wr_id).collect();
    assert_eq!(seen, (1..u64::from(room)).chain([100]).collect::<Vec<_>>());
    drop(first);
    (0..depth).for_each(|slot| bed.post(slot.into()).unwrap());
    assert_eq!(bed.post(0), Err(QueueError::Full(QueueFull::ReceiveQueue { capacity: depth })));

    let refused = bed.taker(&small).unwrap_err();
    let cqn = |error: &Error| match error {
        Error::QueuePair(QueuePairError::NoRoomForReceives { posted, .. }) => *posted,
        other => panic!("{other}"),
    };
    assert_eq!(cqn(&refused), depth);
    second.send(3);
    assert_eq!(poll(&large).status, Ok(()));
    bed.post(0).unwrap();
}

#[test]
fn a_queue_pairs_own_completion_queue_has_room_for_all_receives() {
    let bed = Bed::new(200);
    let config = QueuePairConfig::default().recv_depth(1).shared_receive_queue(&bed.receives);
    let taker = QueuePair::new(&bed.pd, config).unwrap();
    (0..bed.receives.depth()).for_each(|slot| bed.post(slot.into()).unwrap());
    taker.connect(&taker.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    for slot in 0..u64::from(bed.receives.depth()) {
        taker.post_send(WorkRequest::send_inline(&slot.to_le_bytes())).unwrap();
        assert_eq!((poll(&taker.send_cq()).status, poll(&taker.recv_cq()).wr_id), (Ok(()), slot));
    }
}

#[test]
fn streams_wait_for_as_many_receives_as_are_posted() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let pairs = [bed.pair(&queue), bed.pair(&queue)];
    let stream = soft();
    for round in 0..50u64 {
        let refused = queue.prepare_wait().unwrap_err();
        assert_eq!(refused, QueueError::Order(OrderError::NothingToWaitFor { waits: 0 }));
        (0..2).for_each(|slot| bed.post(slot).unwrap());
        let batch = Batch::new().wait(queue.prepare_wait().unwrap()).wait(queue.prepare_wait().unwrap());
        assert!(queue.prepare_wait().is_err(), "two are posted");
        stream.post(batch).unwrap();
        pairs[round as usize % 2].send(round);
        assert!(!stream.synchronize_timeout(Duration::ZERO).unwrap(), "one message more");
        pairs[round as usize / 2 % 2].send(round);
        synchronize(&stream);
        assert_eq!((poll(&queue).wr_id, poll(&queue).wr_id), (0, 1));
    }
}

#[test]
fn the_others_go_on_where_one_queue_pair_fails() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let [failing, other] = [bed.pair(&queue), bed.pair(&queue)];
    let stream = soft();
    (0..4).for_each(|slot| bed.post(slot).unwrap());
    stream.post(Batch::new().wait(queue.prepare_wait().unwrap())).unwrap();
    failing.abort();
    assert!(!stream.synchronize_timeout(Duration::from_millis(20)).unwrap(), "the other may still receive");
    other.send(7);
    synchronize(&stream);
    let arrived = poll(&queue);
    assert_eq!((arrived.wr_id, arrived.qp_num, bed.slot(0)), (0, other.taker.number(), 7));
    assert_eq!(bed.receives.posted(), 3, "the queue pair that failed has left them");
    failing.renew();
    failing.send(8);
    let arrived = poll(&queue);
    assert_eq!((arrived.wr_id, arrived.qp_num, bed.slot(1)), (1, failing.taker.number(), 8));
}

#[test]
fn a_message_that_does_not_fit_costs_one_receive() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let [failing, other] = [bed.pair(&queue), bed.pair(&queue)];
    (0..3).for_each(|slot| bed.post(slot).unwrap());
    failing.sender.post_send(WorkRequest::send_inline(&[1; 16])).unwrap();
    let failed = poll(&queue);
    assert_eq!((failed.wr_id, failed.qp_num), (0, failing.taker.number()));
    assert_eq!(failed.status.unwrap_err().kind(), Some(Syndrome::LocalLength));
    assert!(poll(&failing.sender.send_cq()).status.is_err());
    other.send(5);
    assert_eq!((poll(&queue).wr_id, bed.slot(1)), (1, 5));
    failing.renew();
    failing.send(6);
    assert_eq!((poll(&queue).wr_id, bed.slot(2)), (2, 6));
}

#[test]
fn waits_end_where_all_queue_pairs_have_failed() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let pairs = [bed.pair(&queue), bed.pair(&queue)];
    let [first, stream] = [soft(), soft()];
    for round in 0..4 {
        (0..3).for_each(|slot| bed.post(slot).unwrap());
        first.post(Batch::new().wait(queue.prepare_wait().unwrap())).unwrap();
        let waits = Batch::new().wait(queue.prepare_wait().unwrap());
        stream.post(waits.wait(queue.prepare_wait().unwrap())).unwrap();
        // One of the messages comes. A card may complete its send before its receive.
        pairs[round % 2].send(1);
        synchronize(&first);
        pairs.iter().for_each(Pair::abort);
        synchronize(&stream);
        assert!(pairs.iter().all(|pair| pair.taker.failure().is_some()));
        let blocked = pairs[round % 2].taker.reset().unwrap_err();
        assert!(
            matches!(blocked, ResetError::Blocked { blocker: ResetBlocker::Receives(1), .. }),
            "{blocked}"
        );
        assert_eq!(poll(&queue).status, Ok(()));
        pairs.iter().for_each(Pair::renew);
        // The ended waits do not take the completions that come now.
        stream.post(Batch::new().wait(queue.prepare_wait().unwrap())).unwrap();
        assert!(!stream.synchronize_timeout(Duration::from_millis(10)).unwrap(), "nothing has come");
        for pair in &pairs {
            pair.send(2);
            assert_eq!(poll(&queue).status, Ok(()));
        }
        synchronize(&stream);
        assert_eq!(bed.receives.posted(), 0);
    }
}

#[test]
fn waits_end_where_a_failure_is_polled() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let pair = bed.pair(&queue);
    let stream = soft();
    bed.post(0).unwrap();
    stream.post(Batch::new().wait(queue.prepare_wait().unwrap())).unwrap();
    // It fails by one of its sends: nothing flushes the receive.
    let mut nowhere = bed.region.remote();
    nowhere.rkey ^= 0x55;
    pair.taker.post_send(WorkRequest::write_inline(b"x", nowhere)).unwrap();
    assert!(poll(&pair.taker.send_cq()).status.is_err());
    synchronize(&stream);
    assert_eq!(bed.receives.posted(), 1);
}

#[test]
fn what_a_dropped_queue_pair_has_taken_is_free_again() {
    let bed = Bed::new(7);
    let depth = bed.receives.depth();
    let queue = bed.queue(64);
    for _ in 0..5 {
        let [gone, stays] = [bed.pair(&queue), bed.pair(&queue)];
        (0..depth).for_each(|slot| bed.post(slot.into()).unwrap());
        for message in 0..3 {
            gone.send(message);
        }
        stays.send(3);
        drop(gone);
        assert_eq!(bed.receives.posted(), depth - 3, "those of the dropped queue pair are free");
        assert_eq!(poll(&queue).wr_id, 3);
        for slot in 4..depth {
            stays.send(9);
            assert_eq!(poll(&queue).wr_id, u64::from(slot));
        }
        assert_eq!((queue.poll().unwrap(), bed.receives.posted()), (None, 0));
    }
}

#[test]
fn the_queue_lives_as_long_as_its_queue_pairs() {
    let bed = Bed::new(4);
    let queue = bed.queue(64);
    let pair = bed.pair(&queue);
    bed.post(0).unwrap();
    let Bed { receives, region, .. } = bed;
    drop((receives, queue));
    pair.send(11);
    assert_eq!(poll(&pair.taker.recv_cq()).wr_id, 0);
    assert_eq!(content(&region)[0], 11);
}

#[test]
fn the_card_tells_when_a_queue_pair_takes_no_more() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let pair = bed.pair(&queue);
    bed.post(0).unwrap();
    pair.taker.abort().unwrap();
    let event = bed.device.next_event(LONG).unwrap().expect("it takes no more");
    assert_eq!((event.kind, event.queue_pairs), (AsyncEventKind::LastReceive, vec![pair.taker.number()]));
}

#[test]
fn datagrams_take_from_a_shared_queue_too() {
    let bed = Bed::new(16);
    let queue = bed.queue(64);
    let config = QueuePairConfig::default().transport(Transport::Ud);
    let makes = config.completion_queues(&queue, &queue).shared_receive_queue(&bed.receives);
    let takers = [(); 2].map(|()| QueuePair::new(&bed.pd, makes).unwrap());
    let sender = QueuePair::new(&bed.pd, config).unwrap();
    for (slot, taker) in takers.iter().cycle().take(10).enumerate() {
        let at = slot * 64;
        bed.receives.post_recv(&[bed.region.slice(at..at + 64).unwrap()], slot as u64).unwrap();
        let remote = taker.endpoint().unwrap();
        let handle = sender.address_handle(&remote, ConnectOptions::default()).unwrap();
        let bytes = [slot as u8; 8];
        let request = WorkRequest::send_inline(&bytes).to(&handle, remote.qpn, 0x1111_1111);
        sender.post_send(request).unwrap();
        let arrived = poll(&queue);
        assert_eq!((arrived.wr_id, arrived.qp_num), (slot as u64, taker.number()));
        assert_eq!(arrived.byte_len as usize, GRH_BYTES + 8);
        assert_eq!(content(&bed.region)[at + GRH_BYTES], slot as u8);
        assert_eq!(poll(&sender.send_cq()).status, Ok(()));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let bed = Bed::new(4);
    let queue = bed.queue(64);
    let pair = bed.pair(&queue);
    let slices = [bed.region.slice(..8).unwrap()];
    let own = StateError::SharedReceives { qpn: pair.taker.number() };
    assert_eq!(pair.taker.post_recv(&slices, 0), Err(QueueError::State(own.clone())));
    assert_eq!(PersistentRecv::new(&pair.taker, &slices).unwrap_err(), QueueError::State(own));

    let other = ProtectionDomain::new(&bed.device).unwrap();
    let stranger = MemoryRegion::allocate(&other, 8, Access::LOCAL_WRITE).unwrap();
    let refused = bed.receives.post_recv(&[stranger.slice(..).unwrap()], 0);
    assert!(matches!(refused, Err(QueueError::Request(RequestError::OtherDomain { .. }))), "{refused:?}");
    let read_only = MemoryRegion::allocate(&bed.pd, 8, Access::empty()).unwrap();
    let refused = bed.receives.post_recv(&[read_only.slice(..).unwrap()], 0);
    assert!(matches!(refused, Err(QueueError::Request(RequestError::NotWritable { .. }))), "{refused:?}");
    let many: Vec<_> = (0..64).map(|_| slices[0].clone()).collect();
    let refused = bed.receives.post_recv(&many, 0);
    assert!(matches!(refused, Err(QueueError::Request(RequestError::TooManySegments { .. }))), "{refused:?}");
    assert_eq!(bed.receives.posted(), 0);

    let config = QueuePairConfig::default().shared_receive_queue(&bed.receives);
    let made = QueuePair::new(&bed.pd, config.queues(QueueApi::Devx));
    let expected =
        |error: &DevxError| matches!(error, DevxError::NoSharedReceives | DevxError::Unavailable { .. });
    assert!(matches!(&made, Err(Error::Devx(error)) if expected(error)), "{made:?}");
    let elsewhere = ProtectionDomain::new(&device()).unwrap();
    let made = QueuePair::new(&elsewhere, config);
    assert!(matches!(made, Err(Error::QueuePair(QueuePairError::OtherDevice { .. }))), "{made:?}");
    let made = SharedReceiveQueue::new(&bed.pd, SharedReceiveQueueConfig::default().depth(u32::MAX));
    assert!(matches!(made, Err(Error::Verbs { call: "ibv_create_srq", .. })), "{made:?}");
}

//! Completion queues that several queue pairs, or both directions of one, share: attribution of completions, wake-ups
//! of waits, leftovers.

use gdsync::queue::{OrderError, QueueFull, Syndrome, WorkKind};
use gdsync::verbs::QueuePairError;
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain,
    QueueError, QueuePair, QueuePairConfig, RemoteMemory, WorkRequest,
};
use gdsync_test_support::pair::{self, content, cpu, device, poll, soft, synchronize};

/// Connected pairs that all complete in one queue, sends and receives.
struct Crowd {
    device: Device,
    pd: ProtectionDomain,
    queue: CompletionQueue,
    pairs: Vec<(QueuePair, QueuePair)>,
}

impl Crowd {
    fn new(pairs: usize, entries: u32) -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let queue = pair::completion_queue(&device, entries).unwrap();
        let mut crowd = Crowd { device, pd, queue, pairs: Vec::new() };
        crowd.pairs = (0..pairs).map(|_| crowd.pair()).collect();
        crowd
    }

    fn pair(&self) -> (QueuePair, QueuePair) {
        let config = QueuePairConfig::default().send_depth(16).recv_depth(16);
        let new = || pair::sharing(&self.pd, config, &self.queue, &self.queue).unwrap();
        let (left, right) = (new(), new());
        left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        (left, right)
    }

    fn region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::all()).unwrap()
    }
}

#[test]
fn every_completion_carries_its_queue_pair() {
    let crowd = Crowd::new(4, 256);
    let target = crowd.region(4 * 8);
    for round in 0..200u64 {
        for (i, (left, right)) in crowd.pairs.iter().enumerate() {
            right.post_recv(&[target.slice(i * 8..i * 8 + 8).unwrap()], round).unwrap();
            left.post_send(WorkRequest::send_inline(&(round + i as u64).to_le_bytes()).wr_id(round)).unwrap();
        }
        let mut seen: Vec<(u32, WorkKind)> = (0..8)
            .map(|_| {
                let completion = poll(&crowd.queue);
                assert_eq!((completion.status, completion.wr_id), (Ok(()), round));
                (completion.qp_num, completion.kind)
            })
            .collect();
        let sides = crowd
            .pairs
            .iter()
            .flat_map(|(left, right)| [(left.number(), WorkKind::Send), (right.number(), WorkKind::Receive)]);
        let mut expected: Vec<_> = sides.collect();
        seen.sort_by_key(|(number, _)| *number);
        expected.sort_by_key(|(number, _)| *number);
        assert_eq!(seen, expected);
        let arrived: Vec<u8> = (0..4).flat_map(|i| (round + i).to_le_bytes()).collect();
        assert_eq!(content(&target), arrived);
    }
}

#[test]
fn as_many_waits_as_completions_are_over_together() {
    let crowd = Crowd::new(3, 64);
    let stream = soft();
    for round in 0..100u64 {
        let mut batch = Batch::new();
        for (left, right) in &crowd.pairs {
            right.post_recv(&[], round).unwrap();
            batch = batch.send(left.prepare(WorkRequest::send(&[]).wr_id(round)).unwrap());
        }
        for _ in 0..6 {
            batch = batch.wait(crowd.queue.prepare_wait().unwrap());
        }
        let error = crowd.queue.prepare_wait().unwrap_err();
        assert!(matches!(error, QueueError::Order(OrderError::NothingToWaitFor { waits: 6 })), "{error}");
        stream.post(batch).unwrap();
        synchronize(&stream);
        // All are there, without waiting.
        for _ in 0..6 {
            let completion = crowd.queue.poll().unwrap().unwrap();
            assert_eq!((completion.wr_id, completion.status), (round, Ok(())));
        }
    }
}

#[test]
fn the_error_of_one_queue_pair_wakes_and_the_others_go_on() {
    let crowd = Crowd::new(3, 128);
    let (stream, target) = (soft(), crowd.region(8));
    let bad = RemoteMemory { rkey: target.rkey() ^ 0x100, ..target.remote() };
    let sends = crowd.pairs.iter().enumerate().map(|(i, (left, _))| {
        let remote = if i == 1 { bad } else { target.remote() };
        left.prepare(WorkRequest::write_inline(b"whatever", remote).wr_id(i as u64)).unwrap()
    });
    let mut batch = sends.fold(Batch::new(), Batch::send);
    for _ in 0..3 {
        batch = batch.wait(crowd.queue.prepare_wait().unwrap());
    }
    stream.post(batch).unwrap();
    synchronize(&stream);
    for _ in 0..3 {
        let completion = poll(&crowd.queue);
        let expected = (completion.wr_id == 1).then_some(Syndrome::RemoteAccess);
        assert_eq!(completion.status.err().and_then(|error| error.kind()), expected);
        assert_eq!(completion.qp_num, crowd.pairs[completion.wr_id as usize].0.number());
    }
    assert!(crowd.pairs[1].0.failure().is_some());
    for i in [0, 2] {
        assert!(crowd.pairs[i].0.failure().is_none());
        crowd.pairs[i].0.post_send(WorkRequest::write_inline(b"on", target.remote())).unwrap();
        assert_eq!(poll(&crowd.queue).status, Ok(()));
    }
}

#[test]
fn a_wait_for_any_queue_pair_that_fails_wakes() {
    for which in 0..3 {
        let crowd = Crowd::new(3, 128);
        let stream = soft();
        // Receives that stay empty: six waits count on them.
        for (left, right) in &crowd.pairs {
            left.post_recv(&[], 0).unwrap();
            right.post_recv(&[], 0).unwrap();
        }
        stream.post(Batch::new().wait(crowd.queue.prepare_wait().unwrap())).unwrap();
        assert!(!stream.synchronize_timeout(std::time::Duration::from_millis(10)).unwrap());
        crowd.pairs[which].0.abort().unwrap();
        synchronize(&stream);
        let completion = poll(&crowd.queue);
        assert!(completion.status.unwrap_err().is_flush());
        assert_eq!(completion.qp_num, crowd.pairs[which].0.number());
    }
}

#[test]
fn a_wait_keeps_what_it_counts_on_and_wakes_though_the_program_has_dropped_it() {
    let crowd = Crowd::new(1, 64);
    let (left, right) = crowd.pair();
    right.post_recv(&[], 3).unwrap();
    let wait = crowd.queue.prepare_wait().unwrap();
    drop((left, right));
    let stream = soft();
    stream.post(Batch::new().wait(wait)).unwrap();
    synchronize(&stream);
    let (left, right) = &crowd.pairs[0];
    right.post_recv(&[], 8).unwrap();
    left.post_send(WorkRequest::send(&[]).wr_id(7)).unwrap();
    let mut numbers = [(); 2].map(|()| poll(&crowd.queue).wr_id);
    numbers.sort_unstable();
    assert_eq!(numbers, [7, 8]);
}

/// A wait that another object holds keeps a dropped queue pair: the card still flushes its work into the shared queue.
#[test]
fn polling_returns_nothing_of_a_queue_pair_that_was_dropped() {
    for polled_before in [false, true] {
        let crowd = Crowd::new(1, 64);
        let (dropped, other) = crowd.pair();
        dropped.post_recv(&[], 1).unwrap();
        dropped.post_recv(&[], 2).unwrap();
        let wait = crowd.queue.prepare_wait().unwrap();
        if polled_before {
            // Some of the flushed entries are polled, and the rest stay in the queue.
            dropped.abort().unwrap();
            assert_eq!(poll(&crowd.queue).wr_id, 1);
        }
        drop((dropped, other));
        let (left, right) = &crowd.pairs[0];
        for round in 0..20 {
            right.post_recv(&[], 7).unwrap();
            left.post_send(WorkRequest::send(&[]).wr_id(8)).unwrap();
            let mut numbers = [(); 2].map(|()| poll(&crowd.queue).wr_id);
            numbers.sort_unstable();
            assert_eq!(numbers, [7, 8], "round {round}");
        }
        drop(wait);
        assert!(crowd.queue.poll().unwrap().is_none());
    }
}

#[test]
fn queue_pairs_come_and_go_and_the_queue_stays_usable() {
    let crowd = Crowd::new(1, 64);
    let target = crowd.region(8);
    // Each round leaves completions that the test does not poll, and outstanding work. The card may reuse a queue
    // pair's number.
    for round in 0..300u64 {
        let (left, right) = crowd.pair();
        right.post_recv(&[], 1000).unwrap();
        right.post_recv(&[], 1001).unwrap();
        left.post_send(WorkRequest::write_inline(b"unpolled", target.remote()).wr_id(2000)).unwrap();
        left.post_send(WorkRequest::send(&[]).wr_id(2001).unsignaled()).unwrap();
        drop((left, right));
        let (left, right) = &crowd.pairs[0];
        right.post_recv(&[], round).unwrap();
        left.post_send(WorkRequest::send(&[]).wr_id(round)).unwrap();
        for _ in 0..2 {
            let completion = poll(&crowd.queue);
            assert_eq!((completion.wr_id, completion.status), (round, Ok(())));
        }
        assert!(crowd.queue.poll().unwrap().is_none());
        let error = crowd.queue.prepare_wait().unwrap_err();
        assert!(matches!(error, QueueError::Order(OrderError::NothingToWaitFor { waits: 0 })), "{error}");
    }
}

#[test]
fn a_full_shared_queue_is_refused_whichever_queue_pair_filled_it() {
    let crowd = Crowd::new(2, 16);
    let target = crowd.region(8);
    let entries = crowd.queue.entries();
    let mut posted = 0;
    let error = loop {
        let (left, _) = &crowd.pairs[posted % 2];
        match left.post_send(WorkRequest::write_inline(b"x", target.remote())) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, QueueError::Full(QueueFull::CompletionQueue { .. })), "{error}");
    assert_eq!(posted as u32, entries);
    assert!(crowd.pairs[1].1.post_recv(&[], 0).is_err());
    (0..posted).for_each(|_| assert_eq!(poll(&crowd.queue).status, Ok(())));
    crowd.pairs[0].0.post_send(WorkRequest::write_inline(b"x", target.remote())).unwrap();
    assert_eq!(poll(&crowd.queue).status, Ok(()));
}

#[test]
fn queues_of_two_queue_pairs_may_be_crossed() {
    let crowd = Crowd::new(0, 64);
    let other = pair::completion_queue(&crowd.device, 64).unwrap();
    let target = crowd.region(8);
    std::thread::scope(|scope| {
        for crossed in [false, true] {
            let (crowd, other, target) = (&crowd, &other, &target);
            scope.spawn(move || {
                for _ in 0..50 {
                    let (first, second) = if crossed { (other, &crowd.queue) } else { (&crowd.queue, other) };
                    let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
                    let pair = pair::sharing(&crowd.pd, config, first, second).unwrap();
                    pair.connect(&pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
                    pair.post_recv(&[], 0).unwrap();
                    cpu()
                        .post_send(pair.prepare(WorkRequest::write_inline(b"x", target.remote())).unwrap())
                        .unwrap();
                    let _ = (first.poll().unwrap(), second.poll().unwrap());
                }
            });
        }
    });
    for queue in [&crowd.queue, &other] {
        while queue.poll().unwrap().is_some() {}
        assert!(matches!(
            queue.prepare_wait(),
            Err(QueueError::Order(OrderError::NothingToWaitFor { waits: 0 }))
        ));
    }
}

#[test]
fn a_queue_of_another_device_is_refused() {
    let (crowd, other) = (Crowd::new(0, 8), Crowd::new(0, 8));
    let refused = pair::sharing(&crowd.pd, QueuePairConfig::default(), &crowd.queue, &other.queue);
    assert!(matches!(refused, Err(Error::QueuePair(QueuePairError::OtherDevice { .. }))));
    assert!(pair::completion_queue(&crowd.device, u32::MAX).is_err());
    assert!(matches!(
        crowd.queue.prepare_wait(),
        Err(QueueError::Order(OrderError::NothingToWaitFor { .. }))
    ));
}

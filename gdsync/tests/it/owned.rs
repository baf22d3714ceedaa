//! Queue pairs with one owner: what the shared ones do, and what only these refuse.

use gdsync::memop::Condition;
use gdsync::persistent::{PersistentError, PersistentSend};
use gdsync::qp::{OwnedQueuePair, OwnerBlocker, ResetError, Trigger};
use gdsync::queue::{FailureCause, OrderError, QueueFull, RequestError, ResetBlocker, StateError, Syndrome};
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, MemoryRegion, MemoryWindow, ProtectionDomain, QueueError,
    QueuePair, QueuePairConfig, RemoteMemory, WindowAccess, WorkRequest,
};
use gdsync_test_support::OnDrop;
use gdsync_test_support::pair::{self, LONG, Pair, content, drain, fill, poll, soft, synchronize};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A pair of which the left side has one owner.
struct Bed {
    pd: ProtectionDomain,
    left: OwnedQueuePair,
    right: QueuePair,
}

impl Bed {
    fn with(config: QueuePairConfig<'_>) -> Bed {
        let Pair { pd, left, right, .. } = Pair::with(config, ConnectOptions::default());
        Bed { pd, left: left.into_owned().unwrap(), right }
    }

    fn new() -> Bed {
        Bed::with(QueuePairConfig::default().access(Access::all()))
    }

    fn region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::all()).unwrap()
    }

    /// A message from left to right.
    fn exchange(&mut self, seed: usize) {
        let (source, target) = (self.region(300), self.region(300));
        let bytes = fill(&source, seed);
        self.right.post_recv(&[target.slice(..).unwrap()], 7).unwrap();
        self.left.post_send(WorkRequest::send(&[source.slice(..).unwrap()]).wr_id(9)).unwrap();
        let (sent, arrived) = (poll(&self.left.send_cq()), poll(&self.right.recv_cq()));
        assert_eq!((sent.wr_id, sent.status, arrived.wr_id, arrived.status), (9, Ok(()), 7, Ok(())));
        assert_eq!(content(&target), bytes);
    }
}

/// Remote memory that is nobody's.
const BAD: RemoteMemory = RemoteMemory { addr: 0, len: 8, rkey: 1 };

#[test]
fn requests_of_every_size_arrive_in_their_order_as_rings_wrap() {
    let mut bed = Bed::with(
        QueuePairConfig::default().send_depth(6).send_segments(5).inline(100).access(Access::all()),
    );
    let (source, target) = (bed.region(1000), bed.region(1000));
    let bytes = fill(&source, 3);
    for round in 0..400usize {
        let parts = round % 6;
        let slices: Vec<_> =
            (0..parts).map(|i| source.slice(i * 150..i * 150 + 10 + round % 7).unwrap()).collect();
        let mut expected: Vec<u8> =
            (0..parts).flat_map(|i| bytes[i * 150..i * 150 + 10 + round % 7].to_vec()).collect();
        let request = if parts == 0 {
            expected = bytes[..round % 101].to_vec();
            WorkRequest::write_inline(&bytes[..round % 101], target.remote())
        } else {
            WorkRequest::write(&slices, target.remote())
        };
        let request = if round % 3 == 1 { request.unsignaled() } else { request };
        bed.left.post_send(request.wr_id(round as u64)).unwrap();
        if round % 3 == 1 {
            bed.left.post_send(WorkRequest::nop().wr_id(round as u64)).unwrap();
        }
        let done = poll(&bed.left.send_cq());
        assert_eq!((done.wr_id, done.status), (round as u64, Ok(())));
        assert_eq!(content(&target)[..expected.len()], expected, "round {round}");
    }
}

#[test]
fn operations_that_others_take_locks_for_go_in_their_turn() {
    let mut bed = Bed::new();
    let (result, target) = (bed.region(16), bed.region(16));
    let (place, remote) = (result.slice(..8).unwrap(), target.remote().slice(8..).unwrap());
    for round in 0..100u64 {
        bed.left.post_send(WorkRequest::write_inline(&round.to_ne_bytes(), remote).unsignaled()).unwrap();
        bed.left.post_send(WorkRequest::fetch_add(&place, remote, 1).wr_id(round)).unwrap();
        bed.left.post_send(WorkRequest::read(&[result.slice(8..).unwrap()], remote).fence()).unwrap();
        assert_eq!(poll(&bed.left.send_cq()).wr_id, round);
        assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
        let words = [0, 1].map(|i| result.words64()[i].load(Ordering::Relaxed));
        assert_eq!(words, [round, round + 1]);
    }
}

#[test]
fn a_request_behind_the_change_of_a_window_begins_after_it() {
    let Bed { pd, mut left, right } = Bed::new();
    let mut owned = right.into_owned().unwrap();
    let window = MemoryWindow::new(&pd).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let told = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    for round in 0..40u8 {
        let slice = region.slice(16..32).unwrap();
        owned.post_send(WorkRequest::bind(&window, &slice, WindowAccess::REMOTE_WRITE).unsignaled()).unwrap();
        // The peer is told by the next request, which must not overtake the bind.
        let key = window.remote().unwrap();
        left.post_recv(&[told.slice(..).unwrap()], 0).unwrap();
        owned.post_send(WorkRequest::send_inline(&key.rkey.to_ne_bytes())).unwrap();
        assert_eq!(poll(&left.recv_cq()).status, Ok(()));
        left.post_send(WorkRequest::write_inline(&[round], key)).unwrap();
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        assert_eq!(content(&region)[16], round);
        owned.post_send(WorkRequest::invalidate(&window)).unwrap();
        assert_eq!([poll(&owned.send_cq()).status, poll(&owned.send_cq()).status], [Ok(()); 2]);
    }
}

#[test]
fn other_transports_have_owners_too() {
    let config = QueuePairConfig::default()
        .transport(Transport::Uc)
        .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let mut bed = Bed::with(config);
    for seed in 0..50 {
        bed.exchange(seed);
    }
    let error = bed.left.post_send(WorkRequest::read(&[], BAD)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::NotOnTransport { .. })), "{error}");

    let device = pair::device();
    let pd = ProtectionDomain::new(&device).unwrap();
    let config = QueuePairConfig::default().transport(Transport::Ud).qkey(5);
    let new = || pair::queue_pair(&pd, config).unwrap();
    let (mut from, to) = (new().into_owned().unwrap(), new());
    let endpoint = to.endpoint().unwrap();
    let handle = from.address_handle(&endpoint, ConnectOptions::default()).unwrap();
    let target = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
    for number in 0..40u8 {
        to.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
        from.post_send(WorkRequest::send_inline(&[number; 4]).to(&handle, endpoint.qpn, 5)).unwrap();
        assert_eq!(poll(&from.send_cq()).status, Ok(()));
        assert_eq!(poll(&to.recv_cq()).status, Ok(()));
        assert_eq!(content(&target)[40..44], [number; 4]);
    }
}

#[test]
fn what_cannot_be_posted_is_refused_and_nothing_changes() {
    let mut bed = Bed::with(QueuePairConfig::default().send_depth(4).inline(16).access(Access::all()));
    bed.exchange(1);
    let source = bed.region(8);
    let other = ProtectionDomain::new(&pair::device()).unwrap();
    let foreign = MemoryRegion::allocate(&other, 8, Access::all()).unwrap();
    let closed = MemoryRegion::allocate(&bed.pd, 8, Access::empty()).unwrap();
    let (own, foreign, closed) =
        ([source.slice(..).unwrap()], foreign.slice(..).unwrap(), closed.slice(..).unwrap());
    let remote = source.remote();
    bed.left.post_send(WorkRequest::write(from_ref(&closed), remote)).unwrap();
    assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
    let mut refused = |request: WorkRequest<'_>| match bed.left.post_send(request).unwrap_err() {
        QueueError::Request(error) => error,
        other => panic!("{other}"),
    };
    for _ in 0..3 {
        let error = refused(WorkRequest::write(from_ref(&foreign), remote));
        assert!(matches!(error, RequestError::WrongDomain { .. }), "{error}");
        let error = refused(WorkRequest::write(&[own[0].clone(), foreign.clone()], remote));
        assert!(matches!(error, RequestError::WrongDomain { .. }), "{error}");
        let error = refused(WorkRequest::read(from_ref(&closed), remote));
        assert!(matches!(error, RequestError::NotWritable { .. }), "{error}");
        let error = refused(WorkRequest::write_inline(&[0; 4096], remote));
        assert!(matches!(error, RequestError::InlineTooLong { .. }), "{error}");
    }
    let long = bed.left.post_send(WorkRequest::write(&own, remote.slice(1..).unwrap())).unwrap_err();
    assert!(matches!(long, QueueError::Bounds(_)), "{long}");
    // Until it is full, and then again and again.
    for round in 0..20u64 {
        let mut posted = 0;
        let full = loop {
            match bed.left.post_send(WorkRequest::write(&own, remote).wr_id(posted)) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, QueueError::Full(_)), "{full}");
        assert!(posted >= 4, "round {round}: {posted}");
        for number in 0..posted {
            assert_eq!(poll(&bed.left.send_cq()).wr_id, number);
        }
    }
    bed.exchange(2);
}

#[test]
fn a_failed_queue_pair_starts_anew_again_and_again() {
    let mut bed = Bed::with(QueuePairConfig::default().send_depth(5).recv_depth(3).access(Access::all()));
    for round in 0..20 {
        (0..round % 4).for_each(|turn| bed.exchange(round + turn));
        bed.left.post_send(WorkRequest::write_inline(&[1], BAD)).unwrap();
        // Behind it: flushed, if it is posted at all.
        let behind = bed.left.post_send(WorkRequest::nop());
        let failed = |error: &QueueError| matches!(error, QueueError::State(StateError::Failed { .. }));
        assert!(behind.as_ref().err().is_none_or(failed), "{behind:?}");
        let error = poll(&bed.left.send_cq()).status.unwrap_err();
        assert_eq!(error.kind(), Some(Syndrome::RemoteAccess));
        assert_eq!(bed.left.failure(), Some(FailureCause::Work(error)));
        if behind.is_ok() {
            let blocked = bed.left.reset().unwrap_err();
            let sends = ResetBlocker::Sends(1);
            assert!(matches!(blocked, ResetError::Blocked { blocker, .. } if blocker == sends), "{blocked}");
            assert!(poll(&bed.left.send_cq()).status.unwrap_err().is_flush());
        }
        assert!(failed(&bed.left.post_send(WorkRequest::nop()).unwrap_err()));
        bed.right.abort().unwrap();
        drain(&bed.right);
        bed.left.reset().unwrap();
        let unconnected = bed.left.post_send(WorkRequest::nop()).unwrap_err();
        assert!(matches!(unconnected, QueueError::State(StateError::NotConnected { .. })), "{unconnected}");
        let (left, right) = (bed.left.endpoint().unwrap(), bed.right.endpoint().unwrap());
        bed.left.reconnect(&right, ConnectOptions::default()).unwrap();
        bed.right.reconnect(&left, ConnectOptions::default()).unwrap();
        bed.exchange(100 + round);
    }
}

#[test]
fn other_threads_poll_while_the_owner_posts() {
    const POSTS: u64 = 20_000;
    let mut bed = Bed::with(QueuePairConfig::default().send_depth(32).access(Access::all()));
    let (source, target) = (bed.region(8), bed.region(8));
    let slices = [source.slice(..).unwrap()];
    let queue = bed.left.send_cq();
    let poller = std::thread::spawn(move || {
        (0..POSTS).for_each(|number| {
            let done = poll(&queue);
            assert_eq!((done.wr_id, done.status), (number, Ok(())));
        });
    });
    for number in 0..POSTS {
        let request = match number % 2 {
            0 => WorkRequest::write(&slices, target.remote()),
            _ => WorkRequest::write_inline(b"8 bytes!", target.remote()),
        };
        let start = Instant::now();
        while let Err(error) = bed.left.post_send(request.clone().wr_id(number)) {
            assert!(matches!(error, QueueError::Full(_)), "{error}");
            assert!(start.elapsed() < LONG, "nothing completes");
            std::thread::yield_now();
        }
    }
    poller.join().unwrap();
}

#[test]
fn another_thread_aborts_while_the_owner_posts() {
    for _ in 0..10 {
        let mut bed = Bed::with(QueuePairConfig::default().send_depth(16).access(Access::all()));
        let target = bed.region(8);
        let (monitor, queue, ends) = (bed.left.monitor(), bed.left.send_cq(), AtomicBool::new(false));
        assert_eq!((monitor.number(), monitor.failure()), (bed.left.number(), None));
        let posted = std::thread::scope(|scope| {
            let end = OnDrop(|| ends.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    queue.poll().unwrap();
                }
            });
            scope.spawn(|| {
                std::thread::yield_now();
                monitor.abort().unwrap();
            });
            let mut posted = 0u64;
            let start = Instant::now();
            loop {
                match bed.left.post_send(WorkRequest::write_inline(&[1], target.remote())) {
                    Ok(()) => posted += 1,
                    Err(QueueError::Full(_)) => std::thread::yield_now(),
                    Err(QueueError::State(StateError::Failed { cause: FailureCause::Aborted, .. })) => break,
                    Err(error) => panic!("{error}"),
                }
                assert!(start.elapsed() < LONG, "the abort is not seen after {posted} posts");
            }
            // All that was posted completes, well or flushed: only then can it be reset.
            while let Err(error) = bed.left.reset() {
                assert!(matches!(error, ResetError::Blocked { .. }), "{error}");
                assert!(start.elapsed() < LONG, "{posted} posts: {error}");
                std::thread::yield_now();
            }
            drop(end);
            posted
        });
        assert_eq!(bed.left.failure(), None, "{posted} posts");
        drop(bed.left);
        monitor.abort().unwrap();
        assert_eq!(monitor.failure(), None, "it is gone");
    }
}

#[test]
fn streams_wait_for_what_the_owner_posts_and_for_nothing_else() {
    let mut bed = Bed::new();
    let target = bed.region(8);
    let stream = soft();
    let done = bed.region(8).word32(0).unwrap();
    let nothing = |queue: &CompletionQueue| {
        let refused = queue.prepare_wait();
        assert!(
            matches!(refused, Err(QueueError::Order(OrderError::NothingToWaitFor { .. }))),
            "{refused:?}"
        );
    };
    for round in 1..=200u32 {
        nothing(&bed.left.send_cq());
        bed.left.post_send(WorkRequest::write_inline(&[1], target.remote()).unsignaled()).unwrap();
        nothing(&bed.left.send_cq());
        bed.left.post_send(WorkRequest::write_inline(&[2], target.remote())).unwrap();
        let wait = bed.left.send_cq().prepare_wait().unwrap();
        nothing(&bed.left.send_cq());
        stream.post(Batch::new().wait(wait).write_value32(&done, round)).unwrap();
        assert_eq!(poll(&bed.left.send_cq()).status, Ok(()));
        synchronize(&stream);
        assert_eq!(done.load(), round);
    }
}

#[test]
fn a_stream_that_waits_wakes_when_the_queue_pair_is_dropped() {
    for posts in [1, 3, 40] {
        let mut bed = Bed::new();
        let source = bed.region(8);
        let slices = [source.slice(..).unwrap()];
        let stream = soft();
        // No receive is there for them.
        for _ in 0..posts {
            bed.left.post_send(WorkRequest::send(&slices)).unwrap();
        }
        for _ in 0..posts {
            stream.post(Batch::new().wait(bed.left.send_cq().prepare_wait().unwrap())).unwrap();
        }
        drop(bed.left);
        synchronize(&stream);
    }
}

#[test]
fn owners_and_others_share_a_completion_queue() {
    let device = pair::device();
    let pd = ProtectionDomain::new(&device).unwrap();
    let queue = pair::completion_queue(&device, 128).unwrap();
    let config = QueuePairConfig::default().send_depth(8).recv_depth(8).access(Access::all());
    let connect = || {
        let (left, right) = (
            pair::sharing(&pd, config, &queue, &queue).unwrap(),
            pair::sharing(&pd, config, &queue, &queue).unwrap(),
        );
        left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        (left, right)
    };
    let ((first, _to_first), (second, _to_second), (third, _to_third)) = (connect(), connect(), connect());
    let (mut first, mut second) = (first.into_owned().unwrap(), second.into_owned().unwrap());
    for round in 0..500u64 {
        first.post_send(WorkRequest::nop().wr_id(round)).unwrap();
        second.post_send(WorkRequest::nop().wr_id(round)).unwrap();
        third.post_send(WorkRequest::nop().wr_id(round)).unwrap();
        let mut seen: Vec<_> = (0..3).map(|_| poll(&queue)).map(|done| (done.wr_id, done.qp_num)).collect();
        let mut expected = [first.number(), second.number(), third.number()].map(|number| (round, number));
        seen.sort_unstable();
        expected.sort_unstable();
        assert_eq!(seen, expected);
    }
    drop(second);
    let first = first.into_shared();
    for round in 0..100 {
        for queue_pair in [&first, &third] {
            queue_pair.post_send(WorkRequest::nop().wr_id(round)).unwrap();
            assert_eq!(poll(&queue).wr_id, round);
        }
    }
}

#[test]
fn a_completion_queue_that_streams_hold_is_not_overrun() {
    let bed = Bed::new();
    let device = bed.pd.device();
    let queue = pair::completion_queue(&device, 16).unwrap();
    let config = QueuePairConfig::default().send_depth(16).access(Access::all());
    let recv = pair::completion_queue(&device, 64).unwrap();
    let own = pair::sharing(&bed.pd, config, &queue, &recv).unwrap();
    own.connect(&own.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let mut own = own.into_owned().unwrap();
    let entries = queue.entries();
    let gate = bed.region(8).word32(0).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    // Each entry is polled, but a stream has still to look at it.
    for number in 0..u64::from(entries) {
        own.post_send(WorkRequest::nop().wr_id(number)).unwrap();
        stream.post(Batch::new().wait(queue.prepare_wait().unwrap())).unwrap();
        assert_eq!(poll(&queue).wr_id, number);
    }
    let full = own.post_send(WorkRequest::nop()).unwrap_err();
    assert!(matches!(full, QueueError::Full(QueueFull::Stream(_))), "{full}");
    gate.store(1);
    synchronize(&stream);
    own.post_send(WorkRequest::nop().wr_id(77)).unwrap();
    assert_eq!(poll(&queue).wr_id, 77);
}

#[test]
fn a_queue_pair_that_is_in_use_gets_no_owner() {
    let Pair { pd, left, .. } = Pair::new();
    let prepared = left.prepare(WorkRequest::send_inline(&[1])).unwrap();
    let refused = left.into_owned().unwrap_err();
    assert_eq!(refused.source, OwnerBlocker::Outstanding(ResetBlocker::Sends(1)));
    let left = refused.queue_pair;
    drop(prepared);
    left.post_send(WorkRequest::nop()).unwrap();
    let refused = left.into_owned().unwrap_err();
    assert_eq!(refused.source, OwnerBlocker::Outstanding(ResetBlocker::Sends(1)));
    let left = refused.queue_pair;
    assert_eq!(poll(&left.send_cq()).status, Ok(()));
    let mut owned = left.into_owned().unwrap();
    owned.post_send(WorkRequest::nop().wr_id(4)).unwrap();
    owned.post_send(WorkRequest::nop().wr_id(5)).unwrap();
    // Back to all, with what is outstanding.
    let left = owned.into_shared();
    left.post_send(WorkRequest::nop().wr_id(6)).unwrap();
    assert_eq!([4, 5, 6].map(|_| poll(&left.send_cq()).wr_id), [4, 5, 6]);

    let trigger = Trigger::new(&pd).unwrap();
    let triggered = pair::queue_pair(&pd, QueuePairConfig::default().trigger(&trigger)).unwrap();
    let refused = triggered.into_owned().unwrap_err();
    assert_eq!(refused.source, OwnerBlocker::Triggered);
    assert!(refused.to_string().contains("trigger"), "{refused}");
}

#[test]
fn a_persistent_request_of_a_queue_pair_that_has_an_owner_is_refused() {
    let Pair { pd, left, right, .. } = Pair::new();
    let region = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let slices = [region.slice(..).unwrap()];
    let mut send = PersistentSend::send(&left, &slices).unwrap();
    let stream = soft();
    let owned = left.into_owned().unwrap();
    let error = send.start(&stream).unwrap_err();
    let qpn = owned.number();
    assert!(
        matches!(&error, PersistentError::Queue(QueueError::State(StateError::Owned { qpn: of })) if *of == qpn),
        "{error:?}"
    );
    let _shared = owned.into_shared();
    right.post_recv(&slices, 0).unwrap();
    send.start(&stream).unwrap();
    send.wait_on(&stream).unwrap();
    synchronize(&stream);
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
}

//! Posts of the CPU, concurrent with threads that poll and abort, and with streams that wait for them.

use gdsync::memop::Condition;
use gdsync::qp::ResetError;
use gdsync::queue::{FailureCause, OrderError, QueueFull, RequestError, ResetBlocker, StateError, Syndrome};
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, RemoteMemory, WorkRequest,
};
use gdsync_test_support::OnDrop;
use gdsync_test_support::pair::{self, LONG, Pair, content, drain, fill, poll, soft, synchronize};
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

struct Bed {
    pd: ProtectionDomain,
    left: QueuePair,
    right: QueuePair,
}

impl Bed {
    fn with(config: QueuePairConfig<'_>) -> Bed {
        let Pair { pd, left, right, .. } = Pair::with(config, ConnectOptions::default());
        Bed { pd, left, right }
    }

    fn new() -> Bed {
        Bed::with(QueuePairConfig::default().access(Access::all()))
    }

    fn region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::all()).unwrap()
    }

    fn exchange(&self, seed: usize) {
        let (source, target) = (self.region(300), self.region(300));
        let bytes = fill(&source, seed);
        self.right.post_recv(&[target.slice(..).unwrap()], 7).unwrap();
        self.left.post_send(WorkRequest::send(&[source.slice(..).unwrap()]).wr_id(9)).unwrap();
        let (sent, arrived) = (poll(&self.left.send_cq()), poll(&self.right.recv_cq()));
        assert_eq!((sent.wr_id, sent.status, arrived.wr_id, arrived.status), (9, Ok(()), 7, Ok(())));
        assert_eq!(content(&target), bytes);
    }
}

/// Remote memory that does not exist.
const BAD: RemoteMemory = RemoteMemory { addr: 0, len: 8, rkey: 1 };

#[test]
fn writes_atomics_and_reads_go_in_their_turn() {
    let bed = Bed::new();
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
fn what_cannot_be_posted_is_refused_and_nothing_changes() {
    let bed = Bed::with(QueuePairConfig::default().send_depth(4).inline(16).access(Access::all()));
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
    let refused = |request: WorkRequest<'_>| match bed.left.post_send(request).unwrap_err() {
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
    // Until it is full, and then repeatedly.
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
    let bed = Bed::with(QueuePairConfig::default().send_depth(5).recv_depth(3).access(Access::all()));
    for round in 0..20 {
        (0..round % 4).for_each(|turn| bed.exchange(round + turn));
        bed.left.post_send(WorkRequest::write_inline(&[1], BAD)).unwrap();
        // After it: flushed, if it is posted at all.
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
fn another_thread_polls_while_one_posts() {
    const POSTS: u64 = 20_000;
    let bed = Bed::with(QueuePairConfig::default().send_depth(32).access(Access::all()));
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
fn another_thread_aborts_while_one_posts() {
    for _ in 0..10 {
        let bed = Bed::with(QueuePairConfig::default().send_depth(16).access(Access::all()));
        let target = bed.region(8);
        let (queue, ends) = (bed.left.send_cq(), AtomicBool::new(false));
        let posted = std::thread::scope(|scope| {
            let end = OnDrop(|| ends.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    queue.poll().unwrap();
                }
            });
            scope.spawn(|| {
                std::thread::yield_now();
                bed.left.abort().unwrap();
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
            // All posted work completes, successfully or flushed: only then can it be reset.
            while let Err(error) = bed.left.reset() {
                assert!(matches!(error, ResetError::Blocked { .. }), "{error}");
                assert!(start.elapsed() < LONG, "{posted} posts: {error}");
                std::thread::yield_now();
            }
            drop(end);
            posted
        });
        assert_eq!(bed.left.failure(), None, "{posted} posts");
    }
}

#[test]
fn streams_wait_for_what_the_cpu_posts_and_for_nothing_else() {
    let bed = Bed::new();
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
fn a_completion_queue_that_streams_hold_is_not_overrun() {
    let bed = Bed::new();
    let device = bed.pd.device();
    let queue = pair::completion_queue(&device, 16).unwrap();
    let config = QueuePairConfig::default().send_depth(16).access(Access::all());
    let recv = pair::completion_queue(&device, 64).unwrap();
    let own = pair::sharing(&bed.pd, config, &queue, &recv).unwrap();
    own.connect(&own.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let entries = queue.entries();
    let gate = bed.region(8).word32(0).unwrap();
    let stream = soft();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    // Each entry is polled, but a stream has yet to read it.
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

/// Posts a request that does nothing, at once or after a time. Returns the time of the card's clock in its entry.
fn time_of_nop(queue_pair: &QueuePair, after: Option<u64>) -> u64 {
    let queue = queue_pair.send_cq();
    match after {
        Some(ticks) => queue_pair.post_send_after(ticks, WorkRequest::nop()),
        None => queue_pair.post_send(WorkRequest::nop()),
    }
    .unwrap();
    let done = poll(&queue);
    assert_eq!(done.status, Ok(()));
    let entry = queue.entry_bytes(done.index.unwrap());
    u64::from_be_bytes(entry[48..56].try_into().unwrap())
}

#[test]
fn a_request_goes_once_the_cards_clock_is_past_its_time() {
    let bed = Bed::new();
    if !bed.pd.device().card_waits().unwrap().time {
        return gdsync_test_support::skipped("waits for times", "the card has none");
    }
    let first = time_of_nop(&bed.left, None);
    for round in 1..=20 {
        let due = time_of_nop(&bed.left, None) + 2_000_000;
        assert!(time_of_nop(&bed.left, Some(due)) > due, "round {round}");
        assert!(time_of_nop(&bed.left, Some(first)) > due, "a time that has passed holds nothing back");
    }
    // Half a lap of the clock less an hour: it ends with the queue pair only.
    bed.left.post_send_after(first + (1 << 62), WorkRequest::nop().wr_id(5)).unwrap();
    assert!(bed.left.send_cq().poll().unwrap().is_none());
    bed.left.abort().unwrap();
    let flushed = poll(&bed.left.send_cq());
    assert_eq!((flushed.wr_id, flushed.status.unwrap_err().syndrome), (5, Syndrome::WrFlush as u8));
    // A trigger's queue pair has tickets in front of its sends.
    let fan = crate::fan::Fan::new(1, None);
    let refused = fan.pairs[0].0.post_send_after(0, WorkRequest::nop()).unwrap_err();
    assert!(matches!(refused, QueueError::State(StateError::Triggered { .. })), "{refused}");
}

//! Lists of persistent requests: started in one batch, waited for in one, and refused as a whole.

use gdsync::memop::{Condition, Word32};
use gdsync::persistent::{
    ListError, PersistentError, PersistentRecv, PersistentSend, Request, start_all, wait_all,
};
use gdsync::queue::{OrderError, QueueFull, StateError, Status};
use gdsync::stream::{Cpu, PostFailure};
use gdsync::verbs::QueuePairError;
use gdsync::{
    Batch, ConnectOptions, Error, MemoryRegion, PinnedMemory, QueueError, QueuePair, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use gdsync_test_support::pair::{
    self, LONG, Pair, completion_queue, content, poll, sharing, soft, synchronize,
};
use std::time::{Duration, Instant};

/// A word that blocks a stream.
pub(crate) fn gate(stream: &Stream<SoftStream>) -> Word32 {
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    word
}

pub(crate) fn send_of(queue_pair: &QueuePair, region: &MemoryRegion, at: usize) -> PersistentSend {
    PersistentSend::send(queue_pair, &[region.slice(at..at + 8).unwrap()]).unwrap()
}

pub(crate) fn recv_of(queue_pair: &QueuePair, region: &MemoryRegion, at: usize) -> PersistentRecv {
    PersistentRecv::new(queue_pair, &[region.slice(at..at + 8).unwrap()]).unwrap()
}

/// Both directions of a pair, two requests of each kind and side.
pub(crate) struct Both {
    pub(crate) pair: Pair,
    pub(crate) source: MemoryRegion,
    pub(crate) target: MemoryRegion,
    pub(crate) sends: Vec<PersistentSend>,
    pub(crate) receives: Vec<PersistentRecv>,
}

impl Both {
    pub(crate) fn new() -> Self {
        let pair =
            Pair::with(QueuePairConfig::default().send_depth(64).recv_depth(64), ConnectOptions::default());
        let (source, target) = (pair.region(32), pair.region(32));
        let sides = [&pair.left, &pair.right];
        let sends = (0..4).map(|i| send_of(sides[i / 2], &source, i * 8)).collect();
        let receives = (0..4).map(|i| recv_of(sides[1 - i / 2], &target, i * 8)).collect();
        Both { pair, source, target, sends, receives }
    }

    pub(crate) fn list(&mut self) -> Vec<&mut dyn Request> {
        let pairs = self.sends.iter_mut().zip(&mut self.receives);
        pairs.flat_map(|(send, recv)| [send as &mut dyn Request, recv]).collect()
    }

    pub(crate) fn complete(&mut self) {
        for send in &mut self.sends {
            assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
        }
        for recv in &mut self.receives {
            let done = recv.complete(LONG).unwrap().unwrap();
            assert_eq!((done.status, done.byte_len), (Ok(()), 8));
        }
    }

    pub(crate) fn nothing_is_started(&self) -> bool {
        let sends = self.sends.iter().all(|one| !one.is_active() && one.status().is_none());
        sends && self.receives.iter().all(|one| !one.is_active() && one.status().is_none())
    }
}

#[test]
fn a_list_is_one_batch_and_goes_round_without_the_cpu() {
    let mut both = Both::new();
    let stream = soft();
    let gate = gate(&stream);
    let (seen, told) = std::sync::mpsc::channel();
    for round in 0..20u8 {
        let source = both.source.clone();
        stream.launch(move || assert_eq!(source.write(0, &[round; 32]), 32)).unwrap();
        let started = start_all(&mut both.list(), &stream, LONG).unwrap();
        // A doorbell for each queue pair: the store of its record announces the receives, too.
        assert_eq!((started.operations, started.submissions), (2 * 2, 1));
        let waited = wait_all(&mut both.list(), &stream, LONG).unwrap();
        // An entry of each completion queue, and the timeline's point.
        assert_eq!((waited.operations, waited.submissions), (4 + 1, 1), "round {round}");
        let (target, seen) = (both.target.clone(), seen.clone());
        stream.launch(move || seen.send(content(&target)).unwrap()).unwrap();
    }
    gate.store(1);
    synchronize(&stream);
    let rounds: Vec<_> = told.try_iter().collect();
    assert_eq!(rounds, (0..20u8).map(|round| vec![round; 32]).collect::<Vec<_>>());
    both.complete();
    assert!(start_all(&mut [], &stream, LONG).is_ok() && wait_all(&mut [], &stream, LONG).is_ok());
}

#[test]
fn streams_announce_receives_in_order_and_nothing_gets_in_between() {
    let pair = Pair::new();
    let (source, target) = (pair.region(16), pair.region(16));
    let (stream, other) = (soft(), soft());
    source.write(0, b"the onethe other");
    let mut receives = [recv_of(&pair.right, &target, 0), recv_of(&pair.right, &target, 8)];
    let gates = [gate(&stream), Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap()];
    receives[0].start(&stream).unwrap();
    stream.post(Batch::new().wait_value32(&gates[1], Condition::Eq, 1)).unwrap();
    receives[1].start(&stream).unwrap();
    let in_the_way = |error: &QueueError| {
        matches!(error, QueueError::Order(OrderError::ReceivesOnStream { receives: 1 | 2, .. }))
    };
    let refused = pair.right.post_recv(&[], 1).unwrap_err();
    assert!(in_the_way(&refused), "{refused}");
    let mut third = recv_of(&pair.right, &target, 0);
    let refused = third.start(&other).unwrap_err();
    assert!(matches!(&refused, PersistentError::Queue(error) if in_the_way(error)), "{refused}");
    pair.left.post_send(WorkRequest::send(&[source.slice(..8).unwrap()])).unwrap();
    pair.left.post_send(WorkRequest::send(&[source.slice(8..).unwrap()])).unwrap();
    assert!(receives[0].complete(Duration::from_millis(20)).unwrap().is_none(), "not posted yet");
    gates[0].store(1);
    assert_eq!(receives[0].complete(LONG).unwrap().unwrap().status, Ok(()));
    assert!(receives[1].complete(Duration::from_millis(20)).unwrap().is_none(), "not posted yet");
    assert_eq!(content(&target), b"the onet\0\0\0\0\0\0\0\0");
    gates[1].store(1);
    assert_eq!(receives[1].complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(content(&target), b"the onethe other");
    // Once the stream has announced all, anyone may post.
    pair.right.post_recv(&[], 1).unwrap();
    third.start(&other).unwrap();
}

#[test]
fn a_list_with_one_that_cannot_be_started_is_refused_whole() {
    let mut both = Both::new();
    let stream = soft();
    let gate = gate(&stream);
    let index_of = |error: ListError| (error.index, error.source);
    // One of them is active.
    both.receives[1].start(&stream).unwrap();
    let (index, source) = index_of(start_all(&mut both.list(), &stream, LONG).unwrap_err());
    assert!(index == Some(3) && matches!(source, PersistentError::Active), "{source}");
    assert!(both.sends.iter().all(|one| !one.is_active()));
    let (index, source) = index_of(wait_all(&mut both.list(), &stream, LONG).unwrap_err());
    assert!(index == Some(0) && matches!(source, PersistentError::Inactive), "{source}");
    gate.store(1);
    both.sends[1].start(&stream).unwrap();
    assert_eq!(both.receives[1].complete(LONG).unwrap().unwrap().status, Ok(()));
    assert_eq!(both.sends[1].complete(LONG).unwrap().unwrap().status, Ok(()));
    // A queue pair has failed: earlier requests of the list leave their queues again.
    let broken = Pair::new();
    let mut bad = send_of(&broken.left, &broken.region(8), 0);
    broken.left.abort().unwrap();
    for position in [0, 4, 8] {
        let mut list = both.list();
        list.insert(position, &mut bad);
        let error = start_all(&mut list, &stream, Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with(&format!("request {position} of the list: ")), "{error}");
        let (index, source) = index_of(error);
        assert_eq!(index, Some(position));
        assert!(matches!(source, PersistentError::Queue(QueueError::State(StateError::Failed { .. }))));
        assert!(both.nothing_is_started());
    }
    // The order of a queue pair is wrong: only the stream's post finds that.
    let early = both.pair.right.prepare(WorkRequest::nop()).unwrap();
    let (index, source) = index_of(start_all(&mut both.list(), &stream, Duration::ZERO).unwrap_err());
    assert!(
        matches!(
            source,
            PersistentError::Post(PostFailure::Queue(QueueError::Order(OrderError::OutOfOrder { .. })))
        ),
        "{source}"
    );
    assert_eq!(index, Some(1), "the first request of the queue pair");
    assert!(both.nothing_is_started());
    drop(early);
    // None of this blocks later work.
    for _ in 0..40 {
        start_all(&mut both.list(), &stream, LONG).unwrap();
        wait_all(&mut both.list(), &stream, LONG).unwrap();
    }
    synchronize(&stream);
    both.complete();
}

#[test]
fn a_list_waits_for_room_in_queues() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(4).recv_depth(2), ConnectOptions::default());
    let (source, target) = (pair.region(8), pair.region(8));
    let stream = soft();
    let gate = gate(&stream);
    let mut writes: Vec<_> = (0..4)
        .map(|_| PersistentSend::write(&pair.left, &[source.slice(..).unwrap()], target.remote()).unwrap())
        .collect();
    let mut receives: Vec<_> = (0..3).map(|_| recv_of(&pair.right, &target, 0)).collect();
    // More than the receive queue ever has room for.
    let mut list: Vec<&mut dyn Request> = receives.iter_mut().map(|one| one as _).collect();
    let begin = Instant::now();
    let error = start_all(&mut list, &stream, Duration::from_millis(30)).unwrap_err();
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(error.index, Some(2));
    let full = |error: &ListError, queue: fn(&QueueFull) -> bool| matches!(&error.source, PersistentError::Queue(QueueError::Full(full)) if queue(full));
    assert!(full(&error, |full| matches!(full, QueueFull::ReceiveQueue { capacity: 2 })), "{error}");
    pair.right.post_recv(&[], 0).unwrap();
    // Until the stream continues.
    let mut list: Vec<&mut dyn Request> = writes.iter_mut().map(|one| one as _).collect();
    let error = loop {
        match start_all(&mut list, &stream, Duration::ZERO) {
            Ok(_) => wait_all(&mut list, &stream, LONG).unwrap(),
            Err(error) => break error,
        };
    };
    // The length of a work request determines which of them is full first.
    let is_either =
        |full: &QueueFull| matches!(full, QueueFull::SendQueue { .. } | QueueFull::CompletionQueue { .. });
    assert!(full(&error, is_either), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            gate.store(1);
        });
        start_all(&mut list, &stream, LONG).unwrap();
    });
    wait_all(&mut list, &stream, LONG).unwrap();
    synchronize(&stream);
    writes.iter_mut().for_each(|one| assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(())));
}

#[test]
fn a_list_waits_for_room_in_the_stream() {
    let mut both = Both::new();
    let stream = soft();
    let gate = gate(&stream);
    let refused = loop {
        if let Err(error) = stream.post(Batch::new().barrier()) {
            break error.source;
        }
    };
    let PostFailure::WouldBlock { limit, .. } = refused else { panic!("{refused}") };
    let is_full = |error: ListError| {
        assert_eq!(error.index, None, "{error}");
        matches!(error.source, PersistentError::Post(PostFailure::WouldBlock { outstanding, .. }) if outstanding == limit)
    };
    assert!(is_full(start_all(&mut both.list(), &stream, Duration::from_millis(5)).unwrap_err()));
    assert!(both.nothing_is_started());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            gate.store(1);
        });
        start_all(&mut both.list(), &stream, LONG).unwrap();
        wait_all(&mut both.list(), &stream, LONG).unwrap();
    });
    synchronize(&stream);
    both.complete();
}

/// Queue pairs that are connected to themselves: enough of them that a list needs two submissions.
fn many(pair: &Pair) -> Vec<QueuePair> {
    let config = QueuePairConfig::default().send_depth(4).recv_depth(4);
    let new = |_| {
        let one = pair::queue_pair(&pair.pd, config).unwrap();
        one.connect(&one.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        one
    };
    (0..90).map(new).collect()
}

#[test]
fn a_long_list_takes_several_submissions_or_none() {
    let pair = Pair::new();
    let queue_pairs = many(&pair);
    let (source, target) = (pair.region(8), pair.region(8 * queue_pairs.len()));
    source.write(0, b"sent all");
    let mut sends: Vec<_> = queue_pairs.iter().map(|one| send_of(one, &source, 0)).collect();
    let mut receives: Vec<_> =
        queue_pairs.iter().enumerate().map(|(i, one)| recv_of(one, &target, 8 * i)).collect();
    let receives = receives.iter_mut().map(|one| one as &mut dyn Request);
    let mut list: Vec<_> = receives.chain(sends.iter_mut().map(|one| one as _)).collect();
    let stream = soft();
    let gate = gate(&stream);
    // There is room for one submission, and no more.
    let mut room = 0;
    while stream.post(Batch::new().barrier()).is_ok() {
        room += 1;
    }
    gate.store(1);
    synchronize(&stream);
    let gate = self::gate(&stream);
    (1..room).for_each(|_| assert_eq!(stream.post(Batch::new().barrier()).unwrap().submissions, 1));
    let error = start_all(&mut list, &stream, Duration::ZERO).unwrap_err();
    assert!(matches!(error.source, PersistentError::Post(PostFailure::WouldBlock { .. })), "{error}");
    gate.store(1);
    for _ in 0..3 {
        let started = start_all(&mut list, &stream, LONG).unwrap();
        // Each send announces the receives of its queue pair.
        assert_eq!((started.operations, started.submissions), (2 * 90, 2));
        wait_all(&mut list, &stream, LONG).unwrap();
    }
    synchronize(&stream);
    drop(list);
    assert_eq!(content(&target), b"sent all".repeat(90));
    sends.iter_mut().for_each(|one| assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(())));
}

#[test]
fn requests_of_shared_completion_queues_are_waited_for_by_their_statuses() {
    let pair = Pair::new();
    let shared = completion_queue(&pair.device, 256).unwrap();
    let [left, right] =
        [(); 2].map(|()| sharing(&pair.pd, QueuePairConfig::default(), &shared, &shared).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let (source, target) = (pair.region(8), pair.region(16));
    source.write(0, b"by both.");
    let (mut send, mut recv) = (send_of(&left, &source, 0), recv_of(&right, &target, 0));
    let (mut own_send, mut own_recv) = (send_of(&pair.left, &source, 0), recv_of(&pair.right, &target, 8));
    let stream = soft();
    for _ in 0..5 {
        let mut list: [&mut dyn Request; 4] = [&mut send, &mut own_send, &mut recv, &mut own_recv];
        start_all(&mut list, &stream, LONG).unwrap();
        wait_all(&mut list, &stream, LONG).unwrap();
    }
    synchronize(&stream);
    assert_eq!(content(&target), b"by both.by both.");
    for one in [&mut send, &mut own_send] {
        assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(()));
    }
    // Once streams rely on a queue pair's exclusive queue, it cannot be shared.
    let queues = [pair.left.send_cq(), pair.left.recv_cq()];
    let error = sharing(&pair.pd, QueuePairConfig::default(), &queues[0], &queues[1]).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::PrivateCompletionQueue { .. })), "{error}");
    let shared = sharing(&pair.pd, QueuePairConfig::default(), &queues[1], &queues[1]).unwrap();
    drop(shared);
    // And a shared one is waited for by statuses from then on.
    let mut answer = recv_of(&pair.left, &target, 0);
    let mut question = send_of(&pair.right, &source, 0);
    answer.start(&stream).unwrap();
    question.start(&stream).unwrap();
    answer.wait_on(&stream).unwrap();
    synchronize(&stream);
    assert_eq!(answer.complete(LONG).unwrap().unwrap().status, Ok(()));
}

#[test]
fn the_programs_own_waits_are_for_its_own_work() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(8));
    let slices = [source.slice(..).unwrap()];
    let stream = soft();
    let mut write = PersistentSend::write(&pair.left, &slices, target.remote()).unwrap();
    for wr_id in 0..4 {
        let request = || WorkRequest::write(&slices, target.remote()).wr_id(wr_id);
        // Before the request: its entry stays for the program's wait.
        pair.left.post_send(request()).unwrap();
        write.start(&stream).unwrap();
        write.wait_on(&stream).unwrap();
        synchronize(&stream);
        let own = pair.left.send_cq().prepare_wait();
        // Unless the polling thread has taken it out meanwhile.
        if let Ok(own) = own {
            stream.post(Batch::new().wait(own)).unwrap();
        }
        synchronize(&stream);
        assert_eq!(poll(&pair.left.send_cq()).wr_id, wr_id);
        assert_eq!(write.complete(LONG).unwrap().unwrap().status, Ok(()));
        // After it.
        write.start(&stream).unwrap();
        write.wait_on(&stream).unwrap();
        let send = pair.left.prepare(request()).unwrap();
        let wait = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(wait)).unwrap();
        synchronize(&stream);
        assert_eq!(write.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert_eq!(poll(&pair.left.send_cq()).wr_id, wr_id);
    }
}

#[test]
fn a_thread_writes_the_word_of_a_status_that_somebody_has_asked_for() {
    let pair = Pair::new();
    let (source, target) = (pair.region(8), pair.region(8));
    let (stream, reader) = (soft(), soft());
    let gate = gate(&stream);
    let (mut send, mut recv) = (send_of(&pair.left, &source, 0), recv_of(&pair.right, &target, 0));
    let mut list: [&mut dyn Request; 2] = [&mut send, &mut recv];
    start_all(&mut list, &stream, LONG).unwrap();
    let word = recv.status().unwrap().word().clone();
    reader.post(Batch::new().wait_value32(&word, Condition::And, Status::OK | Status::FAILED)).unwrap();
    assert!(!reader.synchronize_timeout(Duration::from_millis(10)).unwrap());
    gate.store(1);
    // No other thread polls.
    assert!(reader.synchronize_timeout(LONG).unwrap());
    assert_eq!(word.load(), Status::OK);
    recv.wait_on(&stream).unwrap();
    send.wait_on(&stream).unwrap();
    send.wait_on(&reader).unwrap();
    synchronize(&stream);
    synchronize(&reader);
    let status = send.status().unwrap();
    assert_eq!(status.get(), Some(Ok(())));
    assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
}

#[test]
fn the_cpu_as_a_stream_returns_behind_the_wait() {
    let pair = Pair::new();
    let shared = completion_queue(&pair.device, 64).unwrap();
    let loopback = sharing(&pair.pd, QueuePairConfig::default(), &shared, &shared).unwrap();
    loopback.connect(&loopback.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let (source, target) = (pair.region(8), pair.region(16));
    let stream = Stream::new(Cpu::new()).unwrap();
    let mut receives = [recv_of(&pair.right, &target, 0), recv_of(&loopback, &target, 8)];
    let mut sends = [send_of(&pair.left, &source, 0), send_of(&loopback, &source, 0)];
    for round in 0..5 {
        source.write(0, &[round; 8]);
        let receives = receives.iter_mut().map(|one| one as &mut dyn Request);
        let mut list: Vec<_> = receives.chain(sends.iter_mut().map(|one| one as _)).collect();
        start_all(&mut list, &stream, LONG).unwrap();
        wait_all(&mut list, &stream, LONG).unwrap();
        assert_eq!(content(&target), [round; 16]);
    }
    sends.iter_mut().for_each(|one| assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(())));
}

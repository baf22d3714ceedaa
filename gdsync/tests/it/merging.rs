//! Merged batches on the software card: their number of operations, and otherwise unchanged behaviour.

use gdsync::memop::{Condition, Word32};
use gdsync::queue::QueueFull;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, PinnedMemory, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, content, cpu, device, poll, soft, synchronize};
use std::time::Instant;

/// Sends of 8 bytes each to separate places, and waits for them.
fn sends_and_waits(pair: &Pair, target: &MemoryRegion, count: usize, seed: u64) -> (Batch, Vec<u8>) {
    let mut batch = Batch::with_capacity(2 * count);
    let mut expected = Vec::new();
    for i in 0..count {
        let bytes = (seed * 1000 + i as u64).to_le_bytes();
        expected.extend(bytes);
        let remote = target.remote().slice(i * 8..i * 8 + 8).unwrap();
        let request = WorkRequest::write_inline(&bytes, remote).wr_id(i as u64);
        batch = batch.send(pair.left.prepare(request).unwrap());
    }
    for _ in 0..count {
        batch = batch.wait(pair.left.send_cq().prepare_wait().unwrap());
    }
    (batch, expected)
}

#[test]
fn sends_to_one_queue_pair_and_their_waits_are_four_operations() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(64).inline(60), ConnectOptions::default());
    let target = pair.open_region(64 * 8);
    let (cpu, soft) = (cpu(), soft());
    for (round, (merged, operations)) in [(true, 4), (false, 256), (true, 4)].into_iter().enumerate() {
        for on_soft in [false, true] {
            let (batch, expected) =
                sends_and_waits(&pair, &target, 64, round as u64 * 2 + u64::from(on_soft));
            let batch = batch.merged(merged);
            let posted = if on_soft { soft.post(batch) } else { cpu.post(batch) }.unwrap();
            synchronize(&soft);
            // A software stream takes 255 operations at a time.
            let submissions = if on_soft && !merged { 2 } else { 1 };
            assert_eq!((posted.operations, posted.submissions), (operations, submissions));
            assert_eq!(content(&target), expected);
            for i in 0..64 {
                let completion = poll(&pair.left.send_cq());
                assert_eq!((completion.wr_id, completion.status), (i, Ok(())));
            }
        }
    }
}

/// Peers of one queue pair each, which send to each other.
struct Everybody {
    pairs: Vec<(QueuePair, QueuePair)>,
    received: MemoryRegion,
}

const PEERS: usize = 64;

impl Everybody {
    fn new(shared: bool) -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let config = QueuePairConfig::default().send_depth(4).recv_depth(4).inline(60);
        let sends = pair::completion_queue(&device, 4 * PEERS as u32).unwrap();
        let receives = pair::completion_queue(&device, 4 * PEERS as u32).unwrap();
        let pairs = (0..PEERS).map(|_| {
            let own = pair::completion_queue(&device, 8).unwrap();
            let queue = if shared { &receives } else { &own };
            let here = pair::sharing(&pd, config, &sends, queue).unwrap();
            let there = pair::queue_pair(&pd, config).unwrap();
            here.connect(&there.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            there.connect(&here.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            (here, there)
        });
        let pairs = pairs.collect();
        Everybody { pairs, received: MemoryRegion::allocate(&pd, 8 * PEERS, Access::LOCAL_WRITE).unwrap() }
    }

    /// Sends to every peer, and waits for a message from each.
    fn step(&self, round: u64) -> Batch {
        let mut batch = Batch::with_capacity(2 * PEERS);
        for (i, (here, there)) in self.pairs.iter().enumerate() {
            there.post_recv(&[], round).unwrap();
            here.post_recv(&[self.received.slice(8 * i..8 * i + 8).unwrap()], round).unwrap();
            there.post_send(WorkRequest::send_inline(&(round + i as u64).to_le_bytes())).unwrap();
            batch = batch.send(here.prepare(WorkRequest::send(&[])).unwrap());
        }
        for (here, _) in &self.pairs {
            batch = batch.wait(here.recv_cq().prepare_wait().unwrap());
        }
        batch
    }

    fn collect(&self) {
        for (here, there) in &self.pairs {
            for queue in [here.send_cq(), here.recv_cq(), there.send_cq(), there.recv_cq()] {
                assert_eq!(poll(&queue).status, Ok(()));
            }
        }
    }
}

#[test]
fn a_step_among_all_takes_what_the_queues_ask_for() {
    for (shared, operations) in [(false, 3 * PEERS + 1), (true, 2 * PEERS + 2)] {
        let everybody = Everybody::new(shared);
        let stream = soft();
        for round in 0..12 {
            let merged = round % 3 != 2;
            let posted = stream.post(everybody.step(round).merged(merged)).unwrap();
            synchronize(&stream);
            assert_eq!(posted.operations, if merged { operations } else { 4 * PEERS }, "shared: {shared}");
            let expected: Vec<u8> = (0..PEERS as u64).flat_map(|i| (round + i).to_le_bytes()).collect();
            assert_eq!(content(&everybody.received), expected);
            everybody.collect();
        }
    }
}

/// Two words for a stream to wait for and to write.
fn words() -> (Word32, Word32) {
    let memory = PinnedMemory::allocate(8).unwrap();
    (Word32::new(&memory, 0).unwrap(), Word32::new(&memory, 4).unwrap())
}

fn await_word(word: &Word32, value: u32) {
    let start = Instant::now();
    while word.load() != value {
        assert!(start.elapsed() < LONG, "the stream is stuck");
        std::thread::yield_now();
    }
}

#[test]
fn a_covered_wait_holds_no_entry() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(4).recv_depth(4), ConnectOptions::default());
    let (queue, stream) = (pair.left.send_cq(), soft());
    let depth = queue.entries() as usize;
    let prepare = || {
        pair.right.post_recv(&[], 0).unwrap();
        pair.left.prepare(WorkRequest::send(&[])).unwrap()
    };
    let (first, second) = (prepare(), prepare());
    let waits = [queue.prepare_wait().unwrap(), queue.prepare_wait().unwrap()];
    let batch = waits.into_iter().fold(Batch::new(), Batch::wait);
    // A stream that waits for the second completion, and never reads the first.
    stream.post(batch).unwrap();
    pair::ring(first);
    let receive = || assert_eq!(poll(&pair.right.recv_cq()).status, Ok(()));
    assert_eq!(poll(&queue).status, Ok(()));
    receive();
    assert!(stream.oldest_wait().unwrap().contains("completion 1"), "{:?}", stream.oldest_wait());
    pair::ring(second);
    synchronize(&stream);
    assert_eq!(poll(&queue).status, Ok(()));
    receive();
    for _ in 0..3 * depth {
        pair::ring(prepare());
        assert_eq!(poll(&queue).status, Ok(()));
        receive();
    }
}

#[test]
fn a_refused_batch_can_be_posted_again_after_its_completions_were_polled() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(4).recv_depth(4), ConnectOptions::default());
    let (queue, (word, _)) = (pair.left.send_cq(), words());
    let laps = 2 * queue.entries();
    for round in 0..laps {
        for _ in 0..2 {
            pair.right.post_recv(&[], 0).unwrap();
            pair.left.post_send(WorkRequest::send(&[])).unwrap();
        }
        let waits = [queue.prepare_wait().unwrap(), queue.prepare_wait().unwrap()];
        let batch = waits.into_iter().fold(Batch::new(), Batch::wait);
        // No value satisfies the last.
        let error = cpu().post(batch.wait_value32(&word, Condition::And, 0)).unwrap_err();
        assert_eq!((error.batch.len(), error.posted), (3, 0));
        for side in [&queue, &pair.right.recv_cq()] {
            for _ in 0..2 {
                assert_eq!(poll(side).status, Ok(()));
            }
        }
        // The waits are still valid, and satisfied: alone, or again with the refused work.
        let error = cpu().post(error.batch.merged(round % 2 == 0)).unwrap_err();
        assert!(error.to_string().contains("never goes on"), "{error}");
    }
}

#[test]
fn tickets_are_written_before_a_stream_waits_for_the_program() {
    let pair = Pair::with(QueuePairConfig::default().send_depth(1).recv_depth(1), ConnectOptions::default());
    let (queue, stream, (go, seen)) = (pair.left.send_cq(), soft(), words());
    let depth = queue.entries();
    let send = |pair: &Pair| {
        pair.right.post_recv(&[], 0).unwrap();
        pair.left.post_send(WorkRequest::send(&[])).unwrap();
    };
    send(&pair);
    let batch = Batch::new().wait(queue.prepare_wait().unwrap()).write_value32(&seen, 1);
    stream.post(batch.wait_value32(&go, Condition::Eq, 1)).unwrap();
    await_word(&seen, 1);
    assert_eq!((poll(&queue).status, poll(&pair.right.recv_cq()).status), (Ok(()), Ok(())));
    // The stream has passed the wait, and reports it: its entry is reused.
    for _ in 0..3 * depth {
        let start = Instant::now();
        pair.right.post_recv(&[], 0).unwrap();
        loop {
            match pair.left.post_send(WorkRequest::send(&[])) {
                Ok(()) => break,
                Err(QueueError::Full(QueueFull::Stream(_))) if start.elapsed() < LONG => {
                    std::thread::yield_now()
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((poll(&queue).status, poll(&pair.right.recv_cq()).status), (Ok(()), Ok(())));
    }
    go.store(1);
    synchronize(&stream);
}

#[test]
fn an_idle_stream_lets_go_of_what_it_was_not_told_to_say_it_has_passed() {
    let (stream, (word, _)) = (soft(), words());
    for value in 1..=3 {
        let posted = stream.post(Batch::new().write_value32(&word, value)).unwrap();
        assert_eq!(posted.operations, 1, "no point is written for it");
    }
    await_word(&word, 3);
    let start = Instant::now();
    while stream.outstanding() > 0 {
        assert!(start.elapsed() < LONG, "{stream:?}");
    }
    let (go, done) = words();
    stream.post(Batch::new().wait_value32(&go, Condition::Eq, 1).write_value32(&done, 1)).unwrap();
    assert_eq!(stream.outstanding(), 1);
    go.store(1);
    synchronize(&stream);
    assert_eq!((stream.outstanding(), done.load()), (0, 1));
}

#[test]
fn a_failed_send_wakes_a_merged_run() {
    let pair = Pair::new();
    let target = pair.open_region(8);
    let (stream, queue) = (soft(), pair.left.send_cq());
    let bad = gdsync::RemoteMemory { rkey: target.rkey() ^ 0x100, ..target.remote() };
    let mut batch = Batch::new();
    for i in 0..8u64 {
        let remote = if i == 3 { bad } else { target.remote() };
        batch =
            batch.send(pair.left.prepare(WorkRequest::write_inline(b"whatever", remote).wr_id(i)).unwrap());
    }
    for _ in 0..8 {
        batch = batch.wait(queue.prepare_wait().unwrap());
    }
    let text = batch.to_string();
    assert!(text.starts_with("submission of 4 memory operations:\n  send on queue pair"), "{text}");
    assert_eq!((text.matches("(covered)").count(), text.lines().count()), (14, 17), "{text}");
    assert_eq!(stream.post(batch).unwrap().operations, 4);
    synchronize(&stream);
    for i in 0..8 {
        let completion = poll(&queue);
        assert_eq!((completion.wr_id, completion.status.is_ok()), (i, i < 3));
    }
    assert!(pair.left.failure().is_some());
}

#[test]
fn checked_waits_of_a_run_keep_their_own_words() {
    let pair = Pair::new();
    let (stream, queue) = (soft(), pair.left.send_cq());
    let mut batch = Batch::new();
    for _ in 0..4 {
        pair.right.post_recv(&[], 0).unwrap();
        batch = batch.send(pair.left.prepare(WorkRequest::send(&[])).unwrap());
    }
    let mut statuses = Vec::new();
    for i in 0..4 {
        let wait = queue.prepare_wait().unwrap();
        batch = if i % 2 == 0 {
            batch.wait(wait)
        } else {
            let checked = wait.checked().unwrap();
            statuses.push(checked.status());
            batch.wait_checked(checked)
        };
    }
    // A doorbell, a wait for the third completion, two for words, and a timeline point.
    assert_eq!(stream.post(batch).unwrap().operations, 2 + 1 + 2 + 1);
    synchronize(&stream);
    assert!(statuses.iter().all(|status| status.get() == Some(Ok(()))));
}

//! Collected waits: one word for the completions of any number of queues, and its release when work fails.

use crate::fan::{Fan, connect};
use gdsync::advanced::Collector;
use gdsync::advanced::MasterConfig;
use gdsync::cuda::Placement;
use gdsync::memop::{Condition, Word32};
use gdsync::queue::RequestError;
use gdsync::stream::StreamOptions;
use gdsync::verbs::QueuePairError;
use gdsync::{
    Batch, Device, Error, PinnedMemory, ProtectionDomain, QueueError, QueuePair, QueuePairConfig, SoftStream,
    Stream, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, drain, poll, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(20);

fn all_complete(fan: &Fan, number: u64) {
    for peer in 0..fan.pairs.len() {
        fan.completes(peer, number);
        assert_eq!(fan.value(peer), number);
    }
}

fn collecting(from: u32) -> Stream<SoftStream> {
    Stream::with_options(SoftStream::new().unwrap(), StreamOptions::default().collect_from(Some(from)))
        .unwrap()
}

/// Waits until the word has reached a number.
fn reaches(collector: &Collector, number: u64) {
    let deadline = Instant::now() + LONG;
    while collector.word().load().unwrap() < number {
        assert!(Instant::now() < deadline, "the arrival word stands at {}", collector.word().load().unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn a_step_of_many_peers_is_three_operations() {
    let peers = Fan::new(24, None);
    let stream = collecting(2);
    for number in 1..=50 {
        // A ticket, an arrival, a point of the timeline.
        assert_eq!(stream.post(peers.step(number)).unwrap().operations, 3);
        synchronize(&stream);
        all_complete(&peers, number);
    }
}

#[test]
fn short_runs_and_unmerged_batches_are_the_streams() {
    let peers = Fan::new(3, None);
    let stream = collecting(4);
    assert_eq!(stream.post(peers.step(1)).unwrap().operations, 1 + 3 + 1);
    synchronize(&stream);
    all_complete(&peers, 1);
    let stream = collecting(3);
    assert_eq!(stream.post(peers.step(2).merged(false)).unwrap().operations, 3 + 3 * 2);
    synchronize(&stream);
    all_complete(&peers, 2);
    assert_eq!(stream.post(peers.step(3)).unwrap().operations, 3);
    synchronize(&stream);
    all_complete(&peers, 3);
}

#[test]
fn a_stream_that_cannot_have_a_collector_waits_for_each_queue() {
    let peers = Fan::new(3, None);
    // There is no such GPU, or a software stream does not reach its memory.
    for ordinal in [0, 1000] {
        let options = StreamOptions::default().collect_from(Some(2)).collect_in(Placement::Gpu(ordinal));
        let stream = Stream::with_options(SoftStream::new().unwrap(), options).unwrap();
        for number in 1..=2 {
            assert_eq!(stream.post(peers.step(number)).unwrap().operations, 1 + 3 + 1);
            synchronize(&stream);
            all_complete(&peers, number);
        }
    }
}

#[test]
fn a_stream_stands_until_the_last_completion_has_come() {
    let peers = Fan::new(4, None);
    let stream = collecting(2);
    let mut batch = Batch::new();
    for (left, right) in &peers.pairs {
        right.post_recv(&[], 1).unwrap();
        batch = batch.wait(right.recv_cq().prepare_wait().unwrap());
        let _ = left;
    }
    stream.post(batch).unwrap();
    for (left, _) in &peers.pairs {
        assert!(!stream.synchronize_timeout(SHORT).unwrap());
        assert!(stream.oldest_wait().is_some());
        left.post_send(WorkRequest::send(&[])).unwrap();
    }
    synchronize(&stream);
    assert!(stream.oldest_wait().is_none());
}

#[test]
fn a_kernel_or_a_graph_may_wait_for_the_word_itself() {
    let peers = Fan::new(3, None);
    let collector = Collector::new(&peers.device).unwrap();
    let sends: Vec<_> =
        (0..3).map(|peer| peers.left(peer).prepare(WorkRequest::nop().wr_id(7)).unwrap()).collect();
    let tickets: Vec<u64> = sends.into_iter().map(|send| send.into_ticket().unwrap()).collect();
    let waits = (0..3).map(|peer| peers.left(peer).send_cq().prepare_wait().unwrap());
    let number = collector.collect(waits.collect::<Vec<_>>()).unwrap();
    std::thread::sleep(SHORT);
    assert!(collector.word().load().unwrap() < number);
    peers.trigger.release(tickets[1]).unwrap();
    std::thread::sleep(SHORT);
    assert!(collector.word().load().unwrap() < number);
    peers.trigger.release(tickets[2]).unwrap();
    reaches(&collector, number);
    let stream = soft();
    stream.post(Batch::new().wait_value64(collector.word(), Condition::Geq, number)).unwrap();
    synchronize(&stream);
    (0..3).for_each(|peer| assert_eq!(poll(&peers.left(peer).send_cq()).wr_id, 7));
}

#[test]
fn the_word_outlives_the_stream_and_its_collector() {
    let peers = Fan::new(3, None);
    for number in 1..=5 {
        let memory = PinnedMemory::allocate(8).unwrap();
        let (gate, done) = (Word32::new(&memory, 0).unwrap(), Word32::new(&memory, 4).unwrap());
        let stream = collecting(2);
        let tickets: Vec<_> =
            (0..3).map(|peer| peers.left(peer).prepare(WorkRequest::nop().wr_id(number)).unwrap()).collect();
        let last = tickets.into_iter().map(|send| send.into_ticket().unwrap()).last().unwrap();
        let waits = (0..3).map(|peer| peers.left(peer).send_cq().prepare_wait().unwrap());
        let batch = Batch::new().wait_value32(&gate, Condition::Eq, 1);
        stream.post(waits.fold(batch, Batch::wait).write_value32(&done, 1)).unwrap();
        // The card has counted all of them, and the stream is still blocked before the word.
        peers.trigger.release(last).unwrap();
        (0..3).for_each(|peer| assert_eq!(poll(&peers.left(peer).send_cq()).wr_id, number));
        std::thread::sleep(SHORT);
        drop(stream);
        std::thread::sleep(SHORT);
        gate.store(1);
        let deadline = Instant::now() + LONG;
        while done.load() == 0 {
            assert!(Instant::now() < deadline, "the stream does not go on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn failures_count_as_arrivals_and_the_others_go_on() {
    let peers = Fan::new(5, None);
    let stream = collecting(2);
    for number in 1..=3u64 {
        let failing = number as usize % 5;
        let receive = peers.pairs[failing].1.recv_cq();
        // A wait that only the failure ends.
        peers.pairs[failing].1.post_recv(&[], 0).unwrap();
        let batch = peers.step(number).wait(receive.prepare_wait().unwrap());
        stream.post(batch).unwrap();
        peers.pairs[failing].1.abort().unwrap();
        synchronize(&stream);
        for peer in (0..5).filter(|peer| *peer != failing) {
            assert_eq!(poll(&peers.left(peer).send_cq()).status, Ok(()));
        }
        let (left, right) = &peers.pairs[failing];
        left.abort().unwrap();
        drain(left);
        drain(right);
        connect(left, right);
    }
}

#[test]
fn waits_that_the_cpu_ends_release_the_word_and_the_card_counts_again() {
    let peers = Fan::new(3, None);
    let stream = collecting(2);
    for number in 1..=5 {
        // Receives of a queue pair that is dropped: the later wait never gets an entry.
        let (left, right) = (
            pair::queue_pair(&peers.pd, QueuePairConfig::default()).unwrap(),
            pair::queue_pair(&peers.pd, QueuePairConfig::default()).unwrap(),
        );
        connect(&left, &right);
        right.post_recv(&[], 1).unwrap();
        let wait = right.recv_cq().prepare_wait().unwrap();
        stream.post(peers.step(number).wait(wait)).unwrap();
        assert!(!stream.synchronize_timeout(SHORT).unwrap());
        drop((left, right));
        synchronize(&stream);
        all_complete(&peers, number);
    }
}

/// The card waits for entries of sends that were taken back: they never come once the queue pairs are dropped.
#[test]
fn sends_that_are_taken_back_release_the_word_when_their_queue_pair_is_dropped() {
    for (number_of_sends, send_is_last, keeps_collector) in
        [(1, false, true), (1, true, true), (1, false, false), (2, false, true)]
    {
        let pair = pair::Pair::new();
        let region = pair.region(8);
        let source = region.slice(..).unwrap();
        let prepare = |_| {
            let send = pair
                .left
                .prepare(WorkRequest::write(std::slice::from_ref(&source), region.remote()))
                .unwrap();
            (send, pair.left.send_cq().prepare_wait().unwrap())
        };
        let (mut sends, waits): (Vec<_>, Vec<_>) = (0..number_of_sends).map(prepare).unzip();
        let collector = Collector::new(&pair.device).unwrap();
        let number = collector.collect(waits).unwrap();
        let stream = soft();
        stream.post(Batch::new().wait_value64(collector.word(), Condition::Geq, number)).unwrap();
        let mut take_back = || {
            while let Some(send) = sends.pop() {
                drop(send)
            }
        };
        if !send_is_last {
            take_back();
        }
        let kept = keeps_collector.then_some(collector);
        assert!(!stream.synchronize_timeout(SHORT).unwrap(), "the queue pair may still send");
        let pair::Pair { left, right, .. } = pair;
        drop((left, right));
        take_back();
        synchronize(&stream);
        drop(kept);
    }
}

/// A completion that a collector takes is not given to a wait when a later one is given back.
#[test]
fn a_collected_completion_has_no_other_wait() {
    let pair = pair::Pair::new();
    let collector = Collector::new(&pair.device).unwrap();
    (0..3).for_each(|_| pair.right.post_recv(&[], 0).unwrap());
    let queue = pair.right.recv_cq();
    collector.collect([queue.prepare_wait().unwrap()]).unwrap();
    let later = queue.prepare_wait().unwrap();
    drop(later);
    assert_eq!(queue.prepare_wait().unwrap().index(), 1);
}

#[test]
fn what_a_collector_cannot_wait_for_is_refused() {
    let (peers, other) = (Fan::new(1, None), Fan::new(1, None));
    let collector = Collector::new(&peers.device).unwrap();
    other.pairs[0].1.post_recv(&[], 0).unwrap();
    let wait = other.pairs[0].1.recv_cq().prepare_wait().unwrap();
    let error = collector.collect([wait]).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::OtherDevice { .. })), "{error}");
    // The wait was returned.
    drop(other.pairs[0].1.recv_cq().prepare_wait().unwrap());

    // As many as its queue holds; then it is full.
    let config = QueuePairConfig::default().recv_depth(8192);
    let (left, right) = (
        pair::queue_pair(&peers.pd, config).unwrap(),
        pair::queue_pair(&peers.pd, QueuePairConfig::default()).unwrap(),
    );
    connect(&left, &right);
    let mut collected = 0;
    let error = loop {
        left.post_recv(&[], 0).unwrap();
        match collector.collect([left.recv_cq().prepare_wait().unwrap()]) {
            Ok(number) => collected = number,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, QueueError::Full(_)), "{error}");
    assert!(collected > 100 && collector.word().load().unwrap() == 0);
    left.abort().unwrap();
    reaches(&collector, collected);
}

/// Returns true in the process with that setting of the software card; otherwise runs that process.
fn with_waits(test: &str, setting: &str) -> bool {
    if on_system() {
        skipped(test, "settings of the software provider");
        return false;
    }
    alone(module_path!(), test, &[("SOFTHCA_WAITS", setting)])
}

#[test]
fn where_the_card_does_not_wait_the_stream_does() {
    if !with_waits("where_the_card_does_not_wait_the_stream_does", "off") {
        return;
    }
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    for refused in [Trigger::new(&pd).map(drop), Collector::new(&device).map(drop)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::QueuePair(QueuePairError::NoCardWaits { .. })), "{error}");
        assert!(error.to_string().contains("doctor"), "{error}");
    }
    let (left, right) = (
        QueuePair::new(&pd, QueuePairConfig::default()).unwrap(),
        QueuePair::new(&pd, QueuePairConfig::default()).unwrap(),
    );
    connect(&left, &right);
    let stream = collecting(2);
    for _ in 0..2 {
        right.post_recv(&[], 0).unwrap();
        let send = left.prepare(WorkRequest::send(&[])).unwrap();
        let waits = [left.send_cq(), right.recv_cq()].map(|queue| queue.prepare_wait().unwrap());
        let posted = stream.post(waits.into_iter().fold(Batch::new().send(send), Batch::wait)).unwrap();
        assert_eq!(posted.operations, 2 + 2 + 1);
        synchronize(&stream);
        for queue in [left.send_cq(), right.recv_cq()] {
            assert_eq!(poll(&queue).status, Ok(()));
        }
    }
}

#[test]
fn a_card_may_wait_for_words_and_not_for_queues() {
    if !with_waits("a_card_may_wait_for_words_and_not_for_queues", "no-cd") {
        return;
    }
    let fan = Fan::new(3, None);
    let waits = fan.device.card_waits().unwrap();
    assert!(waits.data && !waits.queues);
    let refused = Trigger::new(&fan.pd).unwrap().with_master(MasterConfig::default()).unwrap_err();
    assert!(matches!(refused, Error::QueuePair(QueuePairError::NoMasters { .. })), "{refused}");
    assert!(refused.to_string().contains("SEND_EN"), "{refused}");
    let refused = Collector::new(&fan.device).unwrap_err();
    assert!(matches!(refused, Error::QueuePair(QueuePairError::NoCardWaits { .. })), "{refused}");
    let stream = collecting(2);
    for number in 1..=3 {
        assert_eq!(stream.post(fan.step(number)).unwrap().operations, 1 + 3 + 1);
        synchronize(&stream);
        all_complete(&fan, number);
    }
}

#[test]
fn entries_that_the_card_does_not_count_are_counted_by_the_cpu() {
    if !with_waits("entries_that_the_card_does_not_count_are_counted_by_the_cpu", "errors-hold") {
        return;
    }
    let peers = Fan::new(3, None);
    let stream = collecting(2);
    for number in 1..=3 {
        let (left, right) = &peers.pairs[number % 3];
        right.post_recv(&[], 0).unwrap();
        let receive = right.recv_cq().prepare_wait().unwrap();
        stream.post(Batch::new().wait(receive)).unwrap();
        right.abort().unwrap();
        synchronize(&stream);
        // The second is posted while the CPU counts.
        let waits = [0, 1].map(|_| {
            left.post_recv(&[], 0).unwrap();
            left.recv_cq().prepare_wait().unwrap()
        });
        let all = peers.pairs[(number + 1) % 3].1.recv_cq();
        peers.pairs[(number + 1) % 3].1.post_recv(&[], 0).unwrap();
        let other = all.prepare_wait().unwrap();
        stream.post(waits.into_iter().fold(Batch::new(), Batch::wait).wait(other)).unwrap();
        assert!(!stream.synchronize_timeout(SHORT).unwrap());
        left.abort().unwrap();
        assert!(!stream.synchronize_timeout(SHORT).unwrap());
        peers.pairs[(number + 1) % 3].1.abort().unwrap();
        synchronize(&stream);
        for (left, right) in &peers.pairs {
            for side in [left, right] {
                side.abort().unwrap();
            }
            for side in [left, right] {
                drain(side);
            }
            connect(left, right);
        }
    }
}

#[test]
fn after_an_error_entry_the_cpu_counts_those_of_the_next_connection() {
    if !with_waits("after_an_error_entry_the_cpu_counts_those_of_the_next_connection", "errors-hold") {
        return;
    }
    let pair = pair::Pair::new();
    let collector = Collector::new(&pair.device).unwrap();
    pair.right.post_recv(&[], 0).unwrap();
    pair::drain_and_reconnect(&pair);
    for number in 1..=3 {
        pair.right.post_recv(&[], 0).unwrap();
        let wait = pair.right.recv_cq().prepare_wait().unwrap();
        assert_eq!(collector.collect([wait]).unwrap(), number);
        pair.left.post_send(WorkRequest::send(&[])).unwrap();
        reaches(&collector, number);
        assert_eq!(poll(&pair.right.recv_cq()).status, Ok(()));
    }
}

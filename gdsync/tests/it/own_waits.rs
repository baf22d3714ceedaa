//! Waits for sends that are posted after them: refused if that is certain, ended by an abort if it is not.

use gdsync::memop::{Condition, Word32};
use gdsync::queue::{OrderError, StateError};
use gdsync::stream::{PostError, PostFailure};
use gdsync::{
    Batch, ConnectOptions, PinnedMemory, PreparedSend, PreparedWait, QueueError, QueuePair, QueuePairConfig,
    SoftStream, Stream, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, cpu, drain_and_reconnect, poll, soft, synchronize};
use gdsync_test_support::skipped;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(30);

/// A queue pair that writes to another's memory.
struct Writer<'a> {
    queue_pair: &'a QueuePair,
    target: gdsync::MemoryRegion,
}

impl<'a> Writer<'a> {
    fn new(pair: &'a Pair) -> Self {
        Writer { queue_pair: &pair.left, target: pair.region(8) }
    }

    fn send(&self) -> PreparedSend {
        let request = WorkRequest::write_inline(b"x", self.target.remote());
        self.queue_pair.prepare(request).unwrap()
    }

    fn wait(&self) -> PreparedWait {
        self.queue_pair.send_cq().prepare_wait().unwrap()
    }

    fn exchange(&self) -> Batch {
        let send = self.send();
        Batch::new().send(send).wait(self.wait())
    }

    fn polls(&self, completions: usize) {
        for _ in 0..completions {
            assert_eq!(poll(&self.queue_pair.send_cq()).status, Ok(()));
        }
        assert!(self.queue_pair.send_cq().poll().unwrap().is_none());
    }
}

fn refused(error: &PostError, index: u32) {
    match error.source {
        PostFailure::Queue(QueueError::Order(OrderError::SendAfterOwnWait { index: found, .. })) => {
            assert_eq!(found, index, "{error}");
        }
        _ => panic!("{error}"),
    }
}

fn gate() -> Word32 {
    Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap()
}

fn stands(stream: &Stream<SoftStream>) {
    assert!(!stream.synchronize_timeout(SHORT).unwrap());
}

#[test]
fn a_send_behind_its_wait_in_one_batch_is_refused() {
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    let (send, stream) = (writer.send(), soft());
    let error = stream.post(Batch::new().wait(writer.wait()).send(send)).unwrap_err();
    refused(&error, 0);
    assert_eq!((error.posted, error.batch.len()), (0, 2));
    drop(error);
    stream.post(writer.exchange()).unwrap();
    synchronize(&stream);
    writer.polls(1);
}

#[test]
fn a_send_behind_its_wait_of_an_earlier_post_is_refused_and_may_go_elsewhere() {
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    let stream = soft();
    // From here on, a send alone takes the fast path.
    for _ in 0..3 {
        stream.post(writer.exchange()).unwrap();
        synchronize(&stream);
        stream.post_send(writer.send()).unwrap();
        stream.post(Batch::new().wait(writer.wait())).unwrap();
    }
    synchronize(&stream);
    let (first, second) = (writer.send(), writer.send());
    let index = writer.wait().index();
    // The wait for the second needs both.
    let waits = [writer.wait(), writer.wait()];
    assert_eq!(waits[1].index(), index + 1);
    stream.post(waits.into_iter().fold(Batch::new(), Batch::wait)).unwrap();
    stands(&stream);
    let error = stream.post_send(first).unwrap_err();
    refused(&error, index + 1);
    // Another stream of the CPU posts it, and then the other.
    cpu().post(error.batch).unwrap();
    let error = stream.post_send(second).unwrap_err();
    refused(&error, index + 1);
    cpu().post(error.batch).unwrap();
    synchronize(&stream);
    stream.post(writer.exchange()).unwrap();
    stream.post_send(writer.send()).unwrap();
    synchronize(&stream);
    writer.polls(10);
}

#[test]
fn a_wait_for_a_dropped_send_cannot_count_on_one_behind_it() {
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    let (dropped, stream) = (writer.send(), soft());
    let wait = writer.wait();
    drop(dropped);
    stream.post(Batch::new().wait(wait)).unwrap();
    // It would give the dropped one, which is a NOP, to the card.
    let error = stream.post_send(writer.send()).unwrap_err();
    refused(&error, 0);
    cpu().post(error.batch).unwrap();
    synchronize(&stream);
    writer.polls(1);
}

#[test]
fn a_wait_for_an_earlier_send_is_not_refused() {
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    let (stream, word) = (soft(), gate());
    // As many exchanges as there is room for, none of which has been performed.
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    for _ in 0..16 {
        let sends = [writer.send(), writer.send()];
        let batch = sends.into_iter().fold(Batch::new(), Batch::send);
        stream.post(batch.wait(writer.wait()).send(writer.send()).wait(writer.wait())).unwrap();
        stream.post_send(writer.send()).unwrap();
    }
    word.store(1);
    synchronize(&stream);
    writer.polls(64);
}

#[test]
fn where_other_work_may_end_the_wait_it_is_not_refused() {
    let pair = Pair::new();
    let shared = pair::completion_queue(&pair.device, 64).unwrap();
    let config = QueuePairConfig::default();
    let made = |_| pair::sharing(&pair.pd, config, &shared, &shared).unwrap();
    let [left, right] = [(), ()].map(made);
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let target = pair.region(8);
    let write = |queue_pair: &QueuePair| {
        queue_pair.prepare(WorkRequest::write_inline(b"x", target.remote())).unwrap()
    };
    let (stream, send) = (soft(), write(&left));
    stream.post(Batch::new().wait(shared.prepare_wait().unwrap()).send(send)).unwrap();
    stands(&stream);
    cpu().post_send(write(&right)).unwrap();
    synchronize(&stream);
    let numbers = [poll(&shared).qp_num, poll(&shared).qp_num];
    assert_eq!(numbers, [right.number(), left.number()]);
}

/// Returns whether the CPU can end waits. If not, reports the test as skipped.
fn waits_can_be_ended(test: &str) -> bool {
    let host = matches!(std::env::var("GDSYNC_TEST_PLACEMENT").as_deref(), Err(_) | Ok("host"));
    if !host {
        skipped(test, "the CPU ends no waits in completion queues in a GPU's memory");
    }
    host
}

/// A stream that waits for a send, and another that has to ring for it after a word.
struct Crossed {
    waiting: Stream<SoftStream>,
    ringing: Stream<SoftStream>,
    word: Word32,
}

impl Crossed {
    fn new(send: PreparedSend, wait: impl FnOnce(Batch) -> Batch) -> Self {
        let (waiting, ringing, word) = (soft(), soft(), gate());
        ringing.post(Batch::new().wait_value32(&word, Condition::Eq, 1).send(send)).unwrap();
        waiting.post(wait(Batch::new())).unwrap();
        stands(&waiting);
        Crossed { waiting, ringing, word }
    }

    /// The wait is over, although the card was not rung for the send; then the send is over.
    fn ends(self) {
        assert!(self.waiting.synchronize_timeout(LONG).unwrap(), "{:?}", self.waiting.oldest_wait());
        assert_eq!(self.waiting.oldest_wait(), None);
        stands(&self.ringing);
        self.word.store(1);
        synchronize(&self.ringing);
    }
}

#[test]
fn an_abort_ends_waits_for_what_another_stream_has_still_to_ring_for() {
    if !waits_can_be_ended("an_abort_ends_waits_for_what_another_stream_has_still_to_ring_for") {
        return;
    }
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    for round in 0..20 {
        // Some for which the card was rung go before it.
        let stream = soft();
        for _ in 0..round % 3 {
            stream.post(writer.exchange()).unwrap();
        }
        synchronize(&stream);
        let send = writer.send();
        let wait = writer.wait();
        let crossed = Crossed::new(send, |batch| batch.wait(wait));
        pair.left.abort().unwrap();
        assert!(matches!(
            pair.left.prepare(WorkRequest::send(&[])),
            Err(QueueError::State(StateError::Failed { .. }))
        ));
        crossed.ends();
        // Each completes once, and successfully unless it was flushed.
        for _ in 0..round % 3 {
            assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        }
        assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
        assert!(pair.left.send_cq().poll().unwrap().is_none());
        drain_and_reconnect(&pair);
        stream.post(writer.exchange()).unwrap();
        synchronize(&stream);
        writer.polls(1);
    }
}

/// The program does not ask the library for the stream, as when it waits for an event.
#[test]
fn an_abort_ends_the_wait_when_the_card_has_flushed_what_it_was_rung_for() {
    if !waits_can_be_ended("an_abort_ends_the_wait_when_the_card_has_flushed_what_it_was_rung_for") {
        return;
    }
    // The first is not received, and retried forever.
    let pair = Pair::with(QueuePairConfig::default(), ConnectOptions::default().rnr_retry(7));
    let writer = Writer::new(&pair);
    pair.left.post_send(WorkRequest::send(&[])).unwrap();
    let send = writer.send();
    let (flushed, wait) = (writer.wait(), writer.wait());
    let crossed = Crossed::new(send, |batch| batch.wait(flushed).wait(wait));
    let event = crossed.waiting.record().unwrap();
    pair.left.abort().unwrap();
    let deadline = Instant::now() + LONG;
    while event.completed_at().is_none() {
        assert!(Instant::now() < deadline, "{:?}", crossed.waiting.oldest_wait());
        std::thread::sleep(Duration::from_millis(1));
    }
    crossed.ends();
    for _ in 0..2 {
        assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
    }
}

#[test]
fn an_abort_ends_checked_waits_for_what_was_not_rung_as_flushed() {
    if !waits_can_be_ended("an_abort_ends_checked_waits_for_what_was_not_rung_as_flushed") {
        return;
    }
    let pair = Pair::new();
    let writer = Writer::new(&pair);
    let send = writer.send();
    let wait = writer.wait().checked().unwrap();
    let status = wait.status();
    let crossed = Crossed::new(send, |batch| batch.wait_checked(wait));
    assert_eq!(status.get(), None);
    pair.left.abort().unwrap();
    crossed.ends();
    assert!(status.get().unwrap().unwrap_err().is_flush());
}

#[test]
fn a_dropped_queue_pair_ends_waits_for_what_was_not_rung() {
    if !waits_can_be_ended("a_dropped_queue_pair_ends_waits_for_what_was_not_rung") {
        return;
    }
    let pair = Pair::new();
    let target = pair.region(8);
    let send = pair.left.prepare(WorkRequest::write_inline(b"x", target.remote())).unwrap();
    let queue = pair.left.send_cq();
    let wait = queue.prepare_wait().unwrap();
    let crossed = Crossed::new(send, |batch| batch.wait(wait));
    let Pair { left, right, .. } = pair;
    drop(left);
    crossed.ends();
    drop(right);
}

#[test]
fn an_abort_ends_a_wait_before_its_own_send_in_a_shared_queue() {
    if !waits_can_be_ended("an_abort_ends_a_wait_before_its_own_send_in_a_shared_queue") {
        return;
    }
    let pair = Pair::new();
    let shared = pair::completion_queue(&pair.device, 64).unwrap();
    let config = QueuePairConfig::default();
    let queue_pair = pair::sharing(&pair.pd, config, &shared, &shared).unwrap();
    queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    // A receive that stays empty could end the wait, too.
    queue_pair.post_recv(&[], 9).unwrap();
    let target = pair.region(8);
    let send = queue_pair.prepare(WorkRequest::write_inline(b"x", target.remote()).wr_id(5)).unwrap();
    let waits = [shared.prepare_wait().unwrap(), shared.prepare_wait().unwrap()];
    let stream = soft();
    stream.post(waits.into_iter().fold(Batch::new(), Batch::wait).send(send)).unwrap();
    stands(&stream);
    queue_pair.abort().unwrap();
    synchronize(&stream);
    let mut completed = [poll(&shared), poll(&shared)].map(|completion| {
        assert!(completion.status.unwrap_err().is_flush());
        completion.wr_id
    });
    completed.sort();
    assert_eq!(completed, [5, 9]);
    assert!(shared.poll().unwrap().is_none());
}

#[test]
fn an_abort_ends_no_wait_that_the_work_of_another_queue_pair_may_end() {
    if !waits_can_be_ended("an_abort_ends_no_wait_that_the_work_of_another_queue_pair_may_end") {
        return;
    }
    let pair = Pair::new();
    let shared = pair::completion_queue(&pair.device, 64).unwrap();
    let [aborted, other] = [(); 2].map(|()| {
        let queue_pair = pair::sharing(&pair.pd, QueuePairConfig::default(), &shared, &shared).unwrap();
        queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        queue_pair
    });
    let target = pair.region(8);
    let write = || WorkRequest::write_inline(b"x", target.remote());
    let send = aborted.prepare(write()).unwrap();
    let wait = shared.prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    let stream = soft();
    stream.post(Batch::new().wait_checked(wait).send(send)).unwrap();
    stands(&stream);
    aborted.abort().unwrap();
    other.post_send(write().wr_id(5)).unwrap();
    synchronize(&stream);
    assert_eq!(status.get(), Some(Ok(())));
    let first = poll(&shared);
    assert_eq!((first.wr_id, first.status), (5, Ok(())));
    assert!(poll(&shared).status.unwrap_err().is_flush());
}

#[test]
fn a_wait_that_an_abort_ended_keeps_its_place_when_a_queue_pair_that_shares_the_queue_starts_again() {
    let name =
        "a_wait_that_an_abort_ended_keeps_its_place_when_a_queue_pair_that_shares_the_queue_starts_again";
    if !waits_can_be_ended(name) {
        return;
    }
    let pair = Pair::new();
    let shared = pair::completion_queue(&pair.device, 64).unwrap();
    let [late, early] = [(); 2].map(|()| {
        let queue_pair = pair::sharing(&pair.pd, QueuePairConfig::default(), &shared, &shared).unwrap();
        queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        queue_pair
    });
    let target = pair.region(8);
    let write = || WorkRequest::write_inline(b"x", target.remote());
    let send = late.prepare(write()).unwrap();
    let wait = shared.prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    let crossed = Crossed::new(send, |batch| batch.wait_checked(wait));
    late.abort().unwrap();
    early.abort().unwrap();
    synchronize(&crossed.waiting);
    assert!(status.get().unwrap().unwrap_err().is_flush());
    early.reset().unwrap();
    early.connect(&early.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    early.post_send(write().wr_id(5)).unwrap();
    // A wait at the first entry would end with the flush, if that came before the success.
    let next = shared.prepare_wait().unwrap();
    assert_eq!(next.index(), 1);
    crossed.waiting.post(Batch::new().wait(next)).unwrap();
    let first = poll(&shared);
    assert_eq!((first.index, first.wr_id, first.status), (Some(0), 5, Ok(())));
    stands(&crossed.waiting);
    crossed.word.store(1);
    synchronize(&crossed.waiting);
    let second = poll(&shared);
    assert_eq!((second.index, second.qp_num), (Some(1), late.number()));
    assert!(second.status.unwrap_err().is_flush());
}

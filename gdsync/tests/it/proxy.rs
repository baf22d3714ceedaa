//! Doorbells through the proxy: the same results as from the stream itself.

use crate::persistent_lists::{recv_of, send_of};
use gdsync::memop::{MemOp, MemOpCaps, MemOpStream, StreamError};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::persistent::{Request, start_all, wait_all};
use gdsync::queue::OrderError;
use gdsync::stream::{Cpu, DoorbellPath, Doorbells, PostFailure, StreamOptions};
use gdsync::{Batch, ConnectOptions, QueueError, QueuePairConfig, SoftStream, Stream, WorkRequest};
use gdsync_test_support::pair::{LONG, Pair, content, cpu, fill, poll, synchronize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn proxied() -> Stream<SoftStream> {
    let options = StreamOptions::default().doorbells(DoorbellPath::Proxy);
    Stream::with_options(SoftStream::new().unwrap(), options).unwrap()
}

/// Blocks a stream until it is released.
fn hold<B: MemOpStream>(stream: &Stream<B>, pair: &Pair) -> gdsync::memop::Word32 {
    let word = pair.region(8).word32(0).unwrap();
    stream.post(Batch::new().wait_value32(&word, gdsync::memop::Condition::Eq, 1)).unwrap();
    word
}

#[test]
fn thousands_of_messages_arrive_in_order() {
    let config = QueuePairConfig::default().send_depth(64).recv_depth(64);
    let pair = Pair::with(config, ConnectOptions::default());
    let stream = proxied();
    assert!(matches!(stream.doorbells(&pair.left).unwrap(), Doorbells::Proxy { .. }));
    let (source, target) = (pair.region(8), pair.region(8));
    let (from, to) = ([source.slice(..).unwrap()], [target.slice(..).unwrap()]);
    for round in 0..100u64 {
        for i in 0..32u64 {
            let number = round * 32 + i;
            pair.right.post_recv(&to, number).unwrap();
            let send =
                pair.left.prepare(WorkRequest::send(&from).wr_id(number).immediate(number as u32)).unwrap();
            let arrival = pair.right.recv_cq().prepare_wait().unwrap();
            let (write, read) = (source.clone(), target.clone());
            stream.launch(move || assert_eq!(write.write(0, &number.to_le_bytes()), 8)).unwrap();
            stream.post(Batch::new().send(send).wait(arrival)).unwrap();
            stream.launch(move || assert_eq!(content(&read), number.to_le_bytes())).unwrap();
        }
        synchronize(&stream);
        for i in 0..32 {
            let sent = poll(&pair.left.send_cq());
            let received = poll(&pair.right.recv_cq());
            assert_eq!((sent.status, received.status), (Ok(()), Ok(())));
            let number = round * 32 + i;
            assert_eq!((sent.wr_id, received.immediate), (number, Some(number as u32)));
        }
    }
}

#[test]
fn a_list_that_sends_and_receives_announces_its_receives_in_front_of_the_mailbox() {
    let (pair, stream) = (Pair::new(), proxied());
    let (source, target) = (pair.region(16), pair.region(16));
    assert_eq!(source.write(0, b"to rightto left."), 16);
    let [left, right] = [&pair.left, &pair.right];
    let mut sends = [send_of(left, &source, 0), send_of(right, &source, 8)];
    let mut receives = [recv_of(right, &target, 0), recv_of(left, &target, 8)];
    for _ in 0..5 {
        let sends = sends.iter_mut().map(|one| one as &mut dyn Request);
        let mut list: Vec<_> = sends.chain(receives.iter_mut().map(|one| one as _)).collect();
        let started = start_all(&mut list, &stream, LONG).unwrap();
        assert_eq!(started.operations, 2 * (1 + 2), "a counter of receives, and a mailbox of two words");
        wait_all(&mut list, &stream, LONG).unwrap();
    }
    synchronize(&stream);
    assert_eq!(content(&target), b"to rightto left.");
    sends.iter_mut().for_each(|one| assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(())));
    receives.iter_mut().for_each(|one| assert_eq!(one.complete(LONG).unwrap().unwrap().status, Ok(())));
}

#[test]
fn a_queue_pair_that_fails_is_flushed_although_doorbells_are_still_in_mailboxes() {
    let pair = Pair::new();
    let stream = proxied();
    let word = hold(&stream, &pair);
    for i in 0..3 {
        let send = pair.left.prepare(WorkRequest::send(&[]).wr_id(i)).unwrap();
        let done = pair.left.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(done)).unwrap();
    }
    // Prepared work is flushed with the rest, by the CPU.
    let _unposted = pair.left.prepare(WorkRequest::send(&[]).wr_id(3)).unwrap();
    pair.left.abort().unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(50)).unwrap());
    word.store(1);
    synchronize(&stream);
    for i in 0..4 {
        let completion = poll(&pair.left.send_cq());
        assert!(completion.wr_id == i && completion.status.unwrap_err().is_flush());
    }
}

#[test]
fn dropping_stream_and_queue_pair_with_doorbells_outstanding_leaves_nothing_hanging() {
    let pair = Pair::new();
    let stream = proxied();
    let word = hold(&stream, &pair);
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    stream.post(Batch::new().send(send)).unwrap();
    drop(stream);
    drop(pair.left);
    word.store(1);
    cpu().post(Batch::new().send(pair.right.prepare(WorkRequest::send(&[])).unwrap())).unwrap();
    assert!(poll(&pair.right.send_cq()).status.is_err(), "the other side is gone");
}

#[test]
fn another_stream_may_not_overtake_a_mailbox() {
    let pair = Pair::new();
    let stream = proxied();
    let word = hold(&stream, &pair);
    pair.right.post_recv(&[], 0).unwrap();
    pair.right.post_recv(&[], 1).unwrap();
    let (first, second) = (
        pair.left.prepare(WorkRequest::send(&[])).unwrap(),
        pair.left.prepare(WorkRequest::send(&[])).unwrap(),
    );
    stream.post(Batch::new().send(first)).unwrap();
    let refused = cpu().post(Batch::new().send(second)).unwrap_err();
    assert!(
        matches!(refused.source, PostFailure::Queue(QueueError::Order(OrderError::OtherStream { .. }))),
        "{refused}"
    );
    word.store(1);
    synchronize(&stream);
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    cpu().post(refused.batch).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

#[test]
fn a_backend_that_performs_at_once_is_not_kept_waiting() {
    let pair = Pair::new();
    let options = StreamOptions::default().doorbells(DoorbellPath::Proxy);
    let stream = Stream::with_options(Cpu::with_timeout(LONG), options).unwrap();
    pair.right.post_recv(&[], 0).unwrap();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let done = pair.left.send_cq().prepare_wait().unwrap();
    stream.post(Batch::new().send(send).wait(done)).unwrap();
    assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
}

#[test]
fn a_backend_that_fails_leaves_no_doorbell_behind() {
    let pair = Pair::new();
    let options = StreamOptions::default().doorbells(DoorbellPath::Proxy);
    let stream = Stream::with_options(Cpu::with_timeout(Duration::from_millis(5)), options).unwrap();
    let never = pair.region(8).word32(0).unwrap();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let batch = Batch::new().wait_value32(&never, gdsync::memop::Condition::Eq, 1).send(send);
    let error = stream.post(batch).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    assert!(pair.left.failure().is_some());
    drop(error);
    assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
}

/// A stream whose device refuses the page of the first doorbell register that it sees.
struct Refusing {
    inner: SoftStream,
    register: AtomicU64,
}

// SAFETY: forwards to the inner stream; a refused address is not returned.
unsafe impl MemOpStream for Refusing {
    fn caps(&self) -> MemOpCaps {
        self.inner.caps()
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        if len == 8 {
            let _ = self.register.compare_exchange(0, addr.get(), Ordering::Relaxed, Ordering::Relaxed);
            if self.register.load(Ordering::Relaxed) == addr.get() {
                return Err(StreamError::Unreachable { addr, reason: "not permitted".to_owned() });
            }
        }
        self.inner.translate(addr, len)
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { self.inner.submit(ops) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        self.inner.wait_idle(timeout)
    }
}

fn refusing(path: DoorbellPath) -> Stream<Refusing> {
    let inner = SoftStream::new().unwrap();
    let options = StreamOptions::default().doorbells(path);
    Stream::with_options(Refusing { inner, register: AtomicU64::new(0) }, options).unwrap()
}

#[test]
fn a_stream_that_cannot_reach_the_register_falls_back_and_says_why() {
    let pair = Pair::new();
    let (source, target) = (pair.region(100), pair.region(100));
    let sent = fill(&source, 3);
    let stream = refusing(DoorbellPath::Auto);
    let slices = [source.slice(..).unwrap()];
    let write = pair.left.prepare(WorkRequest::write(&slices, target.remote())).unwrap();
    let done = pair.left.send_cq().prepare_wait().unwrap();
    let posted = stream.post(Batch::new().send(write).wait(done)).unwrap();
    assert_eq!(posted.operations, 4, "the proxy costs the stream nothing");
    assert!(stream.synchronize_timeout(LONG).unwrap());
    assert_eq!(content(&target), sent);
    let doorbells = stream.doorbells(&pair.left).unwrap();
    assert_eq!(doorbells.to_string(), "proxy (not permitted)");
}

#[test]
fn asking_how_doorbells_go_decides_it() {
    let pair = Pair::new();
    let stream = refusing(DoorbellPath::Auto);
    assert_eq!(
        stream.doorbells(&pair.left).unwrap(),
        Doorbells::Proxy { reason: "not permitted".to_owned() }
    );
    let direct = Stream::new(SoftStream::new().unwrap()).unwrap();
    assert_eq!(direct.doorbells(&pair.left).unwrap().to_string(), "direct");
}

#[test]
fn a_stream_told_to_ring_itself_says_that_it_cannot() {
    let pair = Pair::new();
    let stream = refusing(DoorbellPath::Direct);
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let error = stream.post(Batch::new().send(send)).unwrap_err();
    assert!(error.to_string().contains("not permitted"), "{error}");
    assert_eq!((error.posted, error.batch.len()), (0, 1));
    assert!(stream.doorbells(&pair.left).is_err());
}

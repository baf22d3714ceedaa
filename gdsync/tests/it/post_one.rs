//! Single sends, posted alone: the fast path behaves as the general one.

use gdsync::memop::{Condition, EndProbe, MemOp, MemOpCaps, MemOpStream, StreamError};
use gdsync::memory::{HostAddr, StreamAddr};
use gdsync::queue::{OrderError, StateError};
use gdsync::stream::{DoorbellPath, PostError, PostFailure, Posted, StreamOptions};
use gdsync::{
    Batch, ConnectOptions, PreparedSend, QueueError, QueuePairConfig, SoftStream, Stream, WorkRequest,
};
use gdsync_test_support::pair::{LONG, Pair, poll};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

const WELL: u8 = 0;
const REFUSES_ONCE: u8 = 1;
const FAILS: u8 = 2;
/// Performs operations, but does not report it.
const MUTE: u8 = 3;

/// A software stream that takes fewer operations, and refuses some on demand.
struct Fickle {
    inner: SoftStream,
    mood: AtomicU8,
    most: usize,
    /// Tells that its work has ended.
    probe: Option<Arc<Probe>>,
}

#[derive(Debug, Default)]
struct Probe(AtomicBool);

impl EndProbe for Probe {
    fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

// SAFETY: forwards to the inner stream; refused operations are not performed.
unsafe impl MemOpStream for Fickle {
    fn caps(&self) -> MemOpCaps {
        MemOpCaps { max_outstanding: self.most, ..self.inner.caps() }
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.inner.translate(addr, len)
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        match self.mood.load(Ordering::Relaxed) {
            REFUSES_ONCE => {
                self.mood.store(WELL, Ordering::Relaxed);
                return Err(StreamError::Unsupported { what: "this one" });
            }
            FAILS => return Err(StreamError::Failed { reason: "it is broken".to_owned() }),
            _ => {}
        }
        // SAFETY: the caller's.
        unsafe { self.inner.submit(ops) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        Ok(self.inner.wait_idle(timeout)? && self.mood.load(Ordering::Relaxed) != MUTE)
    }

    fn end_probe(&self) -> Option<Arc<dyn EndProbe>> {
        Some(self.probe.clone()?)
    }
}

fn fickle(most: usize, options: StreamOptions) -> Stream<Fickle> {
    probed(most, options, None)
}

fn probed(most: usize, options: StreamOptions, probe: Option<Arc<Probe>>) -> Stream<Fickle> {
    let backend = Fickle { inner: SoftStream::new().unwrap(), mood: AtomicU8::new(WELL), most, probe };
    Stream::with_options(backend, options).unwrap()
}

fn synchronize(stream: &Stream<Fickle>) {
    assert!(stream.synchronize_timeout(LONG).unwrap(), "the stream is stuck: {stream:?}");
}

#[derive(Clone, Copy, Debug)]
enum Poster {
    Any,
    Owner,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Posts on one of the streams, by one thread of several or by the stream's owner.
    One(usize, Poster),
    Queued(usize),
    Batched(usize),
    Refused(usize),
    QueuedRefused(usize),
    /// The second of two first, which is refused.
    Swapped(usize),
    Dropped,
    Synchronize(usize),
}

fn action() -> impl Strategy<Value = Action> {
    // Mostly on one stream: a change waits until the other has passed its work.
    let stream = || prop_oneof![6 => Just(0usize), 1 => Just(1), 3 => Just(PROXIED)];
    let poster = || prop_oneof![Just(Poster::Any), Just(Poster::Owner)];
    prop_oneof![
        12 => (stream(), poster()).prop_map(|(at, by)| Action::One(at, by)),
        6 => stream().prop_map(Action::Queued),
        2 => stream().prop_map(Action::Batched),
        2 => stream().prop_map(Action::Refused),
        1 => stream().prop_map(Action::QueuedRefused),
        1 => stream().prop_map(Action::Swapped),
        1 => Just(Action::Dropped),
        1 => stream().prop_map(Action::Synchronize),
    ]
}

/// The stream whose doorbells the proxy rings.
const PROXIED: usize = 2;
const STREAMS: usize = 3;

/// Sends numbers through one queue pair.
struct Sender {
    pair: Pair,
    streams: [Stream<Fickle>; STREAMS],
    next: u32,
    /// Sent, not polled: the oldest is `next` minus this.
    open: u32,
}

const DEPTH: u32 = 16;

/// The streams survive it.
fn in_the_way(failure: &PostFailure) -> bool {
    matches!(
        failure,
        PostFailure::Queue(QueueError::Order(OrderError::OtherStream { .. }))
            | PostFailure::WouldBlock { .. }
    )
}

impl Sender {
    fn new() -> Self {
        let config = QueuePairConfig::default().send_depth(DEPTH).recv_depth(DEPTH);
        let pair = Pair::with(config, ConnectOptions::default());
        let rung_by = |path| StreamOptions::default().doorbells(path);
        let streams = [
            fickle(1000, StreamOptions::default()),
            fickle(5, rung_by(DoorbellPath::Direct)),
            fickle(1000, rung_by(DoorbellPath::Proxy)),
        ];
        Sender { pair, streams, next: 0, open: 0 }
    }

    fn prepare(&mut self) -> PreparedSend {
        self.pair.right.post_recv(&[], 0).unwrap();
        let number = self.next;
        (self.next, self.open) = (number + 1, self.open + 1);
        self.pair.left.prepare(WorkRequest::send(&[]).immediate(number)).unwrap()
    }

    /// Prepares and posts in one call, again after the obstacle has passed.
    fn queue(&mut self, at: usize) {
        self.pair.right.post_recv(&[], 0).unwrap();
        let (queue_pair, number) = (&self.pair.left, self.next);
        let request = || WorkRequest::send(&[]).immediate(number);
        while let Err(failure) = self.streams[at].queue_send(queue_pair, request()) {
            assert!(in_the_way(&failure), "{failure}");
            self.streams.iter().for_each(synchronize);
        }
        (self.next, self.open) = (self.next + 1, self.open + 1);
    }

    fn settle(&mut self) {
        self.streams.iter().for_each(synchronize);
        for number in self.next - self.open..self.next {
            assert_eq!(poll(&self.pair.left.send_cq()).status, Ok(()));
            let received = poll(&self.pair.right.recv_cq());
            assert_eq!((received.status, received.immediate), (Ok(()), Some(number)));
        }
        self.open = 0;
    }

    /// Posts refused sends, after the obstacle has passed.
    fn insist(&self, at: usize, mut result: Result<Posted, PostError>) {
        while let Err(error) = result {
            assert!(in_the_way(&error.source), "{error}");
            self.streams.iter().for_each(synchronize);
            result = self.streams[at].post(error.batch);
        }
    }

    fn act(&mut self, action: Action) {
        // An action sends two at most.
        if self.open + 2 > DEPTH {
            self.settle();
        }
        match action {
            Action::One(at, by) => {
                let send = self.prepare();
                let result = match by {
                    Poster::Any => self.streams[at].post_send(send),
                    Poster::Owner => self.streams[at].post_send_mut(send),
                };
                self.insist(at, result);
            }
            Action::Queued(at) => self.queue(at),
            Action::Batched(at) => {
                let (first, second) = (self.prepare(), self.prepare());
                self.insist(at, self.streams[at].post(Batch::new().send(first).send(second)));
            }
            Action::Refused(at) => {
                self.settle();
                let send = self.prepare();
                self.streams[at].mood.store(REFUSES_ONCE, Ordering::Relaxed);
                let error = self.streams[at].post_send_mut(send).unwrap_err();
                assert!(
                    matches!(error.source, PostFailure::Stream(StreamError::Unsupported { .. })),
                    "{error}"
                );
                assert_eq!((error.posted, error.batch.len()), (0, 1));
                // As valid as before, on any stream.
                let other = (at + 1) % STREAMS;
                self.insist(other, self.streams[other].post(error.batch));
            }
            Action::QueuedRefused(at) => {
                self.settle();
                self.streams[at].mood.store(REFUSES_ONCE, Ordering::Relaxed);
                let failure =
                    self.streams[at].queue_send(&self.pair.left, WorkRequest::send(&[])).unwrap_err();
                assert!(matches!(failure, PostFailure::Stream(StreamError::Unsupported { .. })), "{failure}");
                // Nothing of it blocks the next.
                self.queue((at + 1) % STREAMS);
            }
            Action::Swapped(at) => {
                // With room for it, so that only its order is wrong.
                synchronize(&self.streams[at]);
                let (first, second) = (self.prepare(), self.prepare());
                let error = self.streams[at].post_send(second).unwrap_err();
                assert!(
                    matches!(
                        error.source,
                        PostFailure::Queue(QueueError::Order(OrderError::OutOfOrder { .. }))
                    ),
                    "{error}"
                );
                self.insist(at, self.streams[at].post_send(first));
                self.insist(at, self.streams[at].post(error.batch));
            }
            Action::Dropped => drop(self.pair.left.prepare(WorkRequest::send(&[]).immediate(!0)).unwrap()),
            Action::Synchronize(at) => synchronize(&self.streams[at]),
        }
    }
}

#[test]
fn whatever_else_happens_sends_arrive_once_and_in_order() {
    let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    let actions = proptest::collection::vec(action(), 1..150);
    let result = proptest::test_runner::TestRunner::new(config).run(&actions, |actions| {
        let mut sender = Sender::new();
        actions.into_iter().for_each(|action| sender.act(action));
        sender.settle();
        sender.streams.iter().for_each(|stream| assert_eq!(stream.outstanding(), 0));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn a_full_stream_says_so_and_loses_nothing() {
    let mut sender = Sender::new();
    let stream = fickle(5, StreamOptions::default());
    let first = sender.prepare();
    stream.post_send(first).unwrap();
    sender.streams[0] = stream;
    sender.settle();
    let stream = &sender.streams[0];
    let word = sender.pair.region(8).word32(0).unwrap();
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    sender.open = 0;
    let mut refused = None;
    for posted in 0..5 {
        let send = sender.prepare();
        if let Err(error) = sender.streams[0].post_send(send) {
            assert!(
                matches!(error.source, PostFailure::WouldBlock { outstanding: 5, limit: 5, .. }),
                "{error}"
            );
            refused = Some((posted, error.batch));
            break;
        }
    }
    let (posted, batch) = refused.unwrap();
    assert_eq!(posted, 4, "the wait is one of the five");
    word.store(1);
    // The last accepted one shows the stream's progress.
    let posted = sender.streams[0].post_timeout(batch, LONG).unwrap();
    assert!(posted.submissions == 1);
    sender.settle();
}

#[test]
fn a_stream_that_fails_fails_the_queue_pairs_of_what_it_has() {
    let mut sender = Sender::new();
    for _ in 0..3 {
        let send = sender.prepare();
        sender.streams[0].post_send(send).unwrap();
    }
    sender.settle();
    let word = sender.pair.region(8).word32(0).unwrap();
    sender.streams[0].post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    let (accepted, refused) = (sender.prepare(), sender.prepare());
    sender.streams[0].post_send(accepted).unwrap();
    sender.streams[0].mood.store(FAILS, Ordering::Relaxed);
    let error = sender.streams[0].post_send(refused).unwrap_err();
    assert!(matches!(error.source, PostFailure::Stream(StreamError::Failed { .. })), "{error}");
    assert!(sender.pair.left.failure().is_some());
    drop(error);
    for _ in 0..2 {
        assert!(poll(&sender.pair.left.send_cq()).status.unwrap_err().is_flush());
    }
    // Unlike a backend that has truly failed, this one continues with its operations, but not with queues that are
    // gone.
    word.store(1);
    assert!(sender.streams[0].wait_idle(LONG).unwrap());
}

#[test]
fn a_queue_pair_that_failed_takes_no_single_send() {
    let mut sender = Sender::new();
    for _ in 0..3 {
        let send = sender.prepare();
        sender.streams[0].post_send(send).unwrap();
    }
    sender.settle();
    let kept = sender.prepare();
    sender.pair.left.abort().unwrap();
    let error = sender.streams[0].post_send(kept).unwrap_err();
    assert!(
        matches!(error.source, PostFailure::Queue(QueueError::State(StateError::Failed { .. }))),
        "{error}"
    );
    drop(error);
    assert!(poll(&sender.pair.left.send_cq()).status.unwrap_err().is_flush());
}

#[test]
fn a_dropped_stream_with_a_probe_ends_when_that_says_so() {
    let mut sender = Sender::new();
    let probe = Arc::new(Probe::default());
    let gone = probed(1000, StreamOptions::default(), Some(probe.clone()));
    let (first, second) = (sender.prepare(), sender.prepare());
    gone.post_send(first).unwrap();
    assert!(gone.inner.wait_idle(LONG).unwrap());
    gone.mood.store(MUTE, Ordering::Relaxed);
    drop(gone);
    let error = sender.streams[0].post_send(second).unwrap_err();
    assert!(in_the_way(&error.source), "{error}");
    probe.0.store(true, Ordering::Relaxed);
    sender.streams[0].post(error.batch).unwrap();
    sender.settle();
}

#[test]
fn the_owner_of_a_stream_may_be_any_thread_in_its_turn() {
    let mut sender = Sender::new();
    let mut stream = fickle(1000, StreamOptions::default());
    for _ in 0..DEPTH / 2 {
        let (first, second) = (sender.prepare(), sender.prepare());
        // Others post, too, while it is not borrowed.
        std::thread::scope(|scope| drop(scope.spawn(|| stream.post_send_mut(first).unwrap())));
        std::thread::scope(|scope| drop(scope.spawn(|| stream.post_send(second).unwrap())));
    }
    synchronize(&stream);
    sender.settle();
}

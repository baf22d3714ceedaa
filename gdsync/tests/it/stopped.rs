//! Streams that stop at waits for words that nothing writes any more.

use gdsync::memop::{Condition, Gone, StreamError, WaitCause, Word32};
use gdsync::stream::{Cpu, PostFailure, StreamOptions};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream, WorkRequest};
use gdsync_test_support::pair::{LONG, Pair, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// A writer that a test ends.
#[derive(Debug, Default)]
struct Writer {
    has_ended: AtomicBool,
    holds: Mutex<Vec<Arc<AtomicBool>>>,
}

impl WaitCause for Writer {
    fn cause(&self) -> Option<String> {
        self.gone().map(|gone| gone.reason)
    }

    fn queue_pairs(&self) -> Vec<u32> {
        Vec::new()
    }

    fn gone(&self) -> Option<Gone> {
        let gone = || Gone { rank: Some(7), reason: "the writer has ended".to_owned() };
        self.has_ended.load(Ordering::Acquire).then(gone)
    }

    fn hold(&self, hold: &Arc<AtomicBool>) {
        self.holds.lock().unwrap().push(hold.clone());
    }
}

impl Writer {
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Returns whether streams hold the word, for each wait.
    fn holds(&self) -> Vec<bool> {
        self.holds.lock().unwrap().iter().map(|hold| hold.load(Ordering::Acquire)).collect()
    }
}

fn word() -> (Word32, Arc<Writer>) {
    let writer = Arc::new(Writer::default());
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    (word.written_by(writer.clone()), writer)
}

fn options() -> StreamOptions {
    StreamOptions::default().stop_at_death(true)
}

fn stopping() -> Stream<SoftStream> {
    Stream::with_options(SoftStream::new().unwrap(), options()).unwrap()
}

#[test]
fn a_stream_holds_the_words_that_it_waits_for_and_stops_when_their_writer_ends() {
    let (stream, plain) = (stopping(), Stream::new(SoftStream::new().unwrap()).unwrap());
    let (word, writer) = word();
    let wait = || Batch::new().wait_value32(&word, Condition::Eq, 1);
    plain.post(wait()).unwrap();
    assert!(writer.holds().is_empty(), "a stream without the option");
    stream.post(wait()).unwrap();
    assert_eq!(writer.holds(), [true]);
    assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap());
    writer.end();
    let expected = StreamError::Stopped { rank: Some(7), reason: "the writer has ended".to_owned() };
    assert_eq!(stream.synchronize(), Err(expected.clone()));
    assert!(!plain.synchronize_timeout(Duration::ZERO).unwrap());
    let full = loop {
        if let Err(error) = stream.post(Batch::new().barrier()) {
            break error.source;
        }
    };
    assert!(matches!(full, PostFailure::Stream(error) if error == expected));
    stream.go_on();
    assert_eq!(writer.holds(), [false]);
    // The word's writer may release the waits now.
    word.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap() && plain.synchronize_timeout(LONG).unwrap());
}

#[test]
fn a_wait_that_the_stream_has_passed_is_no_reason_to_stop() {
    let (stream, (passed, writer), (gate, _)) = (stopping(), word(), word());
    passed.store(1);
    // The wait, and a write that makes the word look as before.
    stream.post(Batch::new().wait_value32(&passed, Condition::Eq, 1).write_value32(&passed, 0)).unwrap();
    stream.post(Batch::new().wait_value32(&gate, Condition::Eq, 1)).unwrap();
    let deadline = Instant::now() + LONG;
    while stream.outstanding() > 1 {
        assert!(Instant::now() < deadline, "{stream:?}");
    }
    writer.end();
    assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap());
    gate.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap());
}

#[test]
fn what_follows_the_wait_of_a_stopped_stream_is_not_performed_after_its_drop() {
    let (pair, (word, writer), stream) = (Pair::new(), word(), stopping());
    let done = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
    pair.right.post_recv(&[], 1).unwrap();
    let batch = Batch::new().wait_value32(&word, Condition::Eq, 1).send(send).write_value32(&done, 1);
    stream.post(batch).unwrap();
    let kernel = Arc::new(AtomicBool::new(false));
    let of_kernel = kernel.clone();
    stream.launch(move || of_kernel.store(true, Ordering::Release)).unwrap();
    writer.end();
    assert!(matches!(stream.synchronize(), Err(StreamError::Stopped { .. })));
    drop(stream);
    let deadline = Instant::now() + LONG;
    while Arc::strong_count(&kernel) > 1 {
        assert!(Instant::now() < deadline);
    }
    word.store(1);
    // The send has not left: its queue pair has failed.
    assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
    assert!(pair.right.recv_cq().poll().unwrap().is_none());
    assert!(!kernel.load(Ordering::Acquire) && done.load() == 0);
    while Arc::strong_count(&writer) > 2 {
        assert!(Instant::now() < deadline, "the dropped stream's work is kept");
    }
}

#[test]
fn a_stream_of_the_cpu_does_not_stop() {
    let (stream, (word, writer)) = (Stream::with_options(Cpu::new(), options()).unwrap(), word());
    word.store(1);
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    assert!(writer.holds().is_empty());
}

/// Asks the stream that it is to hold a wait for.
#[derive(Debug)]
struct Asking(Weak<Stream<SoftStream>>);

impl WaitCause for Asking {
    fn cause(&self) -> Option<String> {
        None
    }

    fn queue_pairs(&self) -> Vec<u32> {
        Vec::new()
    }

    fn hold(&self, _: &Arc<AtomicBool>) {
        assert_eq!(self.0.upgrade().unwrap().outstanding(), 0);
    }
}

#[test]
fn what_holds_a_wait_may_call_the_stream() {
    let stream = Arc::new(stopping());
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let word = word.written_by(Arc::new(Asking(Arc::downgrade(&stream))));
    stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    word.store(1);
    assert!(stream.synchronize_timeout(LONG).unwrap());
}

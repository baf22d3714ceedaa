//! While a stream of the CPU waits in a post, every other call on it returns.

use gdsync::memop::{Condition, Word32};
use gdsync::stream::Cpu;
use gdsync::{Batch, PinnedMemory, Stream};
use gdsync_test_support::pair::{LONG, Pair};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(20);

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a call on another thread: one that blocks fails the test.
fn within<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} does not return"))
}

/// A stream of the CPU on which a thread posts a wait for a word, followed by a write.
struct Waiting {
    stream: Arc<Stream<Cpu>>,
    gate: Word32,
    word: Word32,
    poster: thread::JoinHandle<()>,
}

fn waiting() -> Waiting {
    let memory = PinnedMemory::allocate(8).unwrap();
    let (gate, word) = (Word32::new(&memory, 0).unwrap(), Word32::new(&memory, 4).unwrap());
    let stream = Arc::new(Stream::new(Cpu::new()).unwrap());
    let batch = Batch::new().wait_value32(&gate, Condition::Eq, 7).write_value32(&word, 1);
    let other = stream.clone();
    let poster = thread::spawn(move || {
        other.post(batch).unwrap();
    });
    let other = stream.clone();
    within("oldest_wait()", move || {
        eventually("the wait has a name", || other.oldest_wait().is_some());
    });
    Waiting { stream, gate, word, poster }
}

#[test]
fn questions_are_answered_while_a_post_waits() {
    let Waiting { stream, gate, word, poster } = waiting();
    let asked = stream.clone();
    let (outstanding, debug, idle, wait) = within("a question", move || {
        let idle = asked.synchronize_timeout(SHORT).unwrap();
        (asked.outstanding(), format!("{asked:?}"), idle, asked.oldest_wait().unwrap())
    });
    assert_eq!((outstanding, idle, word.load()), (1, false, 0));
    assert!(debug.contains("performing: true"), "{debug}");
    assert!(wait.starts_with("wait until") && wait.ends_with("eq 0x7"), "{wait}");
    gate.store(7);
    poster.join().unwrap();
    assert_eq!((stream.outstanding(), stream.oldest_wait(), word.load()), (0, None, 1));
    assert!(stream.synchronize_timeout(SHORT).unwrap());
}

#[test]
fn posts_take_turns() {
    let Waiting { stream, gate, word, poster } = waiting();
    let (second, last) = (stream.clone(), word.clone());
    let next = thread::spawn(move || {
        second.post(Batch::new().write_value32(&last, 2)).unwrap();
    });
    thread::sleep(SHORT);
    assert!(!next.is_finished(), "the first post is not over");
    assert_eq!(word.load(), 0);
    gate.store(7);
    poster.join().unwrap();
    next.join().unwrap();
    assert_eq!((stream.outstanding(), word.load()), (0, 2));
}

#[test]
fn the_watchdog_names_what_a_post_waits_for() {
    let Waiting { stream, gate, poster, .. } = waiting();
    let (sender, named) = mpsc::channel();
    let watchdog = stream.watchdog(SHORT, move |wait, _| sender.send(wait.clone()).unwrap()).unwrap();
    let wait = named.recv_timeout(LONG).unwrap();
    assert!(wait.description.ends_with("eq 0x7"), "{wait}");
    gate.store(7);
    poster.join().unwrap();
    drop(watchdog);
}

#[test]
fn an_abort_ends_a_post_that_waits_for_a_completion() {
    let pair = Pair::new();
    pair.right.post_recv(&[], 0).unwrap();
    let stream = Arc::new(Stream::new(Cpu::new()).unwrap());
    let batch = Batch::new().wait(pair.right.recv_cq().prepare_wait().unwrap());
    let other = stream.clone();
    let poster = thread::spawn(move || {
        other.post(batch).unwrap();
    });
    let asked = stream.clone();
    within("oldest_wait()", move || {
        eventually("the wait has a name", || asked.oldest_wait().is_some());
    });
    pair.right.abort().unwrap();
    poster.join().unwrap();
    assert_eq!(stream.outstanding(), 0);
}

#[test]
fn a_wait_that_times_out_fails_the_stream_for_the_threads_that_ask() {
    let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
    let stream = Arc::new(Stream::new(Cpu::with_timeout(Duration::from_millis(100))).unwrap());
    let (other, batch) = (stream.clone(), Batch::new().wait_value32(&word, Condition::Eq, 1));
    let poster = thread::spawn(move || other.post(batch).unwrap_err());
    let asked = stream.clone();
    within("synchronize()", move || {
        // Idle before the post, failed after it.
        eventually("the stream fails", || asked.synchronize().is_err());
    });
    let error = poster.join().unwrap();
    assert_eq!((error.posted, error.batch.len()), (0, 1));
    assert_eq!(stream.outstanding(), 0);
}

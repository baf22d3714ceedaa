//! Streams that are dropped before their work is done, or fail.

use gdsync::memop::{Condition, Word32};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream, WorkRequest};
use gdsync_test_support::pair::{LONG, Pair, poll, soft, synchronize};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// A kernel that runs until the returned sender sends.
fn gate(stream: &Stream<SoftStream>) -> Sender<()> {
    let (tell, told) = channel();
    stream.launch(move || told.recv().unwrap_or_default()).unwrap();
    tell
}

fn until(what: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !what() {
        assert!(Instant::now() < deadline, "it never came true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_last_word_of_a_dropped_stream_is_not_written_to_somebody_elses_lane() {
    let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 0).unwrap();
    let (dropped, bystander) = (soft(), soft());
    let first = gate(&dropped);
    // The 64th writes its progress.
    for i in 1..=64 {
        dropped.post(Batch::new().write_value32(&word, i)).unwrap();
    }
    let second = gate(&dropped);
    drop(dropped);
    first.send(()).unwrap();
    until(|| word.load() == 64);
    // The work that the dropped stream has passed is released, and perhaps its lane. A new stream may get the same
    // lane.
    bystander.outstanding();
    let stream = soft();
    let third = gate(&stream);
    stream.post(Batch::new().write_value32(&word, 1000)).unwrap();
    second.send(()).unwrap();
    for _ in 0..50 {
        assert_eq!(stream.outstanding(), 1, "a point of the dropped stream was taken for one of this");
        std::thread::sleep(Duration::from_millis(1));
    }
    third.send(()).unwrap();
    synchronize(&stream);
    assert_eq!(word.load(), 1000);
}

#[test]
fn a_full_stream_can_be_dropped() {
    let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 0).unwrap();
    let done = Word32::new(&PinnedMemory::allocate(8).unwrap(), 4).unwrap();
    let stream = soft();
    for _ in 0..1020 {
        stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
    }
    stream.post(Batch::new().write_value32(&done, 1)).unwrap();
    assert!(stream.post(Batch::new().write_value32(&done, 2)).is_err());
    drop(stream);
    word.store(1);
    until(|| done.load() == 1);
}

/// A failed stream fails the queue pairs of its accepted work, whatever the program does next with the stream.
#[test]
fn what_a_failed_stream_had_accepted_is_aborted() {
    for next in 0..4 {
        let pair = Pair::new();
        let stream = soft();
        stream.launch(|| panic!("a kernel that fails")).unwrap();
        let send = pair.left.prepare(WorkRequest::send(&[])).unwrap();
        let done = pair.left.send_cq().prepare_wait().unwrap();
        // The stream fails before or after.
        let batch = Batch::new().send(send).wait(done);
        let accepted = stream.post(batch).is_ok();
        until(|| stream.query().is_err());
        match next {
            0 => drop(stream),
            1 => assert!(stream.synchronize().is_err()),
            2 => assert!(
                stream.post(Batch::new().send(pair.right.prepare(WorkRequest::send(&[])).unwrap())).is_err()
            ),
            _ => {
                let word = Word32::new(&PinnedMemory::allocate(8).unwrap(), 0).unwrap();
                assert!(stream.post(Batch::new().write_value32(&word, 1)).is_err());
                assert_eq!(stream.outstanding(), 0);
            }
        }
        assert!(pair.left.failure().is_some(), "next {next}, accepted {accepted}");
        if accepted {
            assert!(poll(&pair.left.send_cq()).status.unwrap_err().is_flush());
        }
    }
}

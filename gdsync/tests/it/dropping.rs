//! Streams that are dropped before their work is done, or fail.

use crate::fan::connect;
use gdsync::memop::{Condition, Word32};
use gdsync::{
    Access, Batch, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePairConfig, SoftStream, Stream,
    Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, poll, soft, synchronize};
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

#[test]
fn a_send_is_dropped_although_a_stray_write_has_put_the_last_number_into_its_trigger() {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let words = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let trigger = Trigger::in_region(&words, 0).unwrap();
    let left = pair::queue_pair(&pd, QueuePairConfig::default().trigger(&trigger)).unwrap();
    let right = pair::queue_pair(&pd, QueuePairConfig::default()).unwrap();
    connect(&left, &right);
    let target = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let send = || left.prepare(WorkRequest::write_inline(b"whatever", target.remote())).unwrap();
    let (posted, dropped) = (send(), send());
    let stream = soft();
    let gate = gate(&stream);
    stream.post(Batch::new().send(posted)).unwrap();
    words.memory().words64()[0].store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    drop(dropped);
    gate.send(()).unwrap();
    // The stream's own write of a ticket ends what the stray one began.
    for _ in 0..2 {
        synchronize(&stream);
        assert_eq!(poll(&left.send_cq()).status, Ok(()));
        stream.post(Batch::new().send(send())).unwrap();
    }
}

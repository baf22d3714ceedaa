//! Lists of transfers for which the card waits.

use super::*;
use crate::statistics::counts;
use gdsync::Batch;
use gdsync::memop::{Condition, Word32};
use gdsync_test_support::process::alone;
use std::time::{Duration, Instant};

const CARD_WAITS: [(&str, &str); 1] = [("GDSYNC_MPI_CARD_WAITS", "1")];
const SHORT: Duration = Duration::from_millis(20);

/// A matched transfer with its memory.
struct Both {
    send: Arc<Request>,
    receive: Arc<Request>,
    source: PinnedMemory,
    target: PinnedMemory,
}

impl Both {
    fn new() -> Self {
        let (source, target) = (memory(&[0; 64]), memory(&[0; 64]));
        let (send, receive) = (transfer(true, &source), transfer(false, &target));
        pair(&send, &receive).unwrap();
        Both { send, receive, source, target }
    }
}

/// Makes a queue's stream wait for a 1 in the returned word.
fn gate(queue: &Queue) -> Word32 {
    let word = Word32::new(&memory(&[0; 4]), 0).unwrap();
    let wait = Batch::new().wait_value32(&word, Condition::Eq, 1);
    queue.stream.post(wait, || {}).unwrap();
    word
}

/// Counts the memory operations of a call.
fn operations(act: impl FnOnce()) -> u64 {
    let before = counts().operations;
    act();
    counts().operations - before
}

#[test]
fn one_operation_starts_many_transfers_and_one_awaits_them() {
    let test = "one_operation_starts_many_transfers_and_one_awaits_them";
    if !alone(module_path!(), test, &CARD_WAITS) {
        return;
    }
    let all: Vec<_> = (0..16).map(|_| Both::new()).collect();
    let queue = queue();
    for round in 1..20 {
        for both in &all {
            both.source.write(0, &[round; 64]);
        }
        let late = gate(&queue);
        let list: Vec<_> = all.iter().flat_map(|both| [&both.send, &both.receive]).collect();
        assert_eq!(operations(|| started(&queue, &list).unwrap()), 1);
        // One more is for the stream's timeline.
        assert_eq!(operations(|| queue.enqueue_wait().unwrap()), 2);
        assert!(all.iter().all(|both| content(&both.target) == [round - 1; 64]));
        late.store(1);
        queue.synchronize().unwrap();
        assert!(all.iter().all(|both| content(&both.target) == [round; 64]));
    }
}

/// Ranks may run ahead of each other and are probed meanwhile; no message arrives before its receive is started.
#[test]
fn a_probe_lets_no_message_overtake_its_receive() {
    if !alone(module_path!(), "a_probe_lets_no_message_overtake_its_receive", &CARD_WAITS) {
        return;
    }
    let (both, sender, receiver) = (Both::new(), queue(), queue());
    both.source.write(0, &[1; 64]);
    let late = gate(&receiver);
    for (queue, request) in [(&sender, &both.send), (&receiver, &both.receive)] {
        started(queue, &[request]).unwrap();
        queue.enqueue_wait().unwrap();
    }
    for _ in 0..10 {
        both.send.probe();
        both.receive.probe();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(content(&both.target), [0; 64]);
    late.store(1);
    sender.synchronize().unwrap();
    receiver.synchronize().unwrap();
    assert_eq!(content(&both.target), [1; 64]);
}

/// A side's failure reaches the other side even if nothing is in flight: neither the message, which waits for its receive, nor the
/// clear-to-send write of a receive that waits for its stream.
#[test]
fn the_end_of_one_side_is_the_end_of_the_other() {
    if !alone(module_path!(), "the_end_of_one_side_is_the_end_of_the_other", &CARD_WAITS) {
        return;
    }
    for ends_sender in [true, false] {
        let (both, queue) = (Both::new(), queue());
        let (ended, other) = match ends_sender {
            true => (&both.send, &both.receive),
            false => (&both.receive, &both.send),
        };
        let stalled = gate(&queue);
        started(&queue, &[other]).unwrap();
        abort(&ended.state.lock().peers);
        if !ends_sender {
            stalled.store(1);
            std::thread::sleep(SHORT);
            assert!(other.outcome().is_none(), "it waits for the receive");
        }
        let until = Instant::now() + Duration::from_secs(20);
        let outcome = loop {
            match other.outcome() {
                None => assert!(Instant::now() < until),
                Some(outcome) => break outcome,
            }
            other.probe();
            std::thread::sleep(Duration::from_millis(2));
        };
        assert_eq!(outcome.unwrap_err().class, Class::Peer);
        stalled.store(1);
        queue.stream.synchronize(Duration::from_secs(20)).unwrap();
    }
}

#[test]
fn both_sides_wait_or_neither() {
    if !alone(module_path!(), "both_sides_wait_or_neither", &CARD_WAITS) {
        return;
    }
    let (source, target) = (memory(&[0; 8]), memory(&[0; 8]));
    let (send, receive) = (transfer(true, &source), transfer(false, &target));
    receive.connection_info(0).unwrap();
    let other =
        crate::connection::ConnectionInfo { probe_endpoint: None, ..send.connection_info(0).unwrap() };
    let failure = receive.connect(0, &to_bytes(&other.to_string())).unwrap_err();
    assert!(failure.text.contains("GDSYNC_MPI_CARD_WAITS is 1 on this rank, and 0 on the peer"), "{failure}");
}

/// Expects that no queue is made with an additional setting.
fn no_queue(test: &str, setting: (&str, &str), class: Class, word: &str) {
    if !alone(module_path!(), test, &[CARD_WAITS[0], setting]) {
        return;
    }
    let failure = Queue::new(AnyStream::software().unwrap()).unwrap_err();
    assert_eq!(failure.class, class);
    assert!(failure.text.contains(word), "{failure}");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let test = "settings_that_contradict_each_other_are_refused";
    no_queue(test, ("GDSYNC_MPI_HOLD_SENDS", "0"), Class::Argument, "GDSYNC_MPI_HOLD_SENDS is 0");
}

#[test]
fn a_card_that_does_not_wait_is_refused() {
    let test = "a_card_that_does_not_wait_is_refused";
    no_queue(test, ("SOFTHCA_WAITS", "off"), Class::Unsupported, "GDSYNC_MPI_CARD_WAITS is 1");
}

#[test]
fn another_setting_is_refused() {
    if !alone(module_path!(), "another_setting_is_refused", &[("GDSYNC_MPI_CARD_WAITS", "yes")]) {
        return;
    }
    let failure = AnyStream::software().unwrap_err();
    assert_eq!(failure.class, Class::Argument);
    assert!(failure.text.contains("\"yes\", neither 0 nor 1"), "{failure}");
}

//! Memory that a card reads and writes while safe code reads and writes it, in pieces of every size. Under
//! `scripts/sanitize thread` this finds accesses that race.

#![forbid(unsafe_code)]

use gdsync::WorkRequest;
use gdsync_test_support::OnDrop;
use gdsync_test_support::pair::{Pair, poll};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Bytes of a message: several lines, and a rest that is not a word.
const LEN: usize = 4096 + 13;
/// The word of each message that the program's other threads write to.
const OURS: usize = 17;

/// A word whose bytes are equal.
fn of_bytes(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

#[test]
fn payloads_are_copied_while_the_program_looks_in_pieces_of_every_size() {
    let pair = Pair::new();
    let (source, target) = (pair.region(LEN), pair.region(LEN));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = OnDrop(|| done.store(true, Ordering::Relaxed));
        // A word is never torn, whatever the card does with it at that time.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (i, word) in target.words64().iter().enumerate().filter(|(i, _)| *i != OURS) {
                    let value = word.load(Ordering::Relaxed);
                    assert_eq!(value, of_bytes(value as u8), "word {i}");
                }
            }
        });
        scope.spawn(|| {
            let mut round = 0;
            while !done.load(Ordering::Relaxed) {
                for word in target.words32() {
                    let value = word.load(Ordering::Acquire);
                    std::hint::black_box(value);
                }
                for memory in [&source, &target] {
                    memory.bytes()[OURS * 8 + 1].store(round, Ordering::Release);
                    memory.words32()[OURS * 2 + 1].store(u32::from(round), Ordering::Relaxed);
                    memory.write(OURS * 8 + 3, &[round; 4]);
                }
                let mut bytes = [0; 100];
                target.read(OURS, &mut bytes);
                round = round.wrapping_add(1);
            }
        });
        for round in 0..200 {
            for (i, word) in source.words64().iter().enumerate().filter(|(i, _)| *i != OURS) {
                word.store(of_bytes(round), Ordering::Relaxed);
                if i == LEN / 16 {
                    let slices = [source.slice(..).unwrap()];
                    pair.left.post_send(WorkRequest::write(&slices, target.remote())).unwrap();
                }
            }
            assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        }
    });
}

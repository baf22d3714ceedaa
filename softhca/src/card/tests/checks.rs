//! The findings of the check of memory and objects in use; none in a right program.

use super::*;
use crate::card::config::Checks;
use crate::liberties::{Liberties, LibertyKinds, Schedule};

/// Longer than the card holds something back.
const LATER: Duration = Duration::from_millis(11);

/// A pair on a card that checks, with memory of `len` bytes.
fn checked(len: usize) -> Pair {
    let pair = Pair::new(len);
    pair.card.set_checks(Checks::USE);
    pair.source.fill(1);
    pair
}

/// Posts a write of the source to the target.
fn write(pair: &mut Pair) {
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..pair.source.len));
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
}

/// Makes a step of the card that nothing but liberties delays.
fn step(pair: &Pair, now: Instant) {
    pair.card.shared.engine.lock().step(now);
}

/// Holds back what a schedule says for 10 ms.
fn hold(pair: &Pair, rules: &str) {
    let schedule: Schedule = format!("hold 10ms\n{rules}").parse().unwrap();
    pair.card.set_schedule(Some(&schedule));
}

/// The findings: fields and messages.
fn found(pair: &Pair) -> Vec<(&'static str, String)> {
    let all = pair.card.diagnostics().into_iter();
    all.inspect(|diagnostic| assert_eq!(diagnostic.verdict, Verdict::Accepted))
        .map(|diagnostic| (diagnostic.field, diagnostic.message))
        .collect()
}

fn only(pair: &Pair, field: &str, words: &[&str]) {
    let found = found(pair);
    assert!(found.len() == 1 && found[0].0 == field, "{found:?}");
    assert!(words.iter().all(|word| found[0].1.contains(word)), "{found:?}");
}

#[test]
fn a_buffer_that_changes_before_the_completion_is_named() {
    for is_checked in [true, false] {
        let mut pair = checked(256 * 1024);
        if !is_checked {
            pair.card.set_checks(Checks::empty());
        }
        hold(&pair, "transmit");
        let now = Instant::now();
        write(&mut pair);
        // The first packet has left.
        (0..10).for_each(|_| step(&pair, now));
        assert!(pair.left.cq.poll().is_none() && pair.target.bytes()[0] == pair.source.bytes()[0]);
        pair.source.bytes()[200_000] ^= 1;
        (1..10).for_each(|round| step(&pair, now + LATER * round));
        success(pair.left.cq.poll());
        if is_checked {
            let changed = pair.source.at as u64 + 200_000 / 64 * 64;
            let words = format!("{changed:#x}..{:#x}", changed + 64);
            only(&pair, "use of a source buffer", &["RdmaWrite of 262144 bytes", &words]);
        } else {
            assert_eq!(found(&pair), []);
        }
    }
}

#[test]
fn a_buffer_that_changes_before_the_card_reads_it_is_named() {
    let mut pair = checked(64);
    // Some seeds read ahead instead of late.
    let late = (0..16).find(|seed| {
        hold(&pair, &format!("seed {seed}\nfetch"));
        let now = Instant::now();
        write(&mut pair);
        (0..10).for_each(|_| step(&pair, now));
        let is_late = pair.left.cq.poll().is_none();
        if is_late {
            pair.source.bytes()[3] ^= 1;
            (0..10).for_each(|_| step(&pair, now + LATER));
            success(pair.left.cq.poll());
        }
        is_late
    });
    assert!(late.is_some());
    only(&pair, "use of a source buffer", &["RdmaWrite of 64 bytes"]);
}

#[test]
fn an_entry_that_changes_before_the_completion_is_named() {
    let mut pair = checked(64);
    hold(&pair, "acknowledgements");
    let now = Instant::now();
    write(&mut pair);
    (0..10).for_each(|_| step(&pair, now));
    assert!(pair.left.cq.poll().is_none());
    // The next lap.
    pair.left.head += SIZES.blocks - 1;
    pair.left.write(&[0xee; 64]);
    (0..10).for_each(|_| step(&pair, now + LATER));
    success(pair.left.cq.poll());
    only(&pair, "use of a work-queue entry", &["RdmaWrite of 64 bytes", "byte 0 "]);
}

#[test]
fn objects_that_end_in_use_are_named() {
    let mut pair = checked(64);
    hold(&pair, "acknowledgements");
    write(&mut pair);
    let now = Instant::now();
    (0..10).for_each(|_| step(&pair, now));
    pair.card.deregister_memory(pair.source.key).unwrap();
    only(&pair, "end of an object in use", &["RdmaWrite of 64 bytes", "deregistered"]);
    pair.card.destroy_qp(pair.left.qpn).unwrap();
    let found = found(&pair);
    assert!(found.len() == 2 && found[1].1.contains("neither completed nor flushed: it may"), "{found:?}");
}

/// Steps the card until requests of the left side have completed.
fn complete(pair: &mut Pair, count: usize) {
    for _ in 0..count {
        until("a completion", || {
            pair.run();
            pair.left.cq.peek()
        });
        success(pair.left.cq.poll());
    }
}

#[test]
fn what_waits_for_its_completions_is_right() {
    let mut pair = checked(200_000);
    for seed in 0..40 {
        let liberties = Liberties { seed, kinds: LibertyKinds::USUAL };
        pair.card.set_liberties(Some(liberties));
        pair.source.fill(seed as usize);
        write(&mut pair);
        complete(&mut pair, 1);
        // A fence waits for the result of a read, and the write behind it sends that.
        pair.source.bytes()[..64].fill(0);
        let (from, to, part) = (pair.target.remote(64), pair.target.remote(128), pair.source.data(0..64));
        let left = &mut pair.left;
        let read =
            left.wqe(Opcode::RdmaRead, &[from.as_bytes(), part.as_bytes()], CtrlFlags::CQ_UPDATE, [0; 4]);
        left.head += left.write(&read);
        let flags = CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE;
        let write = left.wqe(Opcode::RdmaWrite, &[to.as_bytes(), part.as_bytes()], flags, [0; 4]);
        left.post_wqe(&write);
        complete(&mut pair, 2);
        assert_eq!(pair.target.bytes()[128..192], pair.target.bytes()[64..128]);
    }
    pair.card.deregister_memory(pair.source.key).unwrap();
    for qp in [&pair.left, &pair.right] {
        pair.card.destroy_qp(qp.qpn).unwrap();
    }
    assert_eq!(found(&pair), []);
}

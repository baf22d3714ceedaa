//! Timers that run faster than hardware's, in the time that the tests give the card.

use super::dead_peers::{run_both, with_speed};
use super::hosts::{address_of, card_with};
use super::*;
use crate::card::config::{ack_timeout, rnr_timer};

fn speeds() -> impl Iterator<Item = Speed> {
    [1, 2, 7, Speed::MAX].into_iter().map(|times| Speed::new(times).unwrap())
}

/// Steps a card at a time until it has nothing to do. Returns when the queue pair's timer expires.
fn wake_of(card: &Card, qp: &TestQp, now: Instant) -> Option<Instant> {
    let mut engine = card.shared.engine.lock();
    while engine.step(now) {}
    engine.qps[&qp.qpn].requester.next_wake()
}

#[test]
fn the_time_until_a_packet_is_sent_again_is_divided() {
    for speed in speeds() {
        let (near, far) = (with_speed(speed), with_speed(speed));
        let mut sender = TestQp::new(&near, near.alloc_pd().unwrap(), &SIZES);
        let to = TestQp::new(&far, far.alloc_pd().unwrap(), &SIZES);
        sender.connect(
            &near,
            to.qpn,
            far.lid(),
            QpChange { timeout: Some(31), retry_cnt: Some(1), ..QpChange::default() },
        );
        sender.post(Opcode::Send, &[&inline(b"hello")]);
        let now = Instant::now();
        assert_eq!(wake_of(&near, &sender, now), Some(now + speed.of(ack_timeout(31).unwrap())));
    }
}

#[test]
fn the_pause_for_a_receiver_that_is_not_ready_is_divided() {
    for speed in speeds() {
        // Code 0 is the longest, 655 ms.
        let change = QpChange { min_rnr_timer: Some(0), ..QpChange::default() };
        let mut pair = Pair::on(with_speed(speed), &SIZES, 64, change);
        pair.left.post(Opcode::Send, &[&inline(b"hello")]);
        let now = Instant::now();
        assert_eq!(wake_of(&pair.card, &pair.left, now), Some(now + speed.of(rnr_timer(0))));
    }
}

/// Checks that a sender on `near` whose peer is on `far` fails, and that both cards report the reason.
fn refuse(near: &Card, far: &Card, address: Option<Address>) {
    let mut sender = TestQp::new(near, near.alloc_pd().unwrap(), &SIZES);
    let to = TestQp::new(far, far.alloc_pd().unwrap(), &SIZES);
    sender.connect(near, to.qpn, far.lid(), QpChange { address, timeout: Some(8), ..QpChange::default() });
    sender.post(Opcode::Send, &[&inline(b"hello")]);
    run_both(near, Some(far), || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
    let found = |card: &Card| card.diagnostics().into_iter().find(|found| found.field == "SOFTHCA_CLOCK");
    run_both(near, Some(far), || [near, far].iter().all(|card| found(card).is_some()));
    for (card, speeds) in [
        (near, "timers 20 times as fast as hardware's and this card 1 times"),
        (far, "timers 1 times as fast as hardware's and this card 20 times"),
    ] {
        let found = found(card).unwrap();
        assert!(found.verdict == Verdict::Refused && found.message.contains(speeds), "{found}");
        assert!(found.message.contains("same SOFTHCA_CLOCK"), "{found}");
    }
}

#[test]
fn a_card_of_another_speed_is_not_reached_and_diagnostics_say_why() {
    let fast = Speed::new(20).unwrap();
    refuse(&with_speed(Speed::default()), &with_speed(fast), None);
    let far = card_with(202, fast);
    refuse(&card_with(201, Speed::default()), &far, Some(address_of(&far)));
}

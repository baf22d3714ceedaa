//! A target whose initiators are on other cards, one of which does not run for a while.

use super::super::dead_peers::{card, first_counts, run_both};
use super::*;

const BYTES: usize = 3 << 20;

/// An initiator whose first time-out that counts fails it.
fn impatient(card: &Card, pdn: u32) -> TestQp {
    let qp = TestQp::with(card, pdn, &SIZES, initiator);
    bring_up(card, qp.qpn, first_counts());
    qp
}

/// The address of a target on another card.
fn vector(card: &Card, target: &Target) -> AddressVector {
    let fields = AddressFields { qpn: target.qpn, dlid: card.lid(), ..AddressFields::default() };
    AddressVector::new(&fields).with_dc_key(KEY)
}

/// One initiator reads more than its link holds, and its card stops; the other one sends. The target's card has `plan`.
fn one_stops(plan: &str) {
    let [stopped, alive, serves] = [card(), card(), card()];
    let pdn = serves.alloc_pd().unwrap();
    let mut target = Target::new(&serves, pdn, 0x61);
    let place = Region::new(&serves, pdn, BYTES, everything());
    place.fill(5);
    serves.set_faults((!plan.is_empty()).then(|| plan.parse().unwrap()).as_ref());
    let vector = vector(&serves, &target);
    let mut sender = impatient(&alive, alive.alloc_pd().unwrap());
    let pdn = stopped.alloc_pd().unwrap();
    let (mut reader, local) = (impatient(&stopped, pdn), Region::new(&stopped, pdn, BYTES, everything()));

    let (from, into) = (place.remote(0), local.data(0..BYTES));
    reader.post(Opcode::RdmaRead, &[vector.as_bytes(), from.as_bytes(), into.as_bytes()]);
    run(&stopped);
    run(&serves);
    assert!(reader.cq.peek().is_none());
    for round in 0..8 {
        let index = target.srq.post(&[target.place.data(round * 64..round * 64 + 64)]);
        sender.post(Opcode::Send, &[vector.as_bytes(), &inline(b"hello")]);
        run_both(&alive, Some(&serves), || sender.cq.peek().is_some());
        success(sender.cq.poll());
        assert_eq!(target.cq.poll().map(|cqe| cqe.remote_qpn()), Some(sender.qpn));
        target.srq.release(index);
    }
    run_both(&stopped, Some(&serves), || reader.cq.peek().is_some());
    success(reader.cq.poll());
    assert_eq!(local.bytes(), place.bytes());
}

#[test]
fn a_target_serves_others_while_one_initiator_takes_nothing() {
    one_stops("");
}

#[test]
fn a_target_with_faults_serves_others_while_one_initiator_takes_nothing() {
    one_stops("delay=1ms every=1000000");
}

/// More initiators than packets that a queue pair sends at once.
#[test]
fn a_target_answers_every_initiator_in_a_round() {
    let [one, other, serves] = [card(), card(), card()];
    let target = Target::new(&serves, serves.alloc_pd().unwrap(), 0x61);
    let vector = vector(&serves, &target);
    let write = target.place.remote(0);
    let mut senders = Vec::new();
    for card in [&one, &other] {
        let pdn = card.alloc_pd().unwrap();
        senders.extend((0..40).map(|_| impatient(card, pdn)));
    }
    let post = |senders: &mut [TestQp]| {
        for sender in senders {
            sender.post(Opcode::RdmaWrite, &[vector.as_bytes(), write.as_bytes(), &inline(b"hello")]);
        }
        // A step polls the doorbells of some pages.
        (0..20).for_each(|_| [&one, &other].into_iter().for_each(run));
    };
    // The first time makes the links.
    post(&mut senders);
    until("the first answers", || {
        [&serves, &one, &other].into_iter().for_each(run);
        senders.iter().all(|sender| sender.cq.peek().is_some()).then_some(())
    });
    for sender in &mut senders {
        success(sender.cq.poll());
    }
    post(&mut senders);
    let mut engine = serves.shared.engine.lock();
    while engine.take_packets(Instant::now()) {}
    assert!(engine.step(Instant::now()));
    drop(engine);
    [&one, &other].into_iter().for_each(run);
    for sender in &mut senders {
        success(sender.cq.poll());
    }
}

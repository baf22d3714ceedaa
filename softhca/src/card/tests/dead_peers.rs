//! Peers whose process ends or is stopped: how queue pairs notice, and when they do not. A card that is not stepped
//! behaves like that of a stopped process.

use super::datagrams::{QKEY, datagram_qp};
use super::*;
use gdsync_sys::prm::wqe::{AddressFields, AddressVector};

pub(super) fn card() -> Card {
    with_speed(Speed::default())
}

pub(super) fn with_speed(speed: Speed) -> Card {
    let fabric = Fabric::on_host(speed).unwrap();
    Card::on(fabric, 0, LinkLayer::InfiniBand, Box::new(drop), Default::default(), Default::default())
}

/// Steps both cards until `done`, for a minute at most.
pub(super) fn run_both(one: &Card, other: Option<&Card>, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "nothing happens");
        run(one);
        other.into_iter().for_each(run);
    }
}

#[test]
fn a_sender_learns_of_a_death_and_a_receiver_does_not() {
    let (alive, dies) = (card(), card());
    let pdn = alive.alloc_pd().unwrap();
    let [mut sender, mut receiver] = [(), ()].map(|()| TestQp::new(&alive, pdn, &SIZES));
    let other_pdn = dies.alloc_pd().unwrap();
    let [to, from] = [(), ()].map(|()| TestQp::new(&dies, other_pdn, &SIZES));
    // A timeout of a quarter of a second. The peer's end is noticed after the first one.
    let patient = QpChange { timeout: Some(16), ..QpChange::default() };
    sender.connect(&alive, to.qpn, dies.lid(), patient);
    to.connect(&dies, sender.qpn, alive.lid(), patient);
    receiver.connect(&alive, from.qpn, dies.lid(), patient);
    from.connect(&dies, receiver.qpn, alive.lid(), patient);
    let target = Region::new(&alive, pdn, 64, everything());
    receiver.post_recv(&[target.data(0..64)]);
    let source = Region::new(&dies, other_pdn, 64, everything());
    sender.post(Opcode::RdmaWrite, &[source.remote(0).as_bytes(), &inline(b"before")]);
    run_both(&alive, Some(&dies), || sender.cq.peek().is_some());
    success(sender.cq.poll());
    drop(dies);
    sender.post(Opcode::RdmaWrite, &[source.remote(0).as_bytes(), &inline(b"after")]);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
    assert!(receiver.cq.poll().is_none(), "as on hardware, a queue pair that only waits does not notice");
    assert_eq!(alive.query_qp(receiver.qpn).unwrap().state, QpState::Rts);
}

/// Attributes with which the first time-out of 17 ms that counts fails a queue pair.
pub(super) fn first_counts() -> QpChange {
    QpChange { timeout: Some(12), retry_cnt: Some(0), ..QpChange::default() }
}

/// Returns a sender connected to a queue pair on another card, whose memory takes writes. The first time-out that
/// counts fails the sender.
pub(super) fn impatient(sends: &Card, receives: &Card) -> (TestQp, Region) {
    let sender = TestQp::new(sends, sends.alloc_pd().unwrap(), &SIZES);
    let pdn = receives.alloc_pd().unwrap();
    let to = TestQp::new(receives, pdn, &SIZES);
    sender.connect(sends, to.qpn, receives.lid(), first_counts());
    to.connect(receives, sender.qpn, sends.lid(), first_counts());
    (sender, Region::new(receives, pdn, 64, everything()))
}

/// Steps a card for many of the time-outs of [`impatient`].
pub(super) fn run_for_a_while(card: &Card) {
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        run(card);
    }
}

pub(super) fn write(to: &Region) -> [Vec<u8>; 2] {
    [to.remote(0).as_bytes().to_vec(), inline(b"hello")]
}

#[test]
fn a_stopped_peer_is_waited_for() {
    let (alive, stopped) = (card(), card());
    // Its thread does not run, and no signal has stopped its process.
    let (mut sender, target) = impatient(&alive, &stopped);
    for _ in 0..3 {
        let [remote, data] = write(&target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
        run_for_a_while(&alive);
        assert!(sender.cq.peek().is_none(), "it may still answer");
        run_both(&alive, Some(&stopped), || sender.cq.peek().is_some());
        success(sender.cq.poll());
    }
    assert_eq!(&target.bytes()[..5], b"hello");
}

#[test]
fn a_stopped_peer_that_dies_is_given_up() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_for_a_while(&alive);
    assert!(sender.cq.peek().is_none());
    drop(stopped);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn what_a_peer_has_answered_before_it_died_is_taken_first() {
    let (stopped, dies) = (card(), card());
    // A step takes fewer answers.
    let mut senders: Vec<_> = (0..40).map(|_| impatient(&stopped, &dies)).collect();
    for (sender, target) in &mut senders {
        let [remote, data] = write(target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    }
    run(&stopped);
    until("all writes", || {
        run(&dies);
        senders.iter().all(|(_, target)| target.bytes().starts_with(b"hello")).then_some(())
    });
    run(&dies);
    drop(dies);
    // The time-outs pass before this card runs again.
    std::thread::sleep(Duration::from_millis(50));
    for (sender, target) in senders.iter_mut().skip(20) {
        let [remote, data] = write(target);
        sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    }
    run_both(&stopped, None, || senders.iter().all(|(sender, _)| sender.cq.peek().is_some()));
    for (sender, _) in &mut senders {
        success(sender.cq.poll());
    }
    run_both(&stopped, None, || senders.iter().skip(20).all(|(sender, _)| sender.cq.peek().is_some()));
    for (sender, _) in senders.iter_mut().skip(20) {
        assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
    }
}

#[test]
fn a_receive_from_the_dead_completes_before_what_they_do_not_answer_fails() {
    let (stopped, dies) = (card(), card());
    let (pdn, other) = (stopped.alloc_pd().unwrap(), dies.alloc_pd().unwrap());
    let mut receiver = TestQp::new(&stopped, pdn, &SIZES);
    let (cqn, mut from) = (receiver.cq.cqn, TestQp::new(&dies, other, &SIZES));
    receiver.connect(&stopped, from.qpn, dies.lid(), first_counts());
    from.connect(&dies, receiver.qpn, stopped.lid(), first_counts());
    // Both complete to the same queue. The peer of this one does not listen.
    let mut sender = TestQp::with(&stopped, pdn, &SIZES, |config| config.send_cq = Some(cqn));
    let deaf = TestQp::new(&dies, other, &SIZES);
    sender.connect(&stopped, deaf.qpn, dies.lid(), first_counts());
    let target = Region::new(&stopped, pdn, 64, everything());
    receiver.post_recv(&[target.data(0..64)]);
    sender.post(Opcode::Send, &[&inline(b"hello")]);
    run(&stopped);
    run_for_a_while(&dies);
    from.post(Opcode::Send, &[&inline(b"farewell")]);
    run(&dies);
    drop(dies);
    std::thread::sleep(Duration::from_millis(50));
    run_both(&stopped, None, || receiver.cq.peek().is_some());
    assert_eq!(receiver.cq.poll().unwrap().opcode(), Ok(CqeOpcode::RespSend));
    run_both(&stopped, None, || receiver.cq.peek().is_some());
    assert_eq!(error(receiver.cq.poll()), (CqeOpcode::RequesterError, Syndrome::RetryExceeded, 0));
}

/// The peer is not ready for the message, and then takes its duplicate.
#[test]
fn what_a_peer_has_acknowledged_before_it_died_is_not_sent_again() {
    let (alive, dies) = (card(), card());
    let mut sender = TestQp::new(&alive, alive.alloc_pd().unwrap(), &SIZES);
    let pdn = dies.alloc_pd().unwrap();
    let mut to = TestQp::new(&dies, pdn, &SIZES);
    sender.connect(&alive, to.qpn, dies.lid(), first_counts());
    to.connect(&dies, sender.qpn, alive.lid(), first_counts());
    let target = Region::new(&dies, pdn, 64, everything());
    to.post_recv(&[target.data(0..64)]);
    alive.set_faults(Some(&"duplicate nth=1 kind=send".parse().unwrap()));
    dies.set_faults(Some(&"rnr times=1".parse().unwrap()));
    sender.post(Opcode::Send, &[&inline(b"hello")]);
    run(&alive);
    run_both(&dies, None, || to.cq.peek().is_some());
    drop(dies);
    run_both(&alive, None, || sender.cq.peek().is_some());
    success(sender.cq.poll());
}

/// A program that has everything may end before its outstanding requests to an ended peer fail.
#[test]
fn what_a_dead_peer_owes_fails_when_the_program_has_had_time_to_end() {
    for times in [1, 20] {
        owes(Speed::new(times).unwrap());
    }
}

fn owes(speed: Speed) {
    let (alive, dies) = (with_speed(speed), with_speed(speed));
    let mut sender = TestQp::new(&alive, alive.alloc_pd().unwrap(), &SIZES);
    let to = TestQp::new(&dies, dies.alloc_pd().unwrap(), &SIZES);
    // All retries of this queue pair take half a second.
    sender.connect(&alive, to.qpn, dies.lid(), QpChange { timeout: Some(14), ..QpChange::default() });
    sender.post(Opcode::Send, &[&inline(b"hello")]);
    // The card's time stands still until it knows the peer's end.
    let from = Instant::now();
    while alive.shared.engine.lock().step(from) {}
    drop(dies);
    let mut engine = alive.shared.engine.lock();
    let node = engine.qps[&sender.qpn].endpoint.node(alive.port);
    while engine.fabric.is_alive(node) {
        assert!(from.elapsed() < Duration::from_secs(20), "its end is not noticed");
        engine.step(from);
    }
    // The card's time, afterwards for a millisecond of a card with hardware's timers.
    let mut at = |milliseconds: u64| {
        for micros in 0..1000 {
            engine.step(from + speed.of(Duration::from_micros(milliseconds * 1000 + micros)));
        }
        sender.cq.peek().is_some()
    };
    // The first time-out shows the peer's end, which stays known although the fabric tries its node again.
    assert_eq!([at(0), at(70)], [false; 2]);
    std::thread::sleep(Duration::from_millis(25));
    assert!(!at(590));
    assert!(at(620), "it fails once eight transmissions have had their time");
    drop(engine);
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

/// Returns a queue pair whose peer answered its message before it ended, and one that completes to the same queue and
/// whose peer did not. Steps the card until the end is known, and returns the card's time then.
fn answered_and_owed() -> (Card, TestQp, Instant) {
    let (alive, dies) = (card(), card());
    let (pdn, other) = (alive.alloc_pd().unwrap(), dies.alloc_pd().unwrap());
    let (mut answered, mut to) = (TestQp::new(&alive, pdn, &SIZES), TestQp::new(&dies, other, &SIZES));
    let cqn = answered.cq.cqn;
    let mut owed = TestQp::with(&alive, pdn, &SIZES, |config| config.send_cq = Some(cqn));
    let deaf = TestQp::new(&dies, other, &SIZES);
    // All retries take half a second.
    let patient = || QpChange { timeout: Some(14), retry_cnt: Some(7), ..QpChange::default() };
    answered.connect(&alive, to.qpn, dies.lid(), patient());
    to.connect(&dies, answered.qpn, alive.lid(), patient());
    owed.connect(&alive, deaf.qpn, dies.lid(), patient());
    let target = Region::new(&dies, other, 64, everything());
    to.post_recv(&[target.data(0..64)]);
    answered.post(Opcode::Send, &[&inline(b"hello")]);
    owed.post(Opcode::Send, &[&inline(b"are you there?")]);
    run_both(&alive, Some(&dies), || answered.cq.peek().is_some());
    drop(dies);
    let mut engine = alive.shared.engine.lock();
    let node = engine.qps[&owed.qpn].endpoint.node(alive.port);
    let from = Instant::now();
    while engine.fabric.is_alive(node) {
        assert!(from.elapsed() < Duration::from_secs(20), "its end is not noticed");
        engine.step(from);
    }
    drop(engine);
    (alive, answered, from)
}

/// Steps a card at this time and for a millisecond after it. Returns how many completions it has written.
fn completions_at(card: &Card, cqn: u32, at: Instant) -> u32 {
    let mut engine = card.shared.engine.lock();
    for micros in 0..1000 {
        engine.step(at + Duration::from_micros(micros));
    }
    drop(engine);
    card.query_cq(cqn).unwrap().produced
}

/// Steps a card every few milliseconds of its time until it has written two completions.
fn until_it_fails(card: &Card, cqn: u32, from: Instant) {
    let mut at = from;
    while completions_at(card, cqn, at) < 2 {
        at += Duration::from_millis(5);
        assert!(at < from + Duration::from_secs(5), "it never fails");
    }
}

/// On a busy machine the card's thread may run while the program's does not.
#[test]
fn what_a_dead_peer_owes_fails_when_the_program_has_taken_what_came_before() {
    let (card, mut answered, from) = answered_and_owed();
    let (cqn, times) = (answered.cq.cqn, 1..100);
    let mut at = times.map(|time| from + Duration::from_millis(50 * time));
    assert!(at.all(|at| completions_at(&card, cqn, at) == 1), "it fails before the program looks");
    success(answered.cq.poll());
    assert!(answered.cq.peek().is_none());
    until_it_fails(&card, cqn, from + Duration::from_secs(5));
    assert_eq!(error(answered.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn what_a_dead_peer_owes_fails_in_the_end_though_the_program_takes_nothing() {
    let (card, answered, from) = answered_and_owed();
    until_it_fails(&card, answered.cq.cqn, from);
}

#[test]
fn a_peer_whose_card_has_panicked_is_given_up() {
    let (alive, panics) = (card(), card());
    let (mut sender, target) = impatient(&alive, &panics);
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(&alive, Some(&panics), || sender.cq.peek().is_some());
    success(sender.cq.poll());
    assert!(
        !panics.shared.contain(&mut panics.shared.engine.lock(), |_| panic!("as a step of the card would"))
    );
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn what_faults_drop_counts_although_the_peer_is_stopped() {
    let (alive, stopped) = (card(), card());
    let (mut sender, target) = impatient(&alive, &stopped);
    alive.set_faults(Some(&"drop".parse().unwrap()));
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(&alive, None, || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn what_a_peer_drops_counts() {
    let (alive, drops) = (card(), card());
    let (mut sender, target) = impatient(&alive, &drops);
    drops.set_faults(Some(&"drop dir=in".parse().unwrap()));
    let [remote, data] = write(&target);
    sender.post(Opcode::RdmaWrite, &[&remote, &data]);
    run_both(&alive, Some(&drops), || sender.cq.peek().is_some());
    assert_eq!(error(sender.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn datagrams_to_the_dead_are_sent() {
    let (alive, dies) = (card(), card());
    let pdn = alive.alloc_pd().unwrap();
    let mut sender = datagram_qp(&alive, pdn);
    let to = datagram_qp(&dies, dies.alloc_pd().unwrap());
    let fields = AddressFields { qkey: QKEY, qpn: to.qpn, dlid: dies.lid(), ..AddressFields::default() };
    let vector = AddressVector::new(&fields);
    let mut dies = Some(dies);
    for _ in 0..40 {
        sender.post(Opcode::Send, &[vector.as_bytes(), &inline(b"are you there?")]);
        run_both(&alive, dies.as_ref(), || sender.cq.peek().is_some());
        success(sender.cq.poll());
        dies = None;
    }
    assert!(alive.diagnostics().is_empty());
}

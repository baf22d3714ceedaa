//! Injected faults: reliable connections recover from network faults, programs see the others.

use super::*;
use crate::card::port::MTU;
use crate::faults::FaultPlan;
use crate::liberties::journal::CardJournal;
use crate::liberties::{Decisions, Schedule};
use gdsync_sys::prm::wqe::AtomicSeg;

/// Returns a pair that allows every access, with a short timeout.
pub(super) fn quick(len: usize) -> Pair {
    let access = everything() | Access::REMOTE_ATOMIC;
    // 4.096 µs * 2^10: four milliseconds. A message takes less, even under a sanitizer.
    let change = QpChange { access: Some(access), timeout: Some(10), ..QpChange::default() };
    let mut pair = Pair::with(&SIZES, len, change);
    pair.target = Region::new(&pair.card, pair.pdn, len, access);
    pair
}

pub(super) fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn run_until(card: &Card, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen: {:?}", card.fault_counts());
        run(card);
    }
}

pub(super) fn injected(card: &Card) -> Vec<u64> {
    card.fault_counts().iter().map(|count| count.injected).collect()
}

/// Performs one operation of every kind: two messages of three packets each, a read of three, two atomics.
fn one_of_each(pair: &mut Pair, len: usize) {
    pair.source.fill(3);
    pair.right.post_recv(&[pair.target.data(0..len)]);
    let (whole, half) = (pair.source.data(0..len), pair.source.data(0..len));
    pair.left.post(Opcode::Send, &[whole.as_bytes()]);
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(len).as_bytes(), half.as_bytes()]);
    let back = pair.source.data(len..2 * len);
    pair.left.post(Opcode::RdmaRead, &[pair.target.remote(2 * len).as_bytes(), back.as_bytes()]);
    for (n, opcode) in [Opcode::AtomicFa, Opcode::AtomicCs].into_iter().enumerate() {
        let at = 3 * len + 8 * n;
        let (remote, result) = (pair.target.remote(at), pair.source.data(at..at + 8));
        let operands = AtomicSeg::new(5, 0);
        pair.left.post(opcode, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
    }
    let last = inline(b"the end");
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(4 * len).as_bytes(), &last]);
}

fn check_each(pair: &mut Pair, len: usize) {
    let counters: Vec<(u8, u16)> =
        std::iter::from_fn(|| pair.left.cq.poll()).map(|cqe| success(Some(cqe))).collect();
    let opcodes: Vec<u8> = counters.iter().map(|(opcode, _)| *opcode).collect();
    use Opcode::{AtomicCs, AtomicFa, RdmaRead, RdmaWrite, Send};
    assert_eq!(opcodes, [Send, RdmaWrite, RdmaRead, AtomicFa, AtomicCs, RdmaWrite].map(|code| code as u8));
    let received = pair.right.cq.poll().expect("the receive");
    assert_eq!((received.opcode(), received.byte_count()), (Ok(CqeOpcode::RespSend), len as u32));
    assert!(pair.right.cq.poll().is_none(), "once");
    let (source, target) = (pair.source.bytes(), pair.target.bytes());
    assert!(target[..len] == source[..len], "the send");
    assert!(target[len..2 * len] == source[..len], "the write");
    assert!(source[len..2 * len] == target[2 * len..3 * len], "the read");
    let word = |at: usize| u64::from_ne_bytes(target[at..at + 8].try_into().unwrap());
    assert_eq!((word(3 * len), word(3 * len + 8)), (5, 5), "each atomic, once");
    assert_eq!(&target[4 * len..4 * len + 7], b"the end");
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
}

#[test]
fn whichever_packet_is_lost_everything_arrives_once() {
    let len = 3 * crate::fabric::MAX_PAYLOAD;
    // Requests: 3 + 3 + 1 + 2 + 1; answers: 3 of the read, 2 of the atomics, and acknowledgements.
    let kinds = [
        ("send", 3),
        ("write", 4),
        ("read", 1),
        ("fetch-add", 1),
        ("compare-swap", 1),
        ("read-response", 3),
        ("atomic-response", 2),
        ("ack", 2),
    ];
    for (kind, count) in kinds {
        for nth in 1..=count {
            for action in ["drop", "duplicate", "delay=2ms", "drop dir=in"] {
                let (action, direction) = action.split_once(' ').unwrap_or((action, "dir=out"));
                let text = format!("{action} nth={nth} kind={kind} {direction}");
                let mut pair = quick(5 * len);
                pair.card.set_faults(Some(&plan(&text)));
                one_of_each(&mut pair, len);
                let mut done = 0;
                run_until(&pair.card, &text, || {
                    done = word(pair.left.cq.ring.cast(), (5 * 64 + 60) / 4).load(Ordering::Acquire) >> 24;
                    done & 0xf1 == 0 && injected(&pair.card) == [1]
                });
                check_each(&mut pair, len);
            }
        }
    }
}

/// Every packet has a name, and meets the fault of a schedule when it first leaves or comes.
#[test]
fn what_a_schedule_does_to_every_packet_is_made_good() {
    let len = 3 * crate::fabric::MAX_PAYLOAD;
    let packets = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 0), (5, 0)];
    for kind in ["drop", "duplicate", "delay", "rnr"] {
        let mut pair = quick(5 * len);
        let (journal, text) = CardJournal::in_memory();
        let schedule: Schedule = format!("hold 1ms\n{kind}").parse().unwrap();
        let decisions = Decisions::of(Some(&schedule), (None, 0), Some(journal));
        pair.card.follow(decisions);
        one_of_each(&mut pair, len);
        run_until(&pair.card, kind, || {
            word(pair.left.cq.ring.cast(), (5 * 64 + 60) / 4).load(Ordering::Acquire) >> 24 & 0xf1 == 0
        });
        check_each(&mut pair, len);
        let has = |name: String| text.lock().lines().any(|line| line == format!("+ {kind} qp {name}"));
        for (message, packet) in packets {
            let name = match kind {
                "rnr" => format!("1 message {message} packet {packet}"),
                _ => format!("0 request {message} packet {packet}"),
            };
            assert!(has(name.clone()), "{kind} {name} is not in {}", text.lock());
        }
        // The packets of the read's result, the results of the atomics, and the last acknowledgement.
        assert!(kind == "rnr" || (6..12).all(|packet| has(format!("1 answer {packet}"))), "{}", text.lock());
    }
}

#[test]
fn a_lost_refusal_is_made_good() {
    let mut pair = quick(4096);
    // The first send is lost, and the NAK that the second send causes is lost, too.
    pair.card.set_faults(Some(&plan("drop nth=1 kind=send; drop nth=1 kind=nak")));
    for i in 0..2 {
        pair.right.post_recv(&[pair.target.data(i * 8..i * 8 + 8)]);
        pair.left.post(Opcode::Send, &[&inline(&[i as u8 + 1; 8])]);
    }
    let mut sent = 0;
    run_until(&pair.card, "both sends", || {
        sent += usize::from(pair.left.cq.poll().is_some());
        sent == 2
    });
    assert_eq!(injected(&pair.card), [1, 1]);
    assert_eq!(pair.target.bytes()[..16], [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn what_is_always_lost_ends_the_retries() {
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan("drop kind=write")));
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"lost")]);
    run_until(&pair.card, "the end of the retries", || pair.left.cq.peek().is_some());
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RetryExceeded);
    assert_eq!(injected(&pair.card), [8], "the first, and seven more");
}

#[test]
fn every_syndrome_can_be_had_at_the_requester() {
    use Syndrome::*;
    let all = [
        ("local-length", LocalLength),
        ("local-qp-operation", LocalQpOperation),
        ("local-protection", LocalProtection),
        ("remote-access", RemoteAccess),
        ("remote-invalid-request", RemoteInvalidRequest),
        ("remote-operation", RemoteOperation),
        ("retry-exceeded", RetryExceeded),
        ("rnr-retry-exceeded", RnrRetryExceeded),
        ("flush", WrFlush),
    ];
    for (word, syndrome) in all {
        let mut pair = quick(64);
        pair.card.set_faults(Some(&plan(&format!("fail={word} nth=2"))));
        for at in 0..3 {
            pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(at).as_bytes(), &inline(&[1])]);
        }
        run(&pair.card);
        assert_eq!(success(pair.left.cq.poll()).1, 0);
        assert_eq!(error(pair.left.cq.poll()), (CqeOpcode::RequesterError, syndrome, 1), "{word}");
        assert_eq!(error(pair.left.cq.poll()).1, WrFlush);
        assert_eq!(pair.state(&pair.left), QpState::Err);
        assert_eq!(pair.target.bytes()[..3], [1, 0, 0], "what failed was not sent");
    }
}

#[test]
fn a_responder_refuses_and_fails() {
    use Syndrome::{RemoteAccess, RemoteInvalidRequest, RemoteOperation};
    let all = [
        ("remote-access", RemoteAccess),
        ("remote-invalid-request", RemoteInvalidRequest),
        ("remote-operation", RemoteOperation),
    ];
    for (name, syndrome) in all {
        let mut pair = quick(64);
        pair.card.set_faults(Some(&plan(&format!("fail={name} dir=in nth=1"))));
        pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"no")]);
        run(&pair.card);
        assert_eq!(error(pair.left.cq.poll()).1, syndrome);
        assert_eq!((pair.state(&pair.left), pair.state(&pair.right)), (QpState::Err, QpState::Err));
        assert_eq!(pair.target.bytes()[0], 0);
    }
}

#[test]
fn a_message_that_is_refused_in_its_middle_leaves_no_receive_behind() {
    let len = 3 * MTU as usize;
    for (place, first) in [(1, 0), (2, 0), (3, 0), (4, 1)] {
        let mut pair = quick(len);
        for _ in 0..3 {
            pair.right.post_recv(&[pair.target.data(0..len)]);
        }
        pair.card.set_faults(Some(&plan(&format!("fail=remote-operation dir=in nth={place}"))));
        let whole = pair.source.data(0..len);
        for _ in 0..2 {
            pair.left.post(Opcode::Send, &[whole.as_bytes()]);
        }
        run(&pair.card);
        for received in 0..first {
            let cqe = pair.right.cq.poll().expect("a receive");
            assert_eq!((cqe.opcode(), cqe.wqe_counter()), (Ok(CqeOpcode::RespSend), received));
        }
        for flushed in first..3 {
            assert_eq!(error(pair.right.cq.poll()), (CqeOpcode::ResponderError, Syndrome::WrFlush, flushed));
        }
    }
}

#[test]
fn a_receiver_is_not_ready_for_as_long_as_the_rule_says() {
    let mut pair = quick(64);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.card.set_faults(Some(&plan("rnr times=3")));
    pair.left.post(Opcode::Send, &[&inline(b"patience")]);
    run_until(&pair.card, "the send", || pair.left.cq.peek().is_some());
    success(pair.left.cq.poll());
    assert_eq!(injected(&pair.card), [3]);
    assert_eq!(&pair.target.bytes()[..8], b"patience");

    let mut pair = Pair::with(&SIZES, 64, QpChange { rnr_retry: Some(2), ..QpChange::default() });
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.card.set_faults(Some(&plan("rnr kind=send")));
    pair.left.post(Opcode::Send, &[&inline(b"in vain")]);
    run_until(&pair.card, "the error", || pair.left.cq.peek().is_some());
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RnrRetryExceeded);
    assert_eq!(injected(&pair.card), [3]);
}

#[test]
fn completions_come_late_and_in_order() {
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan("late=20ms nth=1 dir=out kind=write")));
    let start = Instant::now();
    for at in 0..2 {
        pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(at).as_bytes(), &inline(&[9])]);
    }
    run(&pair.card);
    assert_eq!(pair.target.bytes()[..2], [9, 9], "the data is there");
    run_until(&pair.card, "the completion", || pair.left.cq.peek().is_some());
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!([success(pair.left.cq.poll()).1, success(pair.left.cq.poll()).1], [0, 1]);
}

#[test]
fn late_completions_are_shown_when_the_queue_pair_is_reset_and_when_faults_end() {
    for end in [true, false] {
        let mut pair = quick(64);
        pair.card.set_faults(Some(&plan("late=60s")));
        pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(&[9])]);
        run(&pair.card);
        assert!(pair.left.cq.peek().is_none());
        if end {
            pair.card.set_faults(None);
            run(&pair.card);
        } else {
            let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
            pair.card.modify_qp(pair.left.qpn, &reset).unwrap();
        }
        success(pair.left.cq.poll());
    }
}

#[test]
fn a_late_completion_that_finds_its_queue_full_kills_it() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &Sizes { cqes: 2, ..SIZES });
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    card.set_faults(Some(&plan("late=1ms")));
    (0..3).for_each(|_| qp.post(Opcode::Nop, &[]));
    run_until(&card, "the overrun", || {
        card.query_qp(qp.qpn).unwrap().state == QpState::Err && card.query_cq(qp.cq.cqn).unwrap().overrun
    });
}

#[test]
fn memory_goes_under_the_card() {
    // A write of inline data resolves the target's key. A write of registered data resolves the
    // source's key, then the target's.
    let cases = [("access=local", Syndrome::LocalProtection), ("access=remote", Syndrome::RemoteAccess)];
    for (side, syndrome) in cases {
        let mut pair = quick(64);
        pair.card.set_faults(Some(&plan(&format!("gone nth=2 {side}"))));
        for _ in 0..3 {
            let data = pair.source.data(0..8);
            pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), data.as_bytes()]);
        }
        run(&pair.card);
        success(pair.left.cq.poll());
        assert_eq!(error(pair.left.cq.poll()), (CqeOpcode::RequesterError, syndrome, 1));
        assert_eq!(error(pair.left.cq.poll()).1, Syndrome::WrFlush);
    }
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan(&format!("gone key={:#x}", pair.target.key))));
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.left.post(Opcode::Send, &[&inline(b"where to")]);
    run(&pair.card);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteOperation);
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalProtection);
}

#[test]
fn a_dead_card_is_silent() {
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan("die nth=4")));
    let write = inline(&[1]);
    for at in 0..8 {
        pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(at).as_bytes(), &write]);
    }
    run_until(&pair.card, "the end of the retries", || pair.state(&pair.left) == QpState::Err);
    let ends: Vec<Syndrome> = std::iter::from_fn(|| pair.left.cq.poll())
        .filter(|cqe| cqe.is_error())
        .map(|cqe| cqe.syndrome().unwrap())
        .collect();
    assert_eq!(ends[0], Syndrome::RetryExceeded);
    assert!(ends[1..].iter().all(|syndrome| *syndrome == Syndrome::WrFlush));
}

#[test]
fn held_packets_let_others_pass_but_not_their_own() {
    let mut pair = quick(64);
    let change = QpChange { timeout: Some(14), ..QpChange::default() };
    let (mut third, fourth) =
        (TestQp::new(&pair.card, pair.pdn, &SIZES), TestQp::new(&pair.card, pair.pdn, &SIZES));
    third.connect(&pair.card, fourth.qpn, pair.card.lid(), change);
    fourth.connect(&pair.card, third.qpn, pair.card.lid(), change);
    let word = pair.target.remote(0);
    pair.card.set_faults(Some(&plan(&format!("hold=3 nth=1 qp={:#x} kind=write", pair.left.qpn))));
    for value in [1, 2] {
        pair.left.post(Opcode::RdmaWrite, &[word.as_bytes(), &inline(&[value])]);
    }
    {
        // The other pair's write arrives first, although it was posted last.
        third.post(Opcode::RdmaWrite, &[pair.target.remote(1).as_bytes(), &inline(&[7])]);
        let mut engine = pair.card.shared.engine.lock();
        let mut order = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while order.last() != Some(&[2, 7]) {
            assert!(Instant::now() < deadline);
            engine.step(Instant::now());
            let now = [pair.target.bytes()[0], pair.target.bytes()[1]];
            if order.last() != Some(&now) {
                order.push(now);
            }
        }
        assert!(order.contains(&[0, 7]), "{order:?}");
        assert!(!order.iter().any(|seen| seen[0] != 0 && seen[1] == 0), "{order:?}");
    }
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn unreliable_messages_are_lost_without_an_error() {
    let mut pair = super::connections::pair(64);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.card.set_faults(Some(&plan("drop nth=1; rnr; duplicate")));
    for value in [1, 2] {
        pair.left.post(Opcode::Send, &[&inline(&[value])]);
    }
    run(&pair.card);
    assert_eq!([success(pair.left.cq.poll()).1, success(pair.left.cq.poll()).1], [0, 1]);
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.wqe_counter(), pair.target.bytes()[0]), (0, 2));
    assert!(pair.right.cq.poll().is_none());
    assert_eq!(injected(&pair.card), [1, 0, 0], "rules for reliable connections do not apply");
}

#[test]
fn packets_of_a_former_life_are_forgotten() {
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan("delay=60s nth=1")));
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"old")]);
    run(&pair.card);
    for qp in [&mut pair.left, &mut pair.right] {
        let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
        pair.card.modify_qp(qp.qpn, &reset).unwrap();
        (qp.head, qp.received) = (0, 0);
        bytes(qp.dbrec.cast(), 8).fill(0);
    }
    assert!(pair.card.shared.engine.lock().delayed.is_empty());
    pair.left.connect(&pair.card, pair.right.qpn, pair.card.lid(), QpChange::default());
    pair.right.connect(&pair.card, pair.left.qpn, pair.card.lid(), QpChange::default());
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"new")]);
    run(&pair.card);
    assert_eq!(&pair.target.bytes()[..3], b"new");
    pair.card.set_faults(Some(&plan("delay=60s")));
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"end")]);
    run(&pair.card);
    pair.card.set_faults(None);
    run(&pair.card);
    assert_eq!(&pair.target.bytes()[..3], b"end", "delayed packets are released when faults end");
}

/// The program may find a receive before the card has sent its acknowledgement.
#[test]
fn an_acknowledgement_leaves_before_its_queue_pair_goes() {
    for kind in [Opcode::Send, Opcode::RdmaWrite] {
        let mut pair = quick(64);
        pair.right.post_recv(&[pair.target.data(0..64)]);
        let remote = pair.target.remote(0);
        let parts: &[&[u8]] =
            if kind == Opcode::Send { &[&inline(b"data")] } else { &[remote.as_bytes(), &inline(b"data")] };
        pair.left.post(kind, parts);
        let mut engine = pair.card.shared.engine.lock();
        engine.take_doorbells_of(pair.left.qpn, Instant::now());
        engine.serve(pair.left.qpn, Instant::now());
        drop(engine);
        assert!(pair.left.cq.poll().is_none(), "it is not acknowledged yet");
        pair.card.destroy_qp(pair.right.qpn).unwrap();
        run(&pair.card);
        assert_eq!(success(pair.left.cq.poll()).0, kind as u8);
    }
}

/// A delayed packet holds up the acknowledgement after it, for which the program does not wait.
#[test]
fn what_a_queue_pair_owes_leaves_before_its_end() {
    let mut pair = quick(64);
    pair.card.set_faults(Some(&plan("delay=60s kind=write nth=1")));
    pair.right.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"late")]);
    run(&pair.card);
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(8).as_bytes(), &inline(b"data")]);
    run(&pair.card);
    assert!(pair.left.cq.poll().is_none(), "the acknowledgement waits behind the write");
    pair.card.destroy_qp(pair.right.qpn).unwrap();
    run(&pair.card);
    assert_eq!(success(pair.left.cq.poll()).1, 0);
}

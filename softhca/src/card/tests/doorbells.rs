//! Doorbells of send queues, and their records.

use super::*;
use std::time::Duration;

fn connect(card: &Card, qp: &TestQp) {
    qp.connect(card, qp.qpn, card.lid(), QpChange::default());
}

/// Posts a NOP, and checks that the card completes it.
fn performs(card: &Card, qp: &mut TestQp) {
    qp.post(Opcode::Nop, &[]);
    run(card);
    success(qp.cq.poll());
}

/// Returns two queue pairs, each connected to itself, that share a page and so its register. Their doorbell records
/// start with `found`.
fn on_one_page(found: [u32; 2]) -> (Card, [TestQp; 2]) {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let uar = card.alloc_uar(&[0x800]).unwrap();
    let qps = found.map(|found| {
        let mut qp = TestQp::with(&card, pdn, &SIZES, |config| {
            word(config.dbrec, doorbell::DBR_SEND).store(doorbell::record(found), Ordering::Release);
            config.uar = Some(uar.id);
        });
        qp.page = uar.page;
        qp
    });
    qps.iter().for_each(|qp| connect(&card, qp));
    (card, qps)
}

#[test]
fn doorbells_that_make_no_sense_are_diagnosed() {
    let mut pair = Pair::new(64);
    // The record is behind: the doorbell names an entry that the record does not announce.
    let wqe = pair.left.wqe(Opcode::Nop, &[], CtrlFlags::CQ_UPDATE, [0; 4]);
    pair.left.write(&wqe);
    let second = CtrlSeg::new(Opcode::Nop, 1, pair.left.qpn, 1, CtrlFlags::empty(), [0; 4]);
    pair.left.store_doorbell(second.doorbell());
    pair.run();
    assert_eq!(pair.card.diagnostics()[0].verdict, Verdict::Refused);
    assert!(pair.diagnosed("send doorbell record"));
    assert!(pair.left.cq.poll().is_none(), "and not performed");
    // A queue pair of another page.
    let stranger = CtrlSeg::new(Opcode::Nop, 0, pair.right.qpn, 1, CtrlFlags::empty(), [0; 4]);
    pair.left.store_doorbell(stranger.doorbell());
    pair.run();
    assert!(pair.diagnosed("doorbell"));
    // More than the ring holds.
    pair.left.head = 39;
    pair.left.post(Opcode::Nop, &[]);
    pair.run();
    assert_eq!(pair.state(&pair.left), QpState::Err);
    let flushed = std::iter::from_fn(|| pair.left.cq.poll()).count();
    assert_eq!(flushed, 16, "what does not fit the ring does not exist");
}

#[test]
fn a_doorbell_may_name_the_index_behind_its_request() {
    // The way in which NVSHMEM's IBGDA rings.
    let mut pair = Pair::new(64);
    for round in 0..40 {
        let wqe = pair.left.wqe(Opcode::Nop, &[], CtrlFlags::CQ_UPDATE, [0; 4]);
        pair.left.head += pair.left.write(&wqe);
        word(pair.left.dbrec, doorbell::DBR_SEND).store(doorbell::record(pair.left.head), Ordering::Release);
        pair.left
            .store_doorbell(doorbell::Doorbell::without_record(pair.left.head as u16, pair.left.qpn).raw());
        pair.run();
        assert_eq!(success(pair.left.cq.poll()).1, round);
    }
    assert_eq!(pair.card.diagnostics(), []);
}

#[test]
fn ringing_before_rts_is_diagnosed_and_lost() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &SIZES);
    qp.post(Opcode::Nop, &[]);
    run(&card);
    assert!(card.diagnostics()[0].to_string().contains("rung in state Reset"));
    assert!(qp.cq.poll().is_none());
}

#[test]
fn a_doorbell_rung_before_a_reset_is_of_the_former_life() {
    let mut pair = Pair::new(64);
    pair.left.post(Opcode::Nop, &[]);
    let change = |state| QpChange { state: Some(state), ..QpChange::default() };
    pair.card.modify_qp(pair.left.qpn, &change(QpState::Err)).unwrap();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::WrFlush);
    // The card has not polled the register yet.
    pair.card.modify_qp(pair.left.qpn, &change(QpState::Reset)).unwrap();
    pair.left.head = 0;
    bytes(pair.left.dbrec.cast(), 8).fill(0);
    pair.left.connect(&pair.card, pair.right.qpn, pair.card.lid(), QpChange::default());
    pair.run();
    assert_eq!(pair.card.diagnostics().len(), 0, "{:?}", pair.card.diagnostics());
}

#[test]
fn a_record_from_before_a_reset_announces_nothing() {
    let (card, [mut failed, mut other]) = on_one_page([0, 0]);
    performs(&card, &mut failed);
    card.modify_qp(failed.qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() }).unwrap();
    // The program restarts the ring, and leaves the record unchanged.
    failed.head = 0;
    bytes(failed.sq, failed.blocks as usize * BASIC_BLOCK).fill(0);
    connect(&card, &failed);
    performs(&card, &mut other);
    assert!(failed.cq.poll().is_none() && card.diagnostics().is_empty(), "{:?}", card.diagnostics());
    // The record gets its former value, and the other queue pair's doorbell overwrites this one's.
    failed.post(Opcode::Nop, &[]);
    other.post(Opcode::Nop, &[]);
    run(&card);
    success(failed.cq.poll());
    success(other.cq.poll());
}

/// A program need not clear a doorbell record before its first post.
#[test]
fn what_a_record_held_before_announces_nothing() {
    let (card, [mut first, mut second]) = on_one_page([0, 0xff0f]);
    performs(&card, &mut first);
    assert_eq!((card.diagnostics(), card.query_qp(second.qpn).unwrap().state), (vec![], QpState::Rts));

    let nop = second.wqe(Opcode::Nop, &[], CtrlFlags::CQ_UPDATE, [0; 4]);
    second.head += second.write(&nop);
    word(second.dbrec, doorbell::DBR_SEND).store(doorbell::record(second.head), Ordering::Release);
    performs(&card, &mut first);
    success(second.cq.poll());
    performs(&card, &mut second);
}

#[test]
fn pages_are_looked_at_in_turn_and_those_that_are_told_at_once() {
    let mut pair = Pair::new(64);
    let card = &pair.card;
    let pages: Vec<_> = (0..700).map(|_| card.alloc_uar(&[0x800]).unwrap()).collect();
    let last = pages.last().unwrap();
    let mut late = TestQp::with(card, pair.pdn, &SIZES, |config| config.uar = Some(last.id));
    late.page = last.page;
    connect(card, &late);
    // Two polls in turn never happen at the same time.
    let (start, mut steps) = (Instant::now(), 0);
    let mut step = || {
        steps += 1;
        card.shared.engine.lock().step(start + steps * Duration::from_micros(50))
    };
    let mut longest = 0;
    for _ in 0..10 {
        late.post(Opcode::Nop, &[]);
        pair.left.post(Opcode::Nop, &[]);
        let steps = (1..).find(|_| {
            step();
            late.cq.peek().is_some() && pair.left.cq.peek().is_some()
        });
        longest = longest.max(steps.unwrap());
        success(late.cq.poll());
        success(pair.left.cq.poll());
        late.post(Opcode::Nop, &[]);
        card.shared.announced.push(last.id);
        step();
        success(late.cq.poll());
    }
    assert!((2..=4).contains(&longest), "{longest} steps");
    // Announcing a freed page has no effect.
    card.shared.announced.push(pages[0].id);
    card.free_uar(pages[0].id).unwrap();
    step();
    assert!(card.diagnostics().is_empty());
}

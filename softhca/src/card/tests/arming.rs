//! Arming of completion queues.

use super::*;
use gdsync_sys::prm::doorbell::CqArm;
use std::sync::mpsc::{Receiver, channel};

fn pair() -> (Pair, Receiver<Event>) {
    let (sender, events) = channel();
    let sink = move |event| sender.send(event).unwrap();
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(sink)).unwrap();
    (Pair::on(card, &SIZES, 64, QpChange::default()), events)
}

fn completions(events: &Receiver<Event>) -> Vec<u32> {
    let cqn = |event| match event {
        Event::Completion { cqn } => Some(cqn),
        _ => None,
    };
    events.try_iter().filter_map(cqn).collect()
}

/// Writes the record, and rings at a page.
fn arm(cq: &TestCq, page: *mut u8, arm: CqArm) {
    word(cq.dbrec, doorbell::DBR_CQ_ARM).store(arm.record(), Ordering::Release);
    ring(page, arm.doorbell(cq.cqn));
}

fn ring(page: *mut u8, value: u64) {
    // SAFETY: a register of a page that is mapped as long as its UAR exists.
    unsafe { AtomicU64::from_ptr(page.add(doorbell::UAR_CQ_ARM).cast()) }.store(value, Ordering::Release);
}

#[test]
fn an_armed_queue_tells_of_the_next_entry_once() {
    let (mut pair, events) = pair();
    // The page belongs to another UAR: the doorbell names the queue.
    let page = pair.card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page;
    arm(&pair.left.cq, page, CqArm::new(0, false, 0));
    pair.run();
    assert_eq!(completions(&events), []);
    for _ in 0..2 {
        pair.left.post(Opcode::Nop, &[]);
        pair.run();
    }
    assert_eq!(completions(&events), [pair.left.cq.cqn]);
    arm(&pair.left.cq, page, CqArm::new(1, false, 1));
    pair.run();
    assert_eq!(completions(&events), [pair.left.cq.cqn], "the second entry is there and not consumed");
    arm(&pair.left.cq, page, CqArm::new(2, false, 2));
    pair.run();
    assert_eq!(completions(&events), []);
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn two_queues_armed_before_the_card_looks() {
    let (mut pair, events) = pair();
    let page = pair.card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page;
    arm(&pair.left.cq, page, CqArm::new(0, false, 0));
    arm(&pair.right.cq, page, CqArm::new(0, false, 0));
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.left.post(Opcode::Send, &[pair.source.data(0..8).as_bytes()]);
    pair.run();
    let mut told = completions(&events);
    told.sort_unstable();
    let mut both = [pair.left.cq.cqn, pair.right.cq.cqn];
    both.sort_unstable();
    assert_eq!(told, both);
}

#[test]
fn a_solicited_arm_fires_for_solicited_messages_and_errors_only() {
    let (mut pair, events) = pair();
    let page = pair.card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page;
    let send = |pair: &mut Pair, flags| {
        pair.right.post_recv(&[pair.target.data(0..8)]);
        let wqe = pair.left.wqe(Opcode::Send, &[pair.source.data(0..8).as_bytes()], flags, [0; 4]);
        pair.left.post_wqe(&wqe);
        pair.run();
    };
    arm(&pair.right.cq, page, CqArm::new(0, true, 0));
    send(&mut pair, CtrlFlags::empty());
    assert_eq!(completions(&events), []);
    send(&mut pair, CtrlFlags::SOLICITED);
    assert_eq!(completions(&events), [pair.right.cq.cqn]);
    arm(&pair.right.cq, page, CqArm::new(1, true, 2));
    pair.right.post_recv(&[pair.target.data(0..8)]);
    let failed = QpChange { state: Some(QpState::Err), ..QpChange::default() };
    pair.card.modify_qp(pair.right.qpn, &failed).unwrap();
    pair.run();
    assert_eq!(completions(&events), [pair.right.cq.cqn], "a flushed receive is an error");
}

#[test]
fn doorbells_that_arm_nothing_are_diagnosed() {
    let (mut pair, events) = pair();
    let page = pair.card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page;
    ring(page, CqArm::new(0, false, 0).doorbell(0x77_7777));
    pair.run();
    assert_eq!(pair.card.diagnostics().len(), 1);
    ring(page, CqArm::new(0, false, 0).doorbell(pair.left.cq.cqn));
    pair.run();
    let found: Vec<_> = pair.card.diagnostics().iter().map(|found| (found.field, found.verdict)).collect();
    let field = "arm doorbell";
    assert_eq!(found, [(field, Verdict::Refused), (field, Verdict::Accepted)], "no such queue; no record");
    pair.left.post(Opcode::Nop, &[]);
    pair.run();
    assert_eq!(completions(&events), [pair.left.cq.cqn], "armed all the same");
}

#[test]
fn a_queue_that_is_destroyed_while_it_is_armed_is_no_mistake() {
    let (pair, _events) = pair();
    let page = pair.card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page;
    let cq = TestCq::new(&pair.card, 4);
    arm(&cq, page, CqArm::new(0, false, 0));
    pair.card.destroy_cq(cq.cqn).unwrap();
    pair.run();
    assert_eq!(pair.card.diagnostics(), []);
}

#[test]
fn threads_that_arm_in_a_loop_make_no_mistake() {
    /// Number of arms per thread: more than the card polls, so that most overwrite each other.
    const ARMS: u32 = 20_000;
    let card = Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let page = card.alloc_uar(&[doorbell::UAR_CQ_ARM]).unwrap().page as usize;
    let (cqs, consumed) = ([TestCq::new(&card, 4), TestCq::new(&card, 4)], AtomicU32::new(0));
    let queues = cqs.each_ref().map(|cq| (cq.cqn, cq.dbrec as usize));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..ARMS {
                    // Like `ibv_req_notify_cq`: read the numbers, write the record, then the register, without a lock.
                    let index = consumed.fetch_add(1, Ordering::Relaxed);
                    let next = CqArm::new((index / 7) as u8, false, index);
                    let (cqn, dbrec) = queues[round as usize % 2];
                    let record = word(dbrec as *mut u32, doorbell::DBR_CQ_ARM);
                    record.store(next.record(), Ordering::Release);
                    ring(page as *mut u8, next.doorbell(cqn));
                }
            });
        }
    });
    // Afterwards the card has handled all of them.
    cqs.iter().for_each(|cq| card.destroy_cq(cq.cqn).unwrap());
    assert_eq!(card.diagnostics(), []);
}

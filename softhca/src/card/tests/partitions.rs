//! Partition keys: packets pass between partners only, others are dropped and counted, without an answer.

use super::datagrams::{datagram_pair, ready};
use super::dead_peers::{card, run_both};
use super::*;
use crate::card::config::PkeyTable;

fn table(text: &str) -> PkeyTable {
    text.parse().unwrap()
}

fn card_with(pkeys: &str) -> Card {
    let mut card = card();
    card.set_pkeys(table(pkeys));
    card
}

/// Attributes with which a connection at an index of the table soon gives up.
fn at(index: u16) -> QpChange {
    QpChange { pkey_index: Some(index), timeout: Some(8), retry_cnt: Some(1), ..QpChange::default() }
}

/// Sends one message between two queue pairs of two cards, at these indices of their tables. Returns the sender's result,
/// and how many packets each port has dropped.
fn send_across(near: &str, far: &str, (one, other): (u16, u16)) -> (Option<Syndrome>, [u32; 2]) {
    let (near, far) = (card_with(near), card_with(far));
    let pdns = [&near, &far].map(|card| card.alloc_pd().unwrap());
    let (mut left, mut right) = (TestQp::new(&near, pdns[0], &SIZES), TestQp::new(&far, pdns[1], &SIZES));
    left.connect(&near, right.qpn, far.lid(), at(one));
    right.connect(&far, left.qpn, near.lid(), at(other));
    let target = Region::new(&far, pdns[1], 64, everything());
    right.post_recv(&[target.data(0..64)]);
    left.post(Opcode::Send, &[&inline(b"a partner")]);
    run_both(&near, Some(&far), || left.cq.peek().is_some());
    let cqe = left.cq.poll().unwrap();
    let failed = cqe.is_error().then(|| error(Some(cqe)).1);
    assert_eq!(right.cq.poll().is_some(), failed.is_none());
    assert_eq!(near.query_qp(left.qpn).unwrap().pkey_index, one);
    (failed, [near.bad_pkeys(), far.bad_pkeys()])
}

#[test]
fn a_connection_needs_a_partition_that_both_are_in_and_one_of_them_as_a_full_member() {
    let passes =
        |near, far, indices| assert_eq!(send_across(near, far, indices), (None, [0, 0]), "{near} {far}");
    passes("0xffff", "0xffff", (0, 0));
    passes("0xffff,0x8001", "0x8001,0xffff", (1, 0));
    passes("0x0001", "0x8001", (0, 0));
    passes("0x8001", "0x0001", (0, 0));
    let fails = |near, far, indices| {
        let (failed, [own, peer]) = send_across(near, far, indices);
        assert_eq!((failed, own), (Some(Syndrome::RetryExceeded), 0), "{near} {far}");
        assert_eq!(peer, 2, "the message, and its repetition");
    };
    fails("0x8001", "0x8002", (0, 0));
    fails("0xffff,0x8001", "0xffff,0x8001", (0, 1));
    fails("0x0001", "0x0001", (0, 0));
    fails("0xffff", "0x0001", (0, 0));
}

#[test]
fn an_index_may_change_before_rtr_and_not_past_the_table() {
    let card = card_with("0xffff,0x8001,0x0001");
    let pdn = card.alloc_pd().unwrap();
    let qp = TestQp::new(&card, pdn, &SIZES);
    let init = |index| QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(index),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpChange::default()
    };
    let refused = card.modify_qp(qp.qpn, &init(3)).unwrap_err();
    assert!(
        refused.to_string().contains("pkey_index is 0x3") && refused.to_string().contains("SOFTHCA_PKEYS")
    );
    assert_eq!(refused.errno(), libc::EINVAL);
    let key = || card.shared.engine.lock().qps[&qp.qpn].endpoint.pkey;
    for (index, expected) in [(2, 1), (1, 0x8001)] {
        card.modify_qp(qp.qpn, &init(index)).unwrap();
        assert_eq!((card.query_qp(qp.qpn).unwrap().pkey_index, key()), (index, expected));
    }
    let change = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
    card.modify_qp(qp.qpn, &change).unwrap();
    assert_eq!(card.query_qp(qp.qpn).unwrap().pkey_index, 0);
}

#[test]
fn datagrams_of_other_partitions_are_dropped_and_their_sends_complete() {
    for (indices, passes) in [((0, 0), true), ((1, 2), true), ((0, 1), false), ((2, 2), false)] {
        let card = card_with("0xffff,0x8001,0x0001");
        let pdn = card.alloc_pd().unwrap();
        let mut pair = datagram_pair(card, pdn, |_| {});
        for (qp, index) in [(&pair.left, indices.0), (&pair.right, indices.1)] {
            let reset = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
            pair.card.modify_qp(qp.qpn, &reset).unwrap();
            ready(&pair.card, qp, index);
        }
        pair.right.post_recv(&[pair.target.data(0..100)]);
        pair.send_datagram(0..12);
        pair.run();
        success(pair.left.cq.poll());
        assert_eq!(
            (pair.right.cq.poll().is_some(), pair.card.bad_pkeys()),
            (passes, u32::from(!passes)),
            "{indices:?}"
        );
    }
}

#[test]
fn management_datagrams_come_by_any_key_of_the_table() {
    let (near, far) = (card_with("0x8001,0x8002,0x0003"), card_with("0x0003,0x0001,0x8003"));
    for index in 0..3 {
        near.send_management(far.node(), index, &[index as u8]).unwrap();
    }
    let mut taken = Vec::new();
    run_both(&near, Some(&far), || {
        taken.extend(far.take_management());
        taken.len() == 2
    });
    let taken: Vec<(u8, u16)> =
        taken.iter().map(|datagram| (datagram.bytes[0], datagram.pkey_index)).collect();
    assert_eq!((taken, far.bad_pkeys()), (vec![(0, 1), (2, 2)], 1));
}

#[test]
fn the_count_of_violations_ends_as_hardwares() {
    let card = card();
    (0..u32::from(u16::MAX) + 2).for_each(|_| card.shared.engine.lock().resources.counters.bad_pkey());
    assert_eq!(card.bad_pkeys(), 0xffff);
}

//! Queue pairs without a doorbell record of sends: one store at 0x600 rings them.

use super::*;
use gdsync_sys::prm::doorbell::{Doorbell, UAR_NO_RECORD};

fn store(qp: &TestQp, bell: Doorbell) {
    // SAFETY: a register of our own page, which is mapped as long as the UAR exists.
    unsafe { AtomicU64::from_ptr(qp.page.add(UAR_NO_RECORD).cast()) }.store(bell.raw(), Ordering::Release);
}

fn bell(qp: &TestQp, producer: u32) -> Doorbell {
    Doorbell::without_record(producer as u16, qp.qpn)
}

fn bed() -> (Card, TestQp) {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let qp = TestQp::with(&card, pdn, &SIZES, |config| config.no_send_record = true);
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    (card, qp)
}

#[test]
fn one_store_rings_up_to_its_index() {
    let (card, mut qp) = bed();
    for round in 0..70_000u32 {
        push(&mut qp, Opcode::Nop, &[]);
        store(&qp, bell(&qp, round + 1));
        run(&card);
        assert_eq!(success(qp.cq.poll()).1, round as u16);
    }
    for _ in 0..3 {
        push(&mut qp, Opcode::Nop, &[]);
    }
    store(&qp, bell(&qp, qp.head - 1));
    run(&card);
    assert_eq!(std::iter::from_fn(|| qp.cq.poll()).count(), 2, "not beyond it");
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}

#[test]
fn the_wrong_register_and_an_index_that_is_behind_are_reported() {
    let (card, mut qp) = bed();
    push(&mut qp, Opcode::Nop, &[]);
    ring(&qp);
    run(&card);
    assert!(qp.cq.poll().is_none() && card.diagnostics()[0].message.contains("0x600"));
    store(&qp, bell(&qp, 1));
    run(&card);
    success(qp.cq.poll());
    store(&qp, bell(&qp, 0));
    run(&card);
    assert!(card.diagnostics()[1].message.contains("behind"));
    store(&qp, Doorbell::without_record(1, 0x77_7777));
    run(&card);
    assert_eq!(card.diagnostics().len(), 3, "it names no queue pair of the page");
}

#[test]
fn a_queue_pair_with_a_record_is_not_rung_there() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut page = None;
    let with = TestQp::with(&card, pdn, &SIZES, |config| {
        page = config.uar;
        config.no_send_record = true;
    });
    let mut ordinary = TestQp::with(&card, pdn, &SIZES, |config| config.uar = page);
    ordinary.connect(&card, ordinary.qpn, card.lid(), QpChange::default());
    ordinary.page = with.page;
    push(&mut ordinary, Opcode::Nop, &[]);
    store(&ordinary, bell(&ordinary, 1));
    run(&card);
    assert!(ordinary.cq.poll().is_none() && card.diagnostics()[0].message.contains("not rung at 0x600"));
}

#[test]
fn there_are_so_many_of_them() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let cq = TestCq::new(&card, 8);
    let pages = card.limits().max_recordless_qp as usize;
    let uars: Vec<_> = (0..=pages).map(|_| card.alloc_uar(&[0x800]).unwrap()).collect();
    let config = QpConfig {
        pdn: Some(pdn),
        send_cq: Some(cq.cqn),
        recv_cq: Some(cq.cqn),
        no_send_record: true,
        ..QpConfig::new(Transport::Rc)
    };
    // SAFETY: there are no queues.
    let create = |page: usize| unsafe { card.create_qp(&QpConfig { uar: Some(uars[page].id), ..config }) };
    let first = create(0).unwrap();
    let error = create(0).unwrap_err().to_string();
    assert!(error.starts_with("1 of ") && error.contains("on one UAR page"), "{error}");
    (1..pages).for_each(|page| assert!(create(page).is_ok()));
    assert!(matches!(create(pages), Err(CardError::TooMany { limit, .. }) if limit as usize == pages));
    // SAFETY: as above.
    unsafe { card.create_qp(&QpConfig { uar: Some(uars[0].id), no_send_record: false, ..config }) }.unwrap();
    card.destroy_qp(first).unwrap();
    create(0).unwrap();
}

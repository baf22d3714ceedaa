//! SEND_EN: a master releases the sends of its slaves.

use super::*;

struct Bed {
    card: Card,
    master: TestQp,
    slaves: Vec<TestQp>,
}

/// Returns a master and slaves, each connected to itself, on a shared page of registers.
fn bed(slaves: usize) -> Bed {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let master = TestQp::with(&card, pdn, &SIZES, |config| config.master = true);
    let slave = |_| TestQp::with(&card, pdn, &SIZES, |config| config.slave_send = true);
    let slaves: Vec<TestQp> = (0..slaves).map(slave).collect();
    for qp in slaves.iter().chain([&master]) {
        qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    }
    Bed { card, master, slaves }
}

fn push_enable(master: &mut TestQp, slave: u32, until: u32) {
    push_wait(master, WaitKind::SendEnable, IndexSeg::new(until, slave).as_bytes(), CtrlFlags::empty());
}

/// Fills the queue with NOPs and writes its record, without ringing.
fn fill(qp: &mut TestQp, count: u32) {
    for _ in 0..count {
        push(qp, Opcode::Nop, &[]);
    }
    word(qp.dbrec, doorbell::DBR_SEND).store(doorbell::record(qp.head), Ordering::Release);
}

fn done(qp: &mut TestQp) -> usize {
    let entries: Vec<_> = std::iter::from_fn(|| qp.cq.poll()).map(|cqe| success(Some(cqe))).collect();
    entries.len()
}

#[test]
fn a_slave_goes_as_far_as_it_is_released_and_no_further() {
    let Bed { card, mut master, mut slaves } = bed(3);
    for slave in &mut slaves {
        fill(slave, 6);
    }
    run(&card);
    let cqn = slaves[0].cq.cqn;
    slaves.iter().for_each(|slave| push_enable(&mut master, slave.qpn, 2));
    push_completions(&mut master, cqn, 1);
    push_enable(&mut master, slaves[1].qpn, 6);
    push(&mut master, Opcode::Nop, &[]);
    assert!(slaves.iter_mut().all(|slave| done(slave) == 0), "a record alone releases nothing");
    ring(&master);
    run(&card);
    let done: Vec<usize> = slaves.iter_mut().map(done).collect();
    assert_eq!(done, [2, 6, 2]);
    success(master.cq.poll());
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}

#[test]
fn a_slaves_record_is_not_needed_and_its_own_doorbell_works() {
    let Bed { card, mut master, mut slaves } = bed(1);
    let slave = &mut slaves[0];
    push(slave, Opcode::Nop, &[]);
    push(slave, Opcode::Nop, &[]);
    push_enable(&mut master, slave.qpn, 2);
    ring(&master);
    run(&card);
    assert_eq!(done(slave), 2);
    push(slave, Opcode::Nop, &[]);
    ring(slave);
    run(&card);
    assert_eq!(done(slave), 1);
    // Indices of 16 bits that wrap around repeatedly.
    for lap in 4..40_000 {
        push(slave, Opcode::Nop, &[]);
        push_enable(&mut master, slave.qpn, lap);
        ring(&master);
        run(&card);
        assert_eq!(done(slave), 1, "{lap}");
    }
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}

#[test]
fn another_queues_doorbell_on_the_page_does_not_release_a_slave() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut page = None;
    let mut other = TestQp::with(&card, pdn, &SIZES, |config| page = config.uar);
    let mut slave = TestQp::with(&card, pdn, &SIZES, |config| {
        config.uar = page;
        config.slave_send = true;
    });
    for qp in [&other, &slave] {
        qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    }
    fill(&mut slave, 1);
    other.post(Opcode::Nop, &[]);
    run(&card);
    assert_eq!((done(&mut other), done(&mut slave)), (1, 0));
}

#[test]
fn who_may_not_release_and_who_may_not_be_released_are_errors() {
    let Bed { card, mut master, mut slaves } = bed(1);
    push_enable(&mut master, 0x77_7777, 1);
    ring(&master);
    let qpn = slaves[0].qpn;
    push_enable(&mut slaves[0], qpn, 1);
    ring(&slaves[0]);
    run(&card);
    assert_eq!(error(master.cq.poll()).1, Syndrome::LocalQpOperation);
    assert_eq!(error(slaves[0].cq.poll()).1, Syndrome::LocalQpOperation);
    let fields: Vec<&str> = card.diagnostics().iter().map(|found| found.field).collect();
    assert!(fields.contains(&"qpn") && fields.contains(&"cd_master"), "{fields:?}");
}

#[test]
fn an_index_that_is_behind_or_beyond_the_ring_is_reported() {
    let Bed { card, mut master, mut slaves } = bed(2);
    fill(&mut slaves[0], 4);
    for until in [4, 4, 3] {
        push_enable(&mut master, slaves[0].qpn, until);
    }
    push_enable(&mut master, slaves[1].qpn, 100);
    ring(&master);
    run(&card);
    assert_eq!(done(&mut slaves[0]), 4);
    let is_advice = |found: &&Diagnostic| found.verdict == Verdict::Accepted;
    let advice: Vec<_> = card.diagnostics().iter().filter(is_advice).map(ToString::to_string).collect();
    assert!(advice.len() == 2 && advice.iter().all(|text| text.contains("behind")), "{advice:?}");
    assert_eq!(card.query_qp(slaves[1].qpn).unwrap().state, QpState::Err, "more than its ring holds");
}

#[test]
fn a_slave_of_two_masters_is_reported() {
    let Bed { card, mut master, mut slaves } = bed(1);
    let pdn = card.alloc_pd().unwrap();
    let mut second = TestQp::with(&card, pdn, &SIZES, |config| config.master = true);
    second.connect(&card, second.qpn, card.lid(), QpChange::default());
    fill(&mut slaves[0], 2);
    push_enable(&mut master, slaves[0].qpn, 1);
    push_enable(&mut second, slaves[0].qpn, 2);
    ring(&master);
    run(&card);
    assert!(card.diagnostics().is_empty());
    ring(&second);
    run(&card);
    assert_eq!(done(&mut slaves[0]), 2);
    let found = &card.diagnostics()[0];
    assert_eq!((found.field, found.verdict), ("SEND_EN queue pair", Verdict::Accepted));
}

#[test]
fn an_error_flushes_what_a_slave_has_in_its_record() {
    let Bed { card, mut master, mut slaves } = bed(1);
    fill(&mut slaves[0], 3);
    push_enable(&mut master, slaves[0].qpn, 1);
    ring(&master);
    run(&card);
    assert_eq!(done(&mut slaves[0]), 1);
    move_to(&card, &slaves[0], QpState::Err);
    let flushed: Vec<_> = std::iter::from_fn(|| slaves[0].cq.poll()).collect();
    assert_eq!(flushed.len(), 2);
    // Sends that are released later are flushed, too.
    push(&mut slaves[0], Opcode::Nop, &[]);
    push_enable(&mut master, slaves[0].qpn, 4);
    ring(&master);
    run(&card);
    assert_eq!(error(slaves[0].cq.poll()).1, Syndrome::WrFlush);
    // Releasing sends that the record had covered already is no mistake of the master.
    push_enable(&mut master, slaves[0].qpn, 2);
    ring(&master);
    run(&card);
    assert!(slaves[0].cq.poll().is_none());
    assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
}

#[test]
fn a_word_releases_slaves_through_their_master() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let word = Region::new(&card, pdn, 8, Access::empty());
    let mut master = TestQp::with(&card, pdn, &SIZES, |config| config.master = true);
    let mut slave = TestQp::with(&card, pdn, &SIZES, |config| config.slave_send = true);
    for qp in [&master, &slave] {
        qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    }
    for round in 1..=20 {
        push(&mut slave, Opcode::Nop, &[]);
        push_data(&mut master, &reached(&word, round.into()));
        push_enable(&mut master, slave.qpn, round);
        ring(&master);
        run(&card);
        assert_eq!(done(&mut slave), 0);
        set(&word, round.into());
        run(&card);
        assert_eq!(done(&mut slave), 1);
    }
}

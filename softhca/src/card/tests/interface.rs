//! The interface for front ends: addressing, shared pages, queues without entries, user indices, attributes.

use super::*;
use std::os::fd::AsRawFd;

fn card(link: LinkLayer) -> Card {
    Card::stopped(link, Box::new(drop)).unwrap()
}

#[test]
fn an_ethernet_port_is_addressed_by_gid() {
    let ethernet = card(LinkLayer::Ethernet);
    let by_lid = Address { dlid: ethernet.lid(), gid: None };
    let by_gid = Address { dlid: 0, gid: Some(ethernet.gids()[3].gid) };
    assert!(matches!(
        ethernet.check_address(&by_lid),
        Err(CardError::Invalid(InvalidValue { what: "is_global", .. }))
    ));
    assert_eq!(ethernet.diagnostics()[0].field, "is_global");
    assert!(ethernet.check_address(&by_gid).is_ok());
    assert!(card(LinkLayer::InfiniBand).check_address(&by_lid).is_ok());

    let qp = TestQp::new(&ethernet, ethernet.alloc_pd().unwrap(), &SIZES);
    let init = QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpChange::default()
    };
    ethernet.modify_qp(qp.qpn, &init).unwrap();
    let rtr = QpChange {
        state: Some(QpState::Rtr),
        address: Some(by_lid),
        path_mtu: Some(3),
        dest_qpn: Some(qp.qpn),
        rq_psn: Some(0),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(14),
        ..QpChange::default()
    };
    assert!(ethernet.modify_qp(qp.qpn, &rtr).is_err());
    assert_eq!(ethernet.query_qp(qp.qpn).unwrap().state, QpState::Init, "nothing has changed");
    ethernet.modify_qp(qp.qpn, &QpChange { address: Some(by_gid), ..rtr }).unwrap();
    let now = ethernet.query_qp(qp.qpn).unwrap();
    assert_eq!((now.state, now.address, now.path_mtu), (QpState::Rtr, by_gid, 3));
    assert_eq!((now.pkey_index, now.port), (0, 1));
}

#[test]
fn the_q_key_can_be_asked_for() {
    let card = card(LinkLayer::InfiniBand);
    let qp = TestQp::with(&card, card.alloc_pd().unwrap(), &SIZES, |config| config.transport = Transport::Ud);
    let init = QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(0x1234),
        ..QpChange::default()
    };
    card.modify_qp(qp.qpn, &init).unwrap();
    assert_eq!(card.query_qp(qp.qpn).unwrap().qkey, 0x1234);
    card.modify_qp(qp.qpn, &QpChange { qkey: Some(5), ..QpChange::default() }).unwrap();
    assert_eq!(card.query_qp(qp.qpn).unwrap().qkey, 5);
}

#[test]
fn a_register_outside_its_page_is_refused() {
    let card = Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    for offset in [1 << 44, 4096, 4092, 0x801, usize::MAX] {
        let error = card.alloc_uar(&[0x800, offset]).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(matches!(&error, CardError::Invalid(InvalidValue { value, .. }) if *value == offset as u64));
        assert!(
            error.to_string().contains(&format!("is {offset:#x}: a multiple of 8, at most 4088")),
            "{error}"
        );
    }
    // The card's thread runs, and polls the registers of the existing pages.
    let uar = card.alloc_uar(&[0, 4088]).unwrap();
    // SAFETY: the last register of the page, which the card reads and clears as an atomic.
    let last = unsafe { AtomicU64::from_ptr(uar.page.add(4088).cast()) };
    last.store(7, Ordering::Release);
    until("the card takes the doorbell", || (last.load(Ordering::Acquire) == 0).then_some(()));
    card.free_uar(uar.id).unwrap();
}

#[test]
fn a_page_of_registers_can_be_mapped_again() {
    let mut pair = Pair::new(64);
    let uar = pair.card.shared.engine.lock().qps[&pair.left.qpn].endpoint.config.uar;
    let memory = pair.card.uar_file().unwrap();
    let offset = pair.card.shared.engine.lock().doorbells.uars[&uar.unwrap()].page.offset();
    let (file, place) = (memory.as_raw_fd(), offset as libc::off_t);
    // SAFETY: a new mapping of the page, write-only, as in libmlx5.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, file, place) };
    assert_ne!(page, libc::MAP_FAILED);
    drop(memory);
    pair.left.page = page.cast();
    pair.left.post(Opcode::Nop, &[]);
    pair.run();
    success(pair.left.cq.poll());
    assert!(pair.card.diagnostics().is_empty());
    // SAFETY: mapped above, and no longer used.
    unsafe { libc::munmap(page, 4096) };
}

#[test]
fn queues_of_no_entries_do_not_exist() {
    let card = card(LinkLayer::InfiniBand);
    let pdn = card.alloc_pd().unwrap();
    let mut sender = TestQp::with(&card, pdn, &SIZES, |config| {
        (config.rq, config.rq_entries, config.rq_stride) = (std::ptr::null_mut(), 0, 0);
    });
    let mut receiver = TestQp::with(&card, pdn, &SIZES, |config| {
        (config.sq, config.sq_blocks) = (std::ptr::null_mut(), 0);
    });
    sender.connect(&card, receiver.qpn, card.lid(), QpChange::default());
    receiver.connect(&card, sender.qpn, card.lid(), QpChange::default());
    let target = Region::new(&card, pdn, 64, everything());
    receiver.post_recv(&[target.data(0..64)]);
    sender.post(Opcode::Send, &[&inline(b"one way")]);
    run(&card);
    success(sender.cq.poll());
    assert_eq!(receiver.cq.poll().unwrap().byte_count(), 7);
    // Records that announce entries of queues without entries.
    sender.received = 5;
    word(sender.dbrec, doorbell::DBR_RECV).store(doorbell::record(5), Ordering::Release);
    let failed = QpChange { state: Some(QpState::Err), ..QpChange::default() };
    card.modify_qp(sender.qpn, &failed).unwrap();
    run(&card);
    assert!(sender.cq.poll().is_none(), "there is nothing to flush");
    receiver.head = 3;
    word(receiver.dbrec, doorbell::DBR_SEND).store(doorbell::record(3), Ordering::Release);
    receiver
        .store_doorbell(CtrlSeg::new(Opcode::Nop, 2, receiver.qpn, 1, CtrlFlags::empty(), [0; 4]).doorbell());
    run(&card);
    assert!(receiver.cq.poll().is_none());
    assert_eq!(card.query_qp(receiver.qpn).unwrap().state, QpState::Err);
    assert!(card.diagnostics().iter().any(|diagnostic| diagnostic.field == "send doorbell record"));
}

#[test]
fn a_queue_pair_without_a_receive_queue_is_never_ready() {
    let card = card(LinkLayer::InfiniBand);
    let pdn = card.alloc_pd().unwrap();
    let without = |config: &mut QpConfig| (config.rq, config.rq_entries) = (std::ptr::null_mut(), 0);
    let mut left = TestQp::new(&card, pdn, &SIZES);
    let right = TestQp::with(&card, pdn, &SIZES, without);
    left.connect(&card, right.qpn, card.lid(), QpChange { rnr_retry: Some(0), ..QpChange::default() });
    right.connect(&card, left.qpn, card.lid(), QpChange::default());
    word(right.dbrec, doorbell::DBR_RECV).store(doorbell::record(1), Ordering::Release);
    left.post(Opcode::Send, &[&inline(b"hello")]);
    run(&card);
    assert_eq!(error(left.cq.poll()).1, Syndrome::RnrRetryExceeded);
}

#[test]
fn a_queue_pair_without_queues_needs_no_record() {
    let card = card(LinkLayer::InfiniBand);
    let pdn = card.alloc_pd().unwrap();
    let without = |config: &mut QpConfig| {
        (config.sq, config.sq_blocks) = (std::ptr::null_mut(), 0);
        (config.rq, config.rq_entries) = (std::ptr::null_mut(), 0);
        config.dbrec = std::ptr::null_mut();
    };
    let mut qp = TestQp::with(&card, pdn, &SIZES, without);
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    // A doorbell that names no queue pair, upon which the card serves the whole page.
    // SAFETY: a register of a page that is mapped as long as the card runs; the card accesses it atomically, too.
    unsafe { AtomicU64::from_ptr(qp.page.add(0x800).cast()) }.store(1, Ordering::Release);
    run(&card);
    assert_eq!(card.diagnostics()[0].field, "doorbell");
    card.modify_qp(qp.qpn, &QpChange { state: Some(QpState::Err), ..QpChange::default() }).unwrap();
    assert_eq!(qp.cq.poll(), None);
}

#[test]
fn every_entry_carries_the_user_index() {
    let card = card(LinkLayer::InfiniBand);
    let pdn = card.alloc_pd().unwrap();
    let qp = |index| TestQp::with(&card, pdn, &SIZES, |config| config.user_index = index);
    let (mut left, mut right) = (qp(Some(0xab_cdef)), qp(Some(2)));
    left.connect(&card, right.qpn, card.lid(), QpChange::default());
    right.connect(&card, left.qpn, card.lid(), QpChange::default());
    let target = Region::new(&card, pdn, 64, everything());
    right.post_recv(&[target.data(0..64)]);
    left.post(Opcode::Send, &[&inline(b"good")]);
    left.post(Opcode::Umr, &[]);
    run(&card);
    let index = |cqe: Option<Cqe64>| cqe.map(|cqe| (cqe.user_index(), cqe.is_error()));
    assert_eq!(index(left.cq.poll()), Some((0xab_cdef, false)));
    assert_eq!(index(left.cq.poll()), Some((0xab_cdef, true)));
    assert_eq!(index(right.cq.poll()), Some((2, false)));

    let mut without = qp(None);
    without.connect(&card, without.qpn, card.lid(), QpChange::default());
    without.post(Opcode::Nop, &[]);
    run(&card);
    assert_eq!(index(without.cq.poll()), Some((0, false)));
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let card = card(LinkLayer::InfiniBand);
    let pdn = card.alloc_pd().unwrap();
    let refused = |change: fn(&mut QpConfig)| {
        let mut kept = None;
        TestQp::with(&card, pdn, &SIZES, |config| kept = Some(*config));
        let mut config = kept.unwrap();
        change(&mut config);
        // SAFETY: the memory is never freed, and a refused configuration makes no queue pair.
        match unsafe { card.create_qp(&config) } {
            Err(CardError::Invalid(InvalidValue { what, .. })) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|config| config.sq_blocks = 3), "send queue blocks");
    assert_eq!(refused(|config| config.rq_entries = 1 << 17), "receive queue entries");
    assert_eq!(refused(|config| config.rq_stride = 8), "receive queue stride");
    assert_eq!(refused(|config| config.user_index = Some(1 << 24)), "user index");
}

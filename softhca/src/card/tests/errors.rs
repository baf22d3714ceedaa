//! Errors: syndromes of completions, queue pairs in ERR, and diagnostics.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Posts one request and expects it to fail.
fn fails(pair: &mut Pair, wqe: &[u8], syndrome: Syndrome) {
    pair.left.post_wqe(wqe);
    pair.run();
    let first = error(pair.left.cq.poll());
    assert_eq!((first.0, first.1), (CqeOpcode::RequesterError, syndrome), "{:?}", pair.card.diagnostics());
    assert_eq!(pair.state(&pair.left), QpState::Err);
}

fn with_wqe(wqe: impl FnOnce(&Pair) -> Vec<u8>, syndrome: Syndrome, field: &str) -> Pair {
    let mut pair = Pair::new(4096);
    let wqe = wqe(&pair);
    fails(&mut pair, &wqe, syndrome);
    assert!(pair.diagnosed(field), "{field}: {:?}", pair.card.diagnostics());
    pair
}

#[test]
fn malformed_entries_fail_with_the_field_named() {
    let plain =
        |pair: &Pair, opcode, segments: &[&[u8]]| pair.left.wqe(opcode, segments, CtrlFlags::empty(), [0; 4]);
    let patched = |pair: &Pair, at: usize, value: u8| {
        let mut wqe = plain(pair, Opcode::Send, &[pair.source.data(0..8).as_bytes()]);
        wqe[at] = value;
        wqe
    };
    with_wqe(|pair| patched(pair, 3, 0x77), Syndrome::LocalQpOperation, "opcode");
    with_wqe(|pair| patched(pair, 2, 9), Syndrome::LocalQpOperation, "index");
    with_wqe(|pair| patched(pair, 4, 0xee), Syndrome::LocalQpOperation, "qpn");
    with_wqe(|pair| patched(pair, 7, 0), Syndrome::LocalQpOperation, "ds");
    with_wqe(|pair| patched(pair, 7, 60), Syndrome::LocalQpOperation, "ds");
    with_wqe(|pair| plain(pair, Opcode::RdmaWrite, &[]), Syndrome::LocalQpOperation, "ds");
    with_wqe(|pair| plain(pair, Opcode::Tso, &[]), Syndrome::LocalQpOperation, "opcode");
    with_wqe(
        |pair| plain(pair, Opcode::Send, &[DataSeg::new(0, 1, 2).as_bytes()]),
        Syndrome::LocalLength,
        "byte_count",
    );
}

#[test]
fn a_message_longer_than_the_queue_pair_sends_fails_locally() {
    let limited = |pair: &Pair, length: u32| {
        let change = QpChange { log_msg_max: Some(3), ..QpChange::default() };
        pair.card.modify_qp(pair.left.qpn, &change).unwrap();
        let data = pair.source.data(0..length as usize);
        pair.left.wqe(
            Opcode::RdmaWrite,
            &[pair.target.remote(0).as_bytes(), data.as_bytes()],
            CtrlFlags::empty(),
            [0; 4],
        )
    };
    with_wqe(|pair| limited(pair, 9), Syndrome::LocalLength, "byte_count");
    let mut pair = Pair::new(4096);
    let wqe = limited(&pair, 8);
    pair.left.post_wqe(&wqe);
    pair.run();
    assert_eq!(pair.state(&pair.left), QpState::Rts);
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
    let change = QpChange { log_msg_max: Some(31), ..QpChange::default() };
    assert!(pair.card.modify_qp(pair.left.qpn, &change).is_err(), "more than the card's longest");
}

#[test]
fn wrong_local_keys_bounds_and_rights_fail_locally() {
    let send = |pair: &Pair, data: DataSeg| {
        pair.left.wqe(Opcode::Send, &[data.as_bytes()], CtrlFlags::empty(), [0; 4])
    };
    let protection = Syndrome::LocalProtection;
    with_wqe(|pair| send(pair, DataSeg::new(8, 0x4242, pair.source.at as u64)), protection, "lkey");
    with_wqe(
        |pair| send(pair, DataSeg::new(8, pair.source.key, pair.source.at as u64 + 4089)),
        protection,
        "lkey",
    );
    with_wqe(
        |pair| {
            let other = pair.card.alloc_pd().unwrap();
            send(pair, Region::new(&pair.card, other, 64, everything()).data(0..8))
        },
        protection,
        "lkey",
    );
    with_wqe(
        |pair| {
            let readonly = Region::new(&pair.card, pair.pdn, 64, Access::empty());
            let (remote, place) = (pair.target.remote(0), readonly.data(0..8));
            pair.left.wqe(
                Opcode::RdmaRead,
                &[remote.as_bytes(), place.as_bytes()],
                CtrlFlags::empty(),
                [0; 4],
            )
        },
        protection,
        "lkey",
    );
}

#[test]
fn wrong_remote_keys_bounds_and_rights_fail_on_both_sides() {
    let write = |pair: &Pair, remote: RemoteAddrSeg| {
        let data = pair.source.data(0..8);
        pair.left.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()], CtrlFlags::empty(), [0; 4])
    };
    let at = |pair: &Pair, offset: u64, key: u32| RemoteAddrSeg::new(pair.target.at as u64 + offset, key);
    let mut cases: Vec<Pair> = Vec::new();
    let access = Syndrome::RemoteAccess;
    cases.push(with_wqe(|pair| write(pair, at(pair, 0, 0x9999)), access, "rkey"));
    cases.push(with_wqe(|pair| write(pair, at(pair, 4089, pair.target.key)), access, "rkey"));
    cases.push(with_wqe(
        |pair| {
            let readonly = Region::new(&pair.card, pair.pdn, 64, Access::REMOTE_READ);
            write(pair, readonly.remote(0))
        },
        access,
        "rkey",
    ));
    cases.push(with_wqe(
        |pair| {
            let local = Region::new(&pair.card, pair.pdn, 64, Access::LOCAL_WRITE);
            let (remote, place) = (local.remote(0), pair.source.data(0..8));
            pair.left.wqe(
                Opcode::RdmaRead,
                &[remote.as_bytes(), place.as_bytes()],
                CtrlFlags::empty(),
                [0; 4],
            )
        },
        access,
        "rkey",
    ));
    for pair in cases {
        assert_eq!(pair.state(&pair.right), QpState::Err, "the responder fails, too");
        assert!(pair.target.bytes().iter().all(|byte| *byte == 0), "nothing was written");
    }
}

#[test]
fn a_queue_pair_that_allows_nothing_refuses_and_tells_by_an_event() {
    let (sender, events) = mpsc::channel();
    let card =
        Card::stopped(LinkLayer::InfiniBand, Box::new(move |event| sender.send(event).unwrap())).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let (mut left, right) = (TestQp::new(&card, pdn, &SIZES), TestQp::new(&card, pdn, &SIZES));
    let nothing = QpChange { access: Some(Access::empty()), ..QpChange::default() };
    left.connect(&card, right.qpn, card.lid(), nothing);
    right.connect(&card, left.qpn, card.lid(), nothing);
    let region = Region::new(&card, pdn, 64, everything());
    left.post(Opcode::RdmaWrite, &[region.remote(0).as_bytes(), &inline(b"no")]);
    run(&card);
    assert_eq!(error(left.cq.poll()).1, Syndrome::RemoteInvalidRequest);
    assert_eq!(events.try_recv(), Ok(Event::QpRequestError { qpn: right.qpn }));
    assert!(card.diagnostics().iter().any(|d| d.field == "qp_access_flags" && d.qpn == Some(right.qpn)));
}

#[test]
fn a_sink_that_panics_loses_that_event_and_the_card_goes_on() {
    let (sender, events) = mpsc::channel();
    let first = AtomicBool::new(true);
    let sink = move |event| {
        assert!(!first.swap(false, Ordering::Relaxed), "not the first");
        sender.send(event).unwrap();
    };
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(sink)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let region = Region::new(&card, pdn, 64, everything());
    let nothing = QpChange { access: Some(Access::empty()), ..QpChange::default() };
    let refused = || {
        let (mut left, right) = (TestQp::new(&card, pdn, &SIZES), TestQp::new(&card, pdn, &SIZES));
        left.connect(&card, right.qpn, card.lid(), nothing);
        right.connect(&card, left.qpn, card.lid(), nothing);
        left.post(Opcode::RdmaWrite, &[region.remote(0).as_bytes(), &inline(b"no")]);
        run(&card);
        assert_eq!(error(left.cq.poll()).1, Syndrome::RemoteInvalidRequest);
        Event::QpRequestError { qpn: right.qpn }
    };
    let [_, second] = [refused(), refused()];
    assert_eq!((events.try_recv(), events.try_recv()), (Ok(second), Err(mpsc::TryRecvError::Empty)));
}

#[test]
fn a_short_receive_fails_on_both_sides() {
    let mut pair = Pair::new(100);
    pair.right.post_recv(&[pair.target.data(0..10)]);
    pair.right.post_recv(&[pair.target.data(0..10)]);
    let wqe = pair.left.wqe(Opcode::Send, &[pair.source.data(0..11).as_bytes()], CtrlFlags::empty(), [0; 4]);
    fails(&mut pair, &wqe, Syndrome::RemoteInvalidRequest);
    assert_eq!(error(pair.right.cq.poll()), (CqeOpcode::ResponderError, Syndrome::LocalLength, 0));
    assert_eq!(error(pair.right.cq.poll()), (CqeOpcode::ResponderError, Syndrome::WrFlush, 1));
}

#[test]
fn a_bad_receive_key_fails_on_both_sides() {
    let mut pair = Pair::new(100);
    let readonly = Region::new(&pair.card, pair.pdn, 64, Access::empty());
    pair.right.post_recv(&[readonly.data(0..64)]);
    let wqe = pair.left.wqe(Opcode::Send, &[pair.source.data(0..11).as_bytes()], CtrlFlags::empty(), [0; 4]);
    fails(&mut pair, &wqe, Syndrome::RemoteOperation);
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalProtection);
    assert!(pair.diagnosed("receive lkey"));
}

#[test]
fn a_failure_flushes_all_that_is_outstanding_and_all_that_comes_later() {
    let mut pair = Pair::new(100);
    pair.left.post_recv(&[pair.source.data(0..8)]);
    let bad = RemoteAddrSeg::new(0, 1);
    for remote in [pair.target.remote(0), bad, pair.target.remote(8)] {
        let wqe = pair.left.wqe(
            Opcode::RdmaWrite,
            &[remote.as_bytes(), &inline(b"abc")],
            CtrlFlags::empty(),
            [0; 4],
        );
        pair.left.head += pair.left.write(&wqe);
    }
    pair.left.ring(2);
    pair.run();
    let all: Vec<_> = std::iter::from_fn(|| pair.left.cq.poll()).map(|cqe| error(Some(cqe))).collect();
    let requester = CqeOpcode::RequesterError;
    let expected = [
        (requester, Syndrome::RemoteAccess, 1),
        (requester, Syndrome::WrFlush, 2),
        (CqeOpcode::ResponderError, Syndrome::WrFlush, 0),
    ];
    assert_eq!(all, expected, "the first write was unsignaled and succeeded");
    assert_eq!(pair.target.bytes()[..3], *b"abc");
    assert!(pair.target.bytes()[3..].iter().all(|byte| *byte == 0));
    pair.left.post_recv(&[]);
    pair.left.post(Opcode::Nop, &[]);
    pair.run();
    let later: Vec<_> = std::iter::from_fn(|| pair.left.cq.poll()).map(|cqe| error(Some(cqe))).collect();
    assert!(later.contains(&(requester, Syndrome::WrFlush, 3)));
    assert!(later.contains(&(CqeOpcode::ResponderError, Syndrome::WrFlush, 1)));
}

#[test]
fn modifying_to_error_flushes_and_reset_starts_again() {
    let mut pair = Pair::new(100);
    for i in 0..3 {
        pair.left.post_recv(&[pair.source.data(i..i + 1)]);
    }
    pair.card
        .modify_qp(pair.left.qpn, &QpChange { state: Some(QpState::Err), ..QpChange::default() })
        .unwrap();
    for index in 0..3 {
        assert_eq!(error(pair.left.cq.poll()), (CqeOpcode::ResponderError, Syndrome::WrFlush, index));
    }
    for qp in [&mut pair.left, &mut pair.right] {
        pair.card
            .modify_qp(qp.qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() })
            .unwrap();
        (qp.head, qp.received) = (0, 0);
        bytes(qp.dbrec.cast(), 8).fill(0);
    }
    pair.left.connect(&pair.card, pair.right.qpn, pair.card.lid(), QpChange::default());
    pair.right.connect(&pair.card, pair.left.qpn, pair.card.lid(), QpChange::default());
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"again")]);
    pair.run();
    assert_eq!(success(pair.left.cq.poll()), (Opcode::RdmaWrite as u8, 0));
    assert_eq!(pair.target.bytes()[..5], *b"again");
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(100);
    pair.source.fill(2);
    for i in 0..2 {
        pair.left.post(Opcode::Send, &[pair.source.data(i * 8..i * 8 + 8).as_bytes()]);
    }
    pair.run();
    assert!(pair.left.cq.peek().is_none());
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.right.post_recv(&[pair.target.data(8..16)]);
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut sent = 0;
    while sent < 2 {
        assert!(Instant::now() < deadline);
        pair.run();
        sent += usize::from(pair.left.cq.poll().is_some());
    }
    assert_eq!(pair.target.bytes()[..16], pair.source.bytes()[..16]);
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_retries() {
    let mut pair = Pair::with(&SIZES, 100, QpChange { rnr_retry: Some(2), ..QpChange::default() });
    pair.left.post(Opcode::Send, &[&inline(b"hello")]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while pair.left.cq.peek().is_none() {
        assert!(Instant::now() < deadline);
        pair.run();
    }
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RnrRetryExceeded);
}

#[test]
fn a_peer_that_does_not_listen_ends_the_retries() {
    let mut pair =
        Pair::with(&SIZES, 100, QpChange { timeout: Some(4), retry_cnt: Some(3), ..QpChange::default() });
    pair.card
        .modify_qp(pair.right.qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() })
        .unwrap();
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"hello")]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while pair.left.cq.peek().is_none() {
        assert!(Instant::now() < deadline);
        pair.run();
    }
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn a_card_that_is_not_there_ends_them_at_once() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &SIZES);
    let free = if card.lid() == 0xbfff { 1 } else { 0xbfff };
    qp.connect(&card, 0x50, free, QpChange { timeout: Some(0), ..QpChange::default() });
    qp.post(Opcode::Send, &[&inline(b"hello?")]);
    run(&card);
    assert_eq!(error(qp.cq.poll()).1, Syndrome::RetryExceeded);
}

#[test]
fn an_overrun_completion_queue_dies_and_takes_the_queue_pair_along() {
    let (sender, events) = mpsc::channel();
    let card =
        Card::stopped(LinkLayer::InfiniBand, Box::new(move |event| sender.send(event).unwrap())).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &Sizes { cqes: 2, ..SIZES });
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    for _ in 0..3 {
        qp.post(Opcode::Nop, &[]);
        run(&card);
    }
    assert_eq!(
        events.try_iter().collect::<Vec<_>>(),
        [Event::CqError { cqn: qp.cq.cqn }, Event::QpFatal { qpn: qp.qpn }]
    );
    assert_eq!(card.query_qp(qp.qpn).unwrap().state, QpState::Err);
    assert!(
        card.diagnostics().iter().any(|d| d.field == "completion queue" && d.to_string().contains("overran"))
    );
}

#[test]
fn objects_in_use_stay() {
    let pair = Pair::new(64);
    let card = &pair.card;
    assert!(matches!(card.dealloc_pd(pair.pdn), Err(CardError::Busy { users: 4, .. })));
    assert!(matches!(card.destroy_cq(pair.left.cq.cqn), Err(CardError::Busy { users: 2, .. })));
    assert!(card.destroy_cq(1).is_err() && card.destroy_qp(1).is_err() && card.deregister_memory(1).is_err());
    assert!(card.free_uar(1).is_err() && card.query_qp(1).is_err() && card.dealloc_pd(1).is_err());
    for qp in [&pair.left, &pair.right] {
        card.destroy_qp(qp.qpn).unwrap();
        card.destroy_cq(qp.cq.cqn).unwrap();
    }
    card.deregister_memory(pair.source.key).unwrap();
    card.deregister_memory(pair.target.key).unwrap();
    card.dealloc_pd(pair.pdn).unwrap();
}

#[test]
fn impossible_sizes_are_refused() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let ring = memory(4096);
    for entries in [0, 3, 1 << 23] {
        // SAFETY: refused before the memory is used.
        let result = unsafe {
            card.create_cq(&CqConfig {
                ring,
                entries,
                stride: 64,
                dbrec: ring.cast(),
                ignore_overrun: false,
                collapsed: false,
            })
        };
        assert!(matches!(result, Err(CardError::Invalid(_))), "{entries}");
    }
}

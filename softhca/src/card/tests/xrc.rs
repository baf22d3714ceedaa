//! Extended reliable connections.

use super::shared_queues::{TestSrq, card_with_events};
use super::*;
use crate::card::config::XrcConfig;
use gdsync_sys::prm::wqe::{AtomicSeg, XrcSeg};
use std::sync::mpsc;

/// An initiator and its target, and two shared queues of the target's domain, each in its own protection domain.
struct Bed {
    card: Card,
    events: mpsc::Receiver<Event>,
    xrcd: u32,
    initiator: TestQp,
    target: u32,
    queues: [Queue; 2],
    source: Region,
}

struct Queue {
    srq: TestSrq,
    cq: TestCq,
    place: Region,
}

impl Queue {
    fn new(card: &Card, xrcd: u32, user_index: u32) -> Self {
        let (pdn, cq) = (card.alloc_pd().unwrap(), TestCq::new(card, 16));
        let xrc = XrcConfig { xrcd, cqn: cq.cqn, user_index };
        let srq = TestSrq::with(card, pdn, |config| config.xrc = Some(xrc));
        let place = Region::new(card, pdn, 1 << 16, everything() | Access::REMOTE_ATOMIC);
        Queue { srq, cq, place }
    }
}

fn initiator(config: &mut QpConfig) {
    (config.transport, config.recv_cq, config.rq_entries) = (Transport::XrcInitiator, None, 0);
}

fn target(xrcd: u32) -> QpConfig {
    QpConfig { xrcd: Some(xrcd), ..QpConfig::new(Transport::XrcTarget) }
}

impl Bed {
    fn new() -> Self {
        let (card, events) = card_with_events();
        let (pdn, xrcd) = (card.alloc_pd().unwrap(), card.open_xrcd(None, true).unwrap().unwrap());
        let sender = TestQp::with(&card, pdn, &SIZES, initiator);
        // SAFETY: it has no memory.
        let target = unsafe { card.create_qp(&target(xrcd)) }.unwrap();
        let address = Some(Address { dlid: card.lid(), gid: None });
        let access = Some(everything() | Access::REMOTE_ATOMIC);
        let to = |state| QpChange { state: Some(state), ..QpChange::default() };
        let init = QpChange { pkey_index: Some(0), port: Some(1), access, ..to(QpState::Init) };
        let rtr = QpChange { address, path_mtu: Some(5), rq_psn: Some(0), ..to(QpState::Rtr) };
        let timers = QpChange { max_dest_rd_atomic: Some(4), min_rnr_timer: Some(14), ..rtr };
        for (qpn, up) in [
            (sender.qpn, QpChange { dest_qpn: Some(target), ..rtr }),
            (target, QpChange { dest_qpn: Some(sender.qpn), ..timers }),
        ] {
            card.modify_qp(qpn, &init).unwrap();
            card.modify_qp(qpn, &up).unwrap();
        }
        let retries =
            QpChange { retry_cnt: Some(7), rnr_retry: Some(7), max_rd_atomic: Some(4), ..to(QpState::Rts) };
        card.modify_qp(sender.qpn, &QpChange { timeout: Some(14), sq_psn: Some(0), ..retries }).unwrap();
        let queues = [0x51, 0x52].map(|user_index| Queue::new(&card, xrcd, user_index));
        let source = Region::new(&card, pdn, 1 << 16, everything());
        source.fill(1);
        Bed { card, events, xrcd, initiator: sender, target, queues, source }
    }

    fn post(&mut self, opcode: Opcode, srqn: u32, segments: &[&[u8]]) -> Option<Cqe64> {
        let xrc = XrcSeg::new(srqn);
        let wqe = self.initiator.wqe(
            opcode,
            &[&[xrc.as_bytes()], segments].concat(),
            CtrlFlags::CQ_UPDATE,
            [1, 2, 3, 4],
        );
        self.initiator.post_wqe(&wqe);
        run(&self.card);
        self.initiator.cq.poll()
    }
}

#[test]
fn each_message_names_its_queue() {
    let mut bed = Bed::new();
    for round in 0..4usize {
        let queue = &mut bed.queues[round % 2];
        let (srqn, user_index) = (queue.srq.srqn, 0x51 + round as u32 % 2);
        let entry = queue.srq.post(&[queue.place.data(0..40_000)]);
        let data = bed.source.data(round..round + 30_000);
        assert_eq!(success(bed.post(Opcode::SendImm, srqn, &[data.as_bytes()])).0, Opcode::SendImm as u8);
        let queue = &mut bed.queues[round % 2];
        let cqe = queue.cq.poll().expect("a completion where the queue completes");
        assert_eq!(
            (cqe.opcode(), cqe.byte_count(), cqe.imm()),
            (Ok(CqeOpcode::RespSendImm), 30_000, [1, 2, 3, 4])
        );
        assert_eq!((cqe.wqe_counter(), cqe.user_index(), cqe.qpn()), (entry, user_index, bed.target));
        assert_eq!(queue.place.bytes()[..30_000], bed.source.bytes()[round..round + 30_000]);
    }
}

#[test]
fn remote_access_is_that_of_the_queues_domain() {
    let mut bed = Bed::new();
    let [srqn, other] = [0, 1].map(|i| bed.queues[i].srq.srqn);
    let (remote, data) = (bed.queues[0].place.remote(64), bed.source.data(0..9_000));
    success(bed.post(Opcode::RdmaWrite, srqn, &[remote.as_bytes(), data.as_bytes()]));
    assert_eq!(bed.queues[0].place.bytes()[64..9_064], bed.source.bytes()[..9_000]);
    let back = bed.source.data(20_000..29_000);
    success(bed.post(Opcode::RdmaRead, srqn, &[remote.as_bytes(), back.as_bytes()]));
    assert_eq!(bed.source.bytes()[20_000..29_000], bed.source.bytes()[..9_000]);
    let (counter, operands) = (bed.queues[0].place.remote(0), AtomicSeg::new(5, 0));
    let result = bed.source.data(40_000..40_008);
    success(bed.post(Opcode::AtomicFa, srqn, &[counter.as_bytes(), operands.as_bytes(), result.as_bytes()]));
    assert_eq!(bed.queues[0].place.bytes()[0], 5);
    let refused = bed.post(Opcode::RdmaWrite, other, &[remote.as_bytes(), data.as_bytes()]);
    assert_eq!(error(refused).1, Syndrome::RemoteAccess, "the key is of the first queue's domain");
}

#[test]
fn a_queue_that_is_not_in_the_domain_is_refused() {
    for kind in 0..3 {
        let mut bed = Bed::new();
        let srqn = match kind {
            0 => 0x7777,
            1 => TestSrq::new(&bed.card, bed.card.alloc_pd().unwrap()).srqn,
            _ => {
                let elsewhere = bed.card.open_xrcd(None, true).unwrap().unwrap();
                Queue::new(&bed.card, elsewhere, 1).srq.srqn
            }
        };
        let data = bed.source.data(0..8);
        let refused = bed.post(Opcode::Send, srqn, &[data.as_bytes()]);
        assert_eq!(error(refused).1, Syndrome::RemoteInvalidRequest);
        let events: Vec<Event> = bed.events.try_iter().collect();
        assert!(events.contains(&Event::QpRequestError { qpn: bed.target }), "{events:?}");
        assert!(bed.card.diagnostics().iter().any(|d| d.field == "shared receive queue"));
    }
}

#[test]
fn an_empty_queue_refuses_until_a_receive_is_posted() {
    let mut bed = Bed::new();
    let (srqn, data) = (bed.queues[0].srq.srqn, bed.source.data(0..8));
    assert_eq!(bed.post(Opcode::Send, srqn, &[data.as_bytes()]), None);
    let place = bed.queues[0].place.data(0..8);
    bed.queues[0].srq.post(&[place]);
    let sent = until("the send", || {
        run(&bed.card);
        bed.initiator.cq.poll()
    });
    success(Some(sent));
    assert!(bed.queues[0].cq.poll().is_some());
}

#[test]
fn a_request_without_its_segment_fails() {
    let mut bed = Bed::new();
    let wqe = bed.initiator.wqe(Opcode::Send, &[], CtrlFlags::CQ_UPDATE, [0; 4]);
    bed.initiator.post_wqe(&wqe);
    run(&bed.card);
    assert_eq!(error(bed.initiator.cq.poll()).1, Syndrome::LocalQpOperation);
    assert!(bed.card.diagnostics().iter().any(|d| d.message.contains("XRC segment")));
}

#[test]
fn domains_and_targets_live_as_long_as_they_are_open_and_used() {
    let bed = Bed::new();
    let (card, file) = (&bed.card, Some((1, 2)));
    let errno = |result: Result<(), CardError>| result.map_err(|error| error.errno());
    assert_eq!(card.open_xrcd(file, false).unwrap(), None, "not open yet");
    let named = card.open_xrcd(file, true).unwrap().unwrap();
    assert!(card.has_xrcd((1, 2)) && !card.has_xrcd((1, 3)));
    assert_eq!(card.open_xrcd(file, false).unwrap(), Some(named), "the same");
    assert_eq!((errno(card.close_xrcd(named)), errno(card.close_xrcd(named))), (Ok(()), Ok(())));
    assert_eq!(errno(card.close_xrcd(named)), Err(libc::EINVAL));
    assert_eq!(errno(card.close_xrcd(bed.xrcd)), Err(libc::EBUSY));
    assert_eq!(errno(card.destroy_cq(bed.queues[0].cq.cqn)), Err(libc::EBUSY));
    for (qpn, xrcd) in [(bed.target, named), (bed.initiator.qpn, bed.xrcd), (1, bed.xrcd)] {
        assert_eq!(errno(card.open_qp(qpn, xrcd).map(drop)), Err(libc::EINVAL));
    }
    assert_eq!(card.open_qp(bed.target, bed.xrcd).unwrap().xrcd, Some(bed.xrcd));
    assert_eq!(errno(card.destroy_qp(bed.target)), Ok(()));
    assert!(card.query_qp(bed.target).is_ok(), "the other opener has it");
    assert_eq!(errno(card.destroy_qp(bed.target)), Ok(()));
    assert_eq!(errno(card.destroy_qp(bed.target)), Err(libc::EINVAL));
    for queue in &bed.queues {
        card.destroy_srq(queue.srq.srqn).unwrap();
        card.destroy_cq(queue.cq.cqn).unwrap();
    }
    card.close_xrcd(bed.xrcd).unwrap();
}

#[test]
fn a_queue_pair_has_what_its_transport_has() {
    let bed = Bed::new();
    let queue = &bed.queues[0];
    let good = target(bed.xrcd);
    for config in [
        QpConfig { xrcd: None, ..good },
        QpConfig { xrcd: Some(1), ..good },
        QpConfig { pdn: Some(queue.srq.config.pdn), ..good },
        QpConfig { send_cq: Some(queue.cq.cqn), ..good },
        QpConfig { srq: Some(queue.srq.srqn), ..good },
        QpConfig { rq_entries: 16, rq_stride: 16, ..good },
        QpConfig { sq_blocks: 16, ..good },
        QpConfig { transport: Transport::Rc, ..good },
    ] {
        // SAFETY: it is refused.
        let refused = unsafe { bed.card.create_qp(&config) }.unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    }
    let mut config = queue.srq.config;
    for (xrcd, cqn, user_index) in [(1, queue.cq.cqn, 0), (bed.xrcd, 1, 0), (bed.xrcd, queue.cq.cqn, 1 << 24)]
    {
        config.xrc = Some(XrcConfig { xrcd, cqn, user_index });
        // SAFETY: it is refused.
        let refused = unsafe { bed.card.create_srq(&config) }.unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    }
}

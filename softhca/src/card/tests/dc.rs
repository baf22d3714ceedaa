//! Dynamically connected transport.

mod several_cards;

use super::shared_queues::{TestSrq, card_with_events};
use super::*;
use crate::liberties::{Liberties, LibertyKinds};
use crate::packet::{FIRST, Header, PacketKind};
use gdsync_sys::prm::wqe::{AddressFields, AddressVector, AtomicSeg};
use std::sync::mpsc;
use zerocopy::byteorder::big_endian::{U32, U64};

const KEY: u64 = 0x1122_3344_5566_7788;

/// A target with its own shared queue and completion queue.
struct Target {
    qpn: u32,
    srq: TestSrq,
    cq: TestCq,
    place: Region,
}

/// Two initiators and two targets.
struct Bed {
    card: Card,
    events: mpsc::Receiver<Event>,
    initiators: [TestQp; 2],
    targets: [Target; 2],
    source: Region,
}

fn to(state: QpState) -> QpChange {
    QpChange { state: Some(state), ..QpChange::default() }
}

fn patient() -> QpChange {
    QpChange { timeout: Some(14), retry_cnt: Some(7), ..QpChange::default() }
}

fn bring_up(card: &Card, qpn: u32, timers: QpChange) {
    let init = QpChange { pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
    card.modify_qp(qpn, &init).unwrap();
    card.modify_qp(qpn, &QpChange { path_mtu: Some(5), ..to(QpState::Rtr) }).unwrap();
    let rts = QpChange { state: Some(QpState::Rts), rnr_retry: Some(7), sq_psn: Some(7), ..timers };
    card.modify_qp(qpn, &QpChange { max_rd_atomic: Some(4), ..rts }).unwrap();
}

impl Target {
    fn new(card: &Card, pdn: u32, user_index: u32) -> Self {
        let (srq, cq) = (TestSrq::new(card, pdn), TestCq::new(card, 64));
        let config = QpConfig {
            pdn: Some(pdn),
            recv_cq: Some(cq.cqn),
            srq: Some(srq.srqn),
            dc_key: KEY,
            user_index: Some(user_index),
            ..QpConfig::new(Transport::DcTarget)
        };
        // SAFETY: it has no memory.
        let qpn = unsafe { card.create_qp(&config) }.unwrap();
        let access = Some(everything() | Access::REMOTE_ATOMIC);
        let init = QpChange { pkey_index: Some(0), port: Some(1), access, ..to(QpState::Init) };
        card.modify_qp(qpn, &init).unwrap();
        let address = Some(Address { dlid: card.lid(), gid: None });
        let rtr = QpChange { address, path_mtu: Some(5), min_rnr_timer: Some(14), ..to(QpState::Rtr) };
        card.modify_qp(qpn, &rtr).unwrap();
        let place = Region::new(card, pdn, 1 << 18, everything() | Access::REMOTE_ATOMIC);
        Target { qpn, srq, cq, place }
    }
}

fn initiator(config: &mut QpConfig) {
    (config.transport, config.recv_cq, config.rq_entries) = (Transport::DcInitiator, None, 0);
}

impl Bed {
    fn new() -> Self {
        let (card, events) = card_with_events();
        let pdn = card.alloc_pd().unwrap();
        let initiators = [(); 2].map(|()| TestQp::with(&card, pdn, &SIZES, initiator));
        initiators.iter().for_each(|qp| bring_up(&card, qp.qpn, patient()));
        let targets = [0x61, 0x62].map(|user_index| Target::new(&card, pdn, user_index));
        let source = Region::new(&card, pdn, 1 << 18, everything());
        source.fill(4);
        Bed { card, events, initiators, targets, source }
    }

    fn vector(&self, target: u32, key: u64) -> AddressVector {
        let fields = AddressFields { qpn: target, dlid: self.card.lid(), ..AddressFields::default() };
        AddressVector::new(&fields).with_dc_key(key)
    }

    fn queue(&mut self, from: usize, key: u64, target: u32, opcode: Opcode, segments: &[&[u8]]) {
        let vector = self.vector(target, key);
        let segments = [&[vector.as_bytes()], segments].concat();
        self.initiators[from].post(opcode, &segments);
    }

    /// Posts a request and waits until it completes.
    fn post(&mut self, from: usize, target: usize, opcode: Opcode, segments: &[&[u8]]) -> Option<Cqe64> {
        self.queue(from, KEY, self.targets[target].qpn, opcode, segments);
        run(&self.card);
        self.initiators[from].cq.poll()
    }

    fn receive(&mut self, target: usize, range: std::ops::Range<usize>) -> u16 {
        let target = &mut self.targets[target];
        target.srq.post(&[target.place.data(range)])
    }
}

#[test]
fn each_request_goes_to_the_target_that_it_names() {
    let mut bed = Bed::new();
    // Posted together: the initiator switches between the targets.
    for round in 0..3usize {
        for target in 0..2 {
            bed.receive(target, round * 1000..round * 1000 + 1000);
            let data = bed.source.data(round * 7..round * 7 + 900);
            bed.queue(0, KEY, bed.targets[target].qpn, Opcode::Send, &[data.as_bytes()]);
        }
    }
    run(&bed.card);
    for _ in 0..6 {
        success(bed.initiators[0].cq.poll());
    }
    for (target, user_index) in bed.targets.iter_mut().zip([0x61, 0x62]) {
        for round in 0..3usize {
            let cqe = target.cq.poll().unwrap();
            assert_eq!((cqe.opcode(), cqe.byte_count()), (Ok(CqeOpcode::RespSend), 900));
            let from = (cqe.qpn(), cqe.remote_qpn(), cqe.user_index());
            assert_eq!(from, (target.qpn, bed.initiators[0].qpn, user_index));
            assert_eq!(cqe.path().slid, bed.card.lid(), "where an answer goes");
            assert_eq!(target.place.bytes()[round * 1000..][..900], bed.source.bytes()[round * 7..][..900]);
        }
    }
    assert!(bed.card.diagnostics().is_empty(), "{:?}", bed.card.diagnostics());
}

#[test]
fn requests_and_answers_have_the_partition_keys_of_their_queue_pairs() {
    let mut bed = Bed::new();
    let set = |bed: &Bed, key: fn(u32) -> u16, targets: [u32; 2]| {
        let mut engine = bed.card.shared.engine.lock();
        engine
            .qps
            .values_mut()
            .for_each(|qp| qp.endpoint.pkey = key(u32::from(targets.contains(&qp.endpoint.qpn))));
    };
    let targets = [bed.targets[0].qpn, bed.targets[1].qpn];
    set(&bed, |is_target| if is_target == 1 { 0x8001 } else { 0x0001 }, targets);
    let place = bed.targets[0].place.remote(0);
    let done = bed.post(0, 0, Opcode::RdmaWrite, &[place.as_bytes(), &inline(b"partner")]);
    success(done);
    assert_eq!(bed.card.bad_pkeys(), 0);
    set(&bed, |is_target| if is_target == 1 { 0x8001 } else { 0x8002 }, targets);
    let failed = bed.post(0, 0, Opcode::RdmaWrite, &[place.as_bytes(), &inline(b"strange")]);
    assert!(failed.is_none() && bed.card.bad_pkeys() > 0);
    assert_eq!(bed.targets[0].place.bytes()[..7], *b"partner");
}

#[test]
fn writes_reads_and_atomics_of_several_initiators() {
    let mut bed = Bed::new();
    for from in 0..2usize {
        let (remote, data) = (bed.targets[0].place.remote(64), bed.source.data(0..200_000));
        success(bed.post(from, 0, Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]));
        assert_eq!(bed.targets[0].place.bytes()[64..200_064], bed.source.bytes()[..200_000]);
        let back = bed.source.data(210_000..219_000);
        success(bed.post(from, 0, Opcode::RdmaRead, &[remote.as_bytes(), back.as_bytes()]));
        assert_eq!(bed.source.bytes()[210_000..219_000], bed.source.bytes()[..9_000]);
        let (counter, add) = (bed.targets[0].place.remote(0), AtomicSeg::new(5, 0));
        let result = bed.source.data(220_000..220_008);
        success(bed.post(
            from,
            0,
            Opcode::AtomicFa,
            &[counter.as_bytes(), add.as_bytes(), result.as_bytes()],
        ));
        assert_eq!(usize::from(bed.targets[0].place.bytes()[0]), 5 * (from + 1));
    }
}

#[test]
fn an_initiator_that_is_refused_ends_alone_and_may_come_again() {
    let mut bed = Bed::new();
    let data = bed.source.data(0..64);
    bed.queue(0, KEY + 1, bed.targets[0].qpn, Opcode::Send, &[data.as_bytes()]);
    run(&bed.card);
    assert_eq!(error(bed.initiators[0].cq.poll()).1, Syndrome::RemoteAccess);
    assert!(bed.card.diagnostics().iter().any(|d| d.field == "DC access key"));
    // The other initiator is served, and the target has not failed.
    let entry = bed.receive(0, 0..64);
    success(bed.post(1, 0, Opcode::Send, &[data.as_bytes()]));
    assert_eq!(bed.targets[0].cq.poll().unwrap().wqe_counter(), entry);
    assert_eq!(bed.card.query_qp(bed.targets[0].qpn).unwrap().state, QpState::Rtr);
    assert_eq!(bed.events.try_iter().collect::<Vec<_>>(), [], "no event of the target");

    let wrong = RemoteAddrSeg::new(8, 0x99);
    let refused = bed.post(1, 0, Opcode::RdmaWrite, &[wrong.as_bytes(), data.as_bytes()]);
    assert_eq!(error(refused).1, Syndrome::RemoteAccess);
    for from in 0..2 {
        let qp = &mut bed.initiators[from];
        bed.card.modify_qp(qp.qpn, &to(QpState::Reset)).unwrap();
        word(qp.dbrec, doorbell::DBR_SEND).store(0, Ordering::Release);
        qp.head = 0;
        bring_up(&bed.card, qp.qpn, patient());
        bed.receive(0, 0..64);
        success(bed.post(from, 0, Opcode::Send, &[data.as_bytes()]));
        assert!(!bed.targets[0].cq.poll().unwrap().is_error());
    }
}

#[test]
fn a_receive_that_is_too_short_completes_with_an_error() {
    let mut bed = Bed::new();
    let (data, entry) = (bed.source.data(0..64), bed.receive(0, 0..32));
    let refused = bed.post(0, 0, Opcode::Send, &[data.as_bytes()]);
    assert_eq!(error(refused).1, Syndrome::RemoteInvalidRequest);
    assert_eq!(error(bed.targets[0].cq.poll()), (CqeOpcode::ResponderError, Syndrome::LocalLength, entry));
    let entry = bed.receive(0, 0..64);
    success(bed.post(1, 0, Opcode::Send, &[data.as_bytes()]));
    assert_eq!(bed.targets[0].cq.poll().unwrap().wqe_counter(), entry);
}

/// Returns the first packet of a message of a nonexistent initiator.
fn packet(target: u32, connection: u64, psn: u32) -> Header {
    let mut header = Header::new(PacketKind::Send, 0x7777, target, psn);
    (header.connection, header.dc_key) = (U64::new(connection), U64::new(KEY));
    (header.flags, header.length) = (FIRST, U32::new(64));
    header
}

#[test]
fn an_initiator_that_comes_again_gives_back_the_receive_that_it_had_begun() {
    let mut bed = Bed::new();
    let entries = [(); 2].map(|()| bed.receive(0, 0..64));
    let part = [7u8; 16];
    for connection in [5, 6] {
        let header = packet(bed.targets[0].qpn, connection, 0);
        let mut engine = bed.card.shared.engine.lock();
        assert_eq!(inject(&mut engine, &header, &[(part.as_ptr(), part.len())]), Some(bed.targets[0].qpn));
        drop(engine);
    }
    let aborted = (CqeOpcode::ResponderError, Syndrome::RemoteAborted, entries[0]);
    assert_eq!(error(bed.targets[0].cq.poll()), aborted);
    let header = packet(bed.targets[0].qpn, 5, 0);
    inject(&mut bed.card.shared.engine.lock(), &header, &[(part.as_ptr(), part.len())]);
    assert_eq!(bed.targets[0].cq.poll(), None, "the second connection goes on: a late packet ends nothing");
}

#[test]
fn a_connection_is_heard_of_by_any_of_its_packets() {
    let mut bed = Bed::new();
    // The first packet was lost: nothing is executed, and a NAK asks for it.
    let entry = bed.receive(0, 0..64);
    let header = packet(bed.targets[0].qpn, 9, 1);
    let mut engine = bed.card.shared.engine.lock();
    inject(&mut engine, &header, &[]);
    drop(engine);
    run(&bed.card);
    assert_eq!(bed.targets[0].cq.poll(), None);
    let data = bed.source.data(0..64);
    success(bed.post(0, 0, Opcode::Send, &[data.as_bytes()]));
    assert_eq!(bed.targets[0].cq.poll().unwrap().wqe_counter(), entry);
}

#[test]
fn a_target_that_is_not_there_is_given_up() {
    let mut bed = Bed::new();
    let (card, data) = (&bed.card, bed.source.data(0..64));
    card.destroy_qp(bed.targets[1].qpn).unwrap();
    let gone = bed.targets[1].qpn;
    bed.queue(0, KEY, gone, Opcode::Send, &[data.as_bytes()]);
    let cqe = until("the retries' end", || {
        run(&bed.card);
        bed.initiators[0].cq.poll()
    });
    assert_eq!(error(Some(cqe)).1, Syndrome::RetryExceeded);
}

#[test]
fn states_and_parts_are_those_of_the_driver() {
    let bed = Bed::new();
    let target = &bed.targets[0];
    let errno = |result: Result<(), CardError>| result.map_err(|error| error.errno());
    for state in [QpState::Rts, QpState::Err, QpState::Reset, QpState::Init] {
        assert_eq!(errno(bed.card.modify_qp(target.qpn, &to(state))), Err(libc::EINVAL), "{state:?}");
    }
    let initiator = bed.initiators[0].qpn;
    assert_eq!(errno(bed.card.modify_qp(initiator, &to(QpState::Init))), Err(libc::EINVAL));
    assert_eq!(errno(bed.card.modify_qp(initiator, &to(QpState::Err))), Ok(()));
    let good = QpConfig {
        pdn: Some(target.srq.config.pdn),
        recv_cq: Some(target.cq.cqn),
        srq: Some(target.srq.srqn),
        ..QpConfig::new(Transport::DcTarget)
    };
    for config in [
        QpConfig { srq: None, ..good },
        QpConfig { pdn: None, ..good },
        QpConfig { recv_cq: None, ..good },
        QpConfig { send_cq: good.recv_cq, ..good },
        QpConfig { sq_blocks: 16, ..good },
        QpConfig { transport: Transport::DcInitiator, ..good },
    ] {
        // SAFETY: it is refused.
        let refused = unsafe { bed.card.create_qp(&config) }.unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    }
    assert_eq!(errno(bed.card.destroy_srq(target.srq.srqn)), Err(libc::EBUSY));
    assert_eq!(errno(bed.card.destroy_qp(target.qpn)), Ok(()));
    assert_eq!(errno(bed.card.destroy_srq(target.srq.srqn)), Ok(()));
}

/// Answers that a card holds back continue when their time has come, long before the initiator's time-out.
#[test]
fn answers_that_are_kept_back_go_on() {
    for seed in 0..10 {
        let mut bed = Bed::new();
        bed.card.set_liberties(Some(Liberties {
            seed,
            kinds: LibertyKinds::ACKNOWLEDGEMENTS | LibertyKinds::ATOMICS,
        }));
        let mut now = Instant::now();
        for (n, from) in (0..2).cycle().take(40).enumerate() {
            let target = &bed.targets[n / 2 % 2];
            let (qpn, remote, result) = (target.qpn, target.place.remote(0), bed.source.data(0..8));
            let add = AtomicSeg::new(1, 0);
            let (opcode, segments): (_, &[&[u8]]) = match n % 3 {
                0 => (Opcode::AtomicFa, &[remote.as_bytes(), add.as_bytes(), result.as_bytes()]),
                _ => (Opcode::RdmaWrite, &[remote.as_bytes(), result.as_bytes()]),
            };
            bed.queue(from, KEY, qpn, opcode, segments);
            let completion = (0..200).find_map(|_| {
                now += Duration::from_micros(5);
                bed.card.shared.engine.lock().step(now);
                bed.initiators[from].cq.poll()
            });
            assert!(completion.is_some(), "seed {seed}, request {n}");
            success(completion);
        }
    }
}

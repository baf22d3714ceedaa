//! Programs and peers that write arbitrary bytes: the card may refuse them, and must stay intact.

use super::*;
use crate::packet::{NakCode, PacketKind};
use gdsync_sys::prm::wqe::{AddressFields, AddressVector};
use proptest::prelude::*;
use zerocopy::byteorder::big_endian::U32;

/// Returns a queue pair of that transport in RTS, connected to itself.
fn qp_to_itself(card: &Card, pdn: u32, transport: Transport) -> TestQp {
    let qp = TestQp::with(card, pdn, &SIZES, |config| config.transport = transport);
    let change = |state| QpChange { state: Some(state), ..QpChange::default() };
    let (is_rc, is_ud) = (transport == Transport::Rc, transport == Transport::Ud);
    let access = everything() | Access::REMOTE_ATOMIC;
    let init = QpChange {
        pkey_index: Some(0),
        port: Some(1),
        access: (!is_ud).then_some(access),
        qkey: is_ud.then_some(7),
        ..change(QpState::Init)
    };
    let rtr = QpChange {
        address: (!is_ud).then_some(Address { dlid: card.lid(), gid: None }),
        path_mtu: (!is_ud).then_some(5),
        dest_qpn: (!is_ud).then_some(qp.qpn),
        rq_psn: (!is_ud).then_some(0),
        max_dest_rd_atomic: is_rc.then_some(4),
        min_rnr_timer: is_rc.then_some(1),
        ..change(QpState::Rtr)
    };
    let rts = QpChange {
        // No timeout: packets are not sent again, and no test waits.
        timeout: is_rc.then_some(0),
        retry_cnt: is_rc.then_some(7),
        rnr_retry: is_rc.then_some(0),
        sq_psn: Some(0),
        max_rd_atomic: is_rc.then_some(4),
        ..change(QpState::Rts)
    };
    [init, rtr, rts].iter().for_each(|change| card.modify_qp(qp.qpn, change).unwrap());
    qp
}

fn transports() -> impl Strategy<Value = Transport> {
    prop_oneof![Just(Transport::Rc), Just(Transport::Uc), Just(Transport::Ud)]
}

/// A correct control segment with an arbitrary body.
#[derive(Clone, Debug)]
struct Entry {
    opcode: Opcode,
    vector: bool,
    addr_in_region: bool,
    body: Vec<u8>,
}

fn entries() -> impl Strategy<Value = Entry> {
    let body = proptest::collection::vec(any::<u8>(), 0..120);
    (proptest::sample::select(Opcode::ALL), any::<bool>(), any::<bool>(), body)
        .prop_map(|(opcode, vector, addr_in_region, body)| Entry { opcode, vector, addr_in_region, body })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_is_posted_the_card_comes_to_rest(
        transport in transports(),
        posted in proptest::collection::vec(entries(), 1..12),
        receives in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 64), 0..4),
        records in any::<(u32, u32)>(),
    ) {
        let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
        let pdn = card.alloc_pd().unwrap();
        let mut qp = qp_to_itself(&card, pdn, transport);
        let region = Region::new(&card, pdn, 256, everything() | Access::REMOTE_ATOMIC);
        qp.post_recv(&[region.data(0..200)]);
        for entry in &receives {
            let offset = ((qp.received & (qp.entries - 1)) * qp.stride) as usize;
            let len = entry.len().min(qp.stride as usize);
            bytes(qp.rq, (qp.entries * qp.stride) as usize)[offset..][..len].copy_from_slice(&entry[..len]);
            qp.received += 1;
            word(qp.dbrec, doorbell::DBR_RECV).store(doorbell::record(qp.received), Ordering::Release);
        }
        let fields = AddressFields { qkey: 7, qpn: qp.qpn, dlid: card.lid(), ..AddressFields::default() };
        for entry in posted {
            let vector = AddressVector::new(&fields);
            let (remote, data) = (region.remote(0), region.data(0..8));
            let mut segments: Vec<&[u8]> = Vec::new();
            if entry.vector {
                segments.push(vector.as_bytes());
            }
            if entry.addr_in_region {
                segments.extend([remote.as_bytes(), data.as_bytes()]);
            }
            segments.push(&entry.body);
            qp.post(entry.opcode, &segments);
            run(&card);
        }
        // Arbitrary doorbell records.
        word(qp.dbrec, doorbell::DBR_RECV).store(records.0, Ordering::Release);
        word(qp.dbrec, doorbell::DBR_SEND).store(records.1, Ordering::Release);
        qp.store_doorbell(u64::from(qp.qpn).swap_bytes() | 1);
        run(&card);
        card.destroy_qp(qp.qpn).unwrap();
        card.destroy_cq(qp.cq.cqn).unwrap();
    }

    #[test]
    fn whatever_a_peer_sends_the_card_comes_to_rest(
        transport in transports(),
        packets in proptest::collection::vec(
            (any::<[u8; size_of::<Header>()]>(), 0u8..12, 0u32..4, any::<bool>(), 0usize..256),
            1..24,
        ),
    ) {
        let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
        let pdn = card.alloc_pd().unwrap();
        let mut qp = qp_to_itself(&card, pdn, transport);
        let region = Region::new(&card, pdn, 256, everything() | Access::REMOTE_ATOMIC);
        (0..8).for_each(|_| qp.post_recv(&[region.data(0..100)]));
        let payload = [0x55u8; 256];
        for (header, kind, psn, is_in_region, len) in packets {
            let mut header = Header::read_from_bytes(&header).unwrap();
            (header.kind, header.psn) = (kind, U32::new(psn));
            (header.source_qpn, header.dest_qpn) = (U32::new(qp.qpn), U32::new(qp.qpn));
            if is_in_region {
                let remote = region.remote(0);
                (header.addr, header.rkey) = (remote.addr().into(), remote.rkey().into());
                header.length = U32::new(header.length.get() % 300);
            }
            let engine = &mut card.shared.engine.lock();
            let touched = inject(engine, &header, &[(payload.as_ptr(), len)]);
            touched.into_iter().for_each(|qpn| engine.activate(qpn));
        }
        run(&card);
        card.destroy_qp(qp.qpn).unwrap();
        card.destroy_cq(qp.cq.cqn).unwrap();
    }
}

#[test]
fn reads_that_come_again_are_not_too_many() {
    let mut pair = Pair::new(4096);
    pair.source.fill(3);
    let header = |psn| {
        let mut header = Header::new(PacketKind::Read, pair.left.qpn, pair.right.qpn, psn);
        let remote = pair.source.remote(0);
        (header.addr, header.rkey, header.length) = (remote.addr().into(), remote.rkey().into(), U32::new(8));
        header
    };
    {
        let mut engine = pair.card.shared.engine.lock();
        // Four reads are allowed in flight. The requester sends them again; it then gets the first answers, and may
        // send the next read.
        for psn in [0, 1, 2, 3, 0, 1, 2, 3] {
            inject(&mut engine, &header(psn), &[]);
        }
        let now = Instant::now();
        let answered = engine.with_qp(pair.right.qpn, now, |qp, context| {
            (0..4).for_each(|_| {
                let response = qp.next_packet(context).unwrap();
                context.payload.clear();
                qp.packet_sent(&response, context);
            })
        });
        assert!(answered.is_some());
        inject(&mut engine, &header(4), &[]);
    }
    assert_eq!(pair.state(&pair.right), QpState::Rts, "{:?}", pair.card.diagnostics());
    pair.right.post(Opcode::Nop, &[]);
    pair.run();
    success(pair.right.cq.poll());
}

#[test]
fn answers_to_packets_that_were_not_sent_are_lost() {
    let mut pair = Pair::new(4096);
    pair.left.post(Opcode::RdmaWrite, &[pair.target.remote(0).as_bytes(), &inline(b"hello")]);
    let answer = |kind, psn, code| {
        let mut header = Header::new(kind, pair.right.qpn, pair.left.qpn, psn);
        header.imm[0] = code;
        header
    };
    {
        let mut engine = pair.card.shared.engine.lock();
        engine.take_doorbells(Instant::now());
        // The packet is lost.
        let left = engine.with_qp(pair.left.qpn, Instant::now(), |qp, context| {
            let request = qp.next_packet(context).unwrap();
            context.payload.clear();
            qp.packet_sent(&request, context);
        });
        assert!(left.is_some());
        for psn in [1, 2, 1000, 0x7f_ffff] {
            inject(&mut engine, &answer(PacketKind::Ack, psn, 0), &[]);
            for code in [NakCode::Sequence, NakCode::RemoteAccess, NakCode::ReceiverNotReady] {
                inject(&mut engine, &answer(PacketKind::Nak, psn, code as u8), &[]);
            }
        }
    }
    assert!(pair.left.cq.peek().is_none(), "the write was not performed");
    assert_eq!(pair.state(&pair.left), QpState::Rts);
    inject(&mut pair.card.shared.engine.lock(), &answer(PacketKind::Ack, 0, 0), &[]);
    success(pair.left.cq.poll());
}

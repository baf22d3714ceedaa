//! Unreliable connections.

use super::*;
use crate::card::port::MTU;
use crate::packet::{FIRST, LAST, PacketKind, UNRELIABLE};
use zerocopy::byteorder::big_endian::U32;

fn connect(card: &Card, qp: &TestQp, peer: u32) {
    let change = |state| QpChange { state: Some(state), ..QpChange::default() };
    let init = QpChange {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_WRITE),
        ..change(QpState::Init)
    };
    card.modify_qp(qp.qpn, &init).unwrap();
    let rtr = QpChange {
        address: Some(Address { dlid: card.lid(), gid: None }),
        path_mtu: Some(5),
        dest_qpn: Some(peer),
        rq_psn: Some(0),
        ..change(QpState::Rtr)
    };
    card.modify_qp(qp.qpn, &rtr).unwrap();
    card.modify_qp(qp.qpn, &QpChange { sq_psn: Some(0), ..change(QpState::Rts) }).unwrap();
}

pub(super) fn pair(len: usize) -> Pair {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let qp = || TestQp::with(&card, pdn, &SIZES, |config| config.transport = Transport::Uc);
    let (left, right) = (qp(), qp());
    connect(&card, &left, right.qpn);
    connect(&card, &right, left.qpn);
    let region = || Region::new(&card, pdn, len, everything());
    let (source, target) = (region(), region());
    Pair { card, pdn, left, right, source, target }
}

#[test]
fn sends_and_writes_of_every_size_with_and_without_immediates() {
    for size in [1, 100, MTU - 1, MTU, MTU + 1, 3 * MTU + 5].map(|size| size as usize) {
        for opcode in [Opcode::Send, Opcode::SendImm, Opcode::RdmaWrite, Opcode::RdmaWriteImm] {
            let mut pair = pair(size);
            pair.source.fill(size);
            pair.right.post_recv(&[pair.target.data(0..size)]);
            let (remote, data) = (pair.target.remote(0), pair.source.data(0..size));
            let is_write = matches!(opcode, Opcode::RdmaWrite | Opcode::RdmaWriteImm);
            let segments: Vec<&[u8]> =
                if is_write { vec![remote.as_bytes(), data.as_bytes()] } else { vec![data.as_bytes()] };
            let wqe = pair.left.wqe(opcode, &segments, CtrlFlags::CQ_UPDATE, [1, 2, 3, 4]);
            pair.left.post_wqe(&wqe);
            pair.run();
            assert_eq!(success(pair.left.cq.poll()).0, opcode as u8);
            assert_eq!(pair.target.bytes(), pair.source.bytes(), "{opcode:?} of {size} bytes");
            let expected = match opcode {
                Opcode::Send => Some((CqeOpcode::RespSend, [0; 4])),
                Opcode::SendImm => Some((CqeOpcode::RespSendImm, [1, 2, 3, 4])),
                Opcode::RdmaWriteImm => Some((CqeOpcode::RespWriteImm, [1, 2, 3, 4])),
                _ => None,
            };
            let received = pair.right.cq.poll();
            assert_eq!(received.map(|cqe| (cqe.opcode().unwrap(), cqe.imm())), expected);
            assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
        }
    }
}

#[test]
fn inline_data_lives_until_it_has_arrived() {
    let mut pair = pair(64);
    pair.right.post_recv(&[pair.target.data(0..64)]);
    pair.left.post(Opcode::Send, &[&inline(b"inline and gone")]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 15);
    assert_eq!(&pair.target.bytes()[..15], b"inline and gone");
}

#[test]
fn a_message_without_a_receive_is_gone_and_the_sender_does_not_know() {
    let mut pair = pair(64);
    pair.left.post(Opcode::Send, &[&inline(b"lost")]);
    let (remote, data) = (pair.target.remote(8), inline(b"written"));
    pair.left.post(Opcode::RdmaWriteImm, &[remote.as_bytes(), &data]);
    pair.run();
    success(pair.left.cq.poll());
    success(pair.left.cq.poll());
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.left.post(Opcode::Send, &[&inline(b"heard")]);
    pair.run();
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.wqe_counter(), cqe.byte_count()), (0, 5));
    assert_eq!(&pair.target.bytes()[..5], b"heard");
    assert!(pair.right.cq.poll().is_none());
}

#[test]
fn what_may_not_be_written_is_dropped_and_both_sides_go_on() {
    let mut pair = pair(64);
    let data = inline(b"bad");
    let wrong = RemoteAddrSeg::new(pair.target.at as u64, 0x4242);
    pair.left.post(Opcode::RdmaWrite, &[wrong.as_bytes(), &data]);
    pair.run();
    success(pair.left.cq.poll());
    assert!(pair.diagnosed("rkey"));
    assert_eq!((pair.state(&pair.left), pair.state(&pair.right)), (QpState::Rts, QpState::Rts));
    let remote = pair.target.remote(0);
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(b"good")]);
    pair.run();
    assert_eq!(&pair.target.bytes()[..4], b"good");
}

#[test]
fn a_receive_that_is_too_short_or_wrong_fails_the_receiver_only() {
    for syndrome in [Syndrome::LocalLength, Syndrome::LocalProtection] {
        let mut pair = pair(64);
        let place = match syndrome {
            Syndrome::LocalLength => pair.target.data(0..4),
            _ => DataSeg::new(64, 0x4242, pair.target.at as u64),
        };
        pair.right.post_recv(&[place]);
        pair.left.post(Opcode::Send, &[&inline(b"12345")]);
        pair.run();
        success(pair.left.cq.poll());
        assert_eq!(error(pair.right.cq.poll()), (CqeOpcode::ResponderError, syndrome, 0));
        assert_eq!((pair.state(&pair.left), pair.state(&pair.right)), (QpState::Rts, QpState::Err));
    }
}

#[test]
fn reads_and_atomics_are_not_of_this_transport() {
    for opcode in [Opcode::RdmaRead, Opcode::AtomicFa] {
        let mut pair = pair(64);
        let (remote, data) = (pair.target.remote(0), pair.source.data(0..8));
        pair.left.post(opcode, &[remote.as_bytes(), data.as_bytes()]);
        pair.run();
        assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalQpOperation);
        assert!(pair.diagnosed("opcode"));
    }
}

#[test]
fn a_peer_that_is_not_there_is_not_missed() {
    let mut pair = pair(64);
    let nowhere = QpChange { state: Some(QpState::Reset), ..QpChange::default() };
    pair.card.modify_qp(pair.right.qpn, &nowhere).unwrap();
    pair.left.post(Opcode::Send, &[&inline(b"hello")]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.state(&pair.left), QpState::Rts);
}

/// Delivers a packet with one byte of a longer send to the right side.
fn deliver(pair: &Pair, flags: u8, psn: u32, byte: u8, length: u32) {
    let mut header = Header::new(PacketKind::Send, pair.left.qpn, pair.right.qpn, psn);
    (header.flags, header.length) = (flags, U32::new(length));
    inject(&mut pair.card.shared.engine.lock(), &header, &[(&raw const byte, 1)]);
}

#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_serves_the_next() {
    let mut pair = pair(64);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    deliver(&pair, UNRELIABLE | FIRST, 0, b'a', 3);
    deliver(&pair, UNRELIABLE | LAST, 2, b'c', 3);
    assert!(pair.right.cq.poll().is_none(), "the middle is missing");
    deliver(&pair, UNRELIABLE, 3, b'x', 3);
    deliver(&pair, UNRELIABLE | FIRST, 4, b'1', 2);
    deliver(&pair, UNRELIABLE | LAST, 5, b'2', 2);
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.wqe_counter(), cqe.byte_count()), (0, 2));
    assert_eq!(pair.target.bytes()[..3], [b'1', b'2', 0]);
    assert_eq!(pair.state(&pair.right), QpState::Rts);
}

#[test]
fn packets_of_another_transport_are_not_heard() {
    let mut pair = pair(64);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    deliver(&pair, FIRST | LAST, 0, b'a', 1);
    assert!(pair.right.cq.poll().is_none(), "of a reliable connection");
    deliver(&pair, UNRELIABLE | FIRST | LAST, 0, b'a', 1);
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 1);
}

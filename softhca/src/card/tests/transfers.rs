//! Successful messages.

use super::*;
use crate::card::port::MTU;

#[test]
fn a_send_fills_the_receive() {
    let mut pair = Pair::new(100);
    pair.source.fill(1);
    pair.right.post_recv(&[pair.target.data(0..30), pair.target.data(50..100)]);
    let data = pair.source.data(0..60);
    let imm = pair.left.wqe(
        Opcode::SendImm,
        &[data.as_bytes()],
        CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED,
        [1, 2, 3, 4],
    );
    pair.left.post_wqe(&imm);
    pair.run();
    assert_eq!(success(pair.left.cq.poll()), (Opcode::SendImm as u8, 0));
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!(cqe.opcode(), Ok(CqeOpcode::RespSendImm));
    assert_eq!(
        (cqe.byte_count(), cqe.imm(), cqe.wqe_counter(), cqe.is_solicited()),
        (60, [1, 2, 3, 4], 0, true)
    );
    assert_eq!((cqe.qpn(), cqe.remote_qpn()), (pair.right.qpn, pair.left.qpn));
    assert_eq!(cqe.path().slid, pair.card.lid());
    assert_eq!(pair.target.bytes()[..30], pair.source.bytes()[..30]);
    assert_eq!(pair.target.bytes()[50..80], pair.source.bytes()[30..60]);
    assert!(pair.target.bytes()[80..].iter().all(|byte| *byte == 0));
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn writes_and_reads_of_every_size() {
    let sizes = [0, 1, 63, MTU - 1, MTU, MTU + 1, 3 * MTU + 5, 40 * MTU + 1];
    for size in sizes.map(|size| size as usize) {
        let mut pair = Pair::new(size.max(1));
        pair.source.fill(size);
        let data = pair.source.data(0..size);
        let segments: Vec<&[u8]> = if size > 0 { vec![data.as_bytes()] } else { Vec::new() };
        let remote = pair.target.remote(0);
        let wqe = pair.left.wqe(
            Opcode::RdmaWrite,
            &[&[remote.as_bytes()], &segments[..]].concat(),
            CtrlFlags::CQ_UPDATE,
            [0; 4],
        );
        pair.left.post_wqe(&wqe);
        pair.run();
        assert_eq!(success(pair.left.cq.poll()).0, Opcode::RdmaWrite as u8, "{size} bytes");
        assert_eq!(pair.target.bytes()[..size], pair.source.bytes()[..size]);
        assert!(pair.right.cq.poll().is_none(), "a write is silent");
        pair.source.fill(0);
        let back = pair.left.wqe(
            Opcode::RdmaRead,
            &[&[remote.as_bytes()], &segments[..]].concat(),
            CtrlFlags::CQ_UPDATE,
            [0; 4],
        );
        pair.left.post_wqe(&back);
        pair.run();
        let cqe = pair.left.cq.poll().unwrap();
        assert_eq!((cqe.wqe_opcode(), cqe.byte_count() as usize), (Opcode::RdmaRead as u8, size));
        assert_eq!(pair.target.bytes()[..size], pair.source.bytes()[..size]);
        assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
    }
}

#[test]
fn one_read_is_in_flight_at_least() {
    let none = QpChange { max_rd_atomic: Some(0), ..QpChange::default() };
    let mut pair = Pair::with(&SIZES, 64, none);
    pair.source.fill(1);
    let (remote, place) = (pair.source.remote(0), pair.target.data(0..64));
    for _ in 0..2 {
        pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), place.as_bytes()]);
    }
    pair.run();
    assert_eq!([0; 2].map(|_| success(pair.left.cq.poll()).0), [Opcode::RdmaRead as u8; 2]);
    assert_eq!(pair.target.bytes(), pair.source.bytes());
}

#[test]
fn inline_bytes_and_places_are_one_message() {
    let size = 2 * MTU as usize + 7;
    let mut pair = Pair::new(size);
    pair.source.fill(5);
    let first: Vec<u8> = (1..=23).collect();
    let mut head = inline(&first);
    head.resize(head.len().next_multiple_of(SEGMENT), 0);
    let (one, other) =
        (pair.source.data(0..MTU as usize), pair.source.data(10..size - first.len() - MTU as usize + 10));
    let remote = pair.target.remote(0);
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), &head, one.as_bytes(), other.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    let (sent, bytes) = (pair.source.bytes(), pair.target.bytes());
    let second = first.len() + MTU as usize;
    assert_eq!(bytes[..first.len()], first);
    assert_eq!(bytes[first.len()..second], sent[..MTU as usize]);
    assert_eq!(bytes[second..], sent[10..size - second + 10]);
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    let mut pair = Pair::new(2 * MTU as usize);
    pair.source.fill(3);
    pair.right.post_recv(&[]);
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..2 * MTU as usize));
    let wqe = pair.left.wqe(
        Opcode::RdmaWriteImm,
        &[remote.as_bytes(), data.as_bytes()],
        CtrlFlags::CQ_UPDATE,
        [9; 4],
    );
    pair.left.post_wqe(&wqe);
    pair.run();
    success(pair.left.cq.poll());
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.opcode(), cqe.byte_count(), cqe.imm()), (Ok(CqeOpcode::RespWriteImm), 2 * MTU, [9; 4]));
    assert_eq!(pair.target.bytes(), pair.source.bytes());
}

#[test]
fn an_entry_may_wrap_anywhere_inline_data_too() {
    for start in 0..8u32 {
        let mut pair = Pair::with(&Sizes { blocks: 8, ..SIZES }, 512, QpChange::default());
        for _ in 0..start {
            pair.left.post(Opcode::Nop, &[]);
            pair.run();
            success(pair.left.cq.poll());
        }
        let data: Vec<u8> = (0..300).map(|i| (i * 3) as u8).collect();
        let remote = pair.target.remote(0);
        pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(&data)]);
        pair.run();
        assert_eq!(success(pair.left.cq.poll()), (Opcode::RdmaWrite as u8, start as u16));
        assert_eq!(pair.target.bytes()[..300], data[..]);
        assert!(pair.card.diagnostics().is_empty());
    }
}

#[test]
fn as_many_segments_as_the_formats_hold() {
    // 63 units hold a control segment and 62 elements; a receive has no such limit.
    let mut pair = Pair::with(&Sizes { recv_segments: 64, ..SIZES }, 6200, QpChange::default());
    pair.source.fill(5);
    let gather: Vec<DataSeg> = (0..62).rev().map(|i| pair.source.data(i * 100..i * 100 + 100)).collect();
    let scatter: Vec<DataSeg> = (0..62).map(|i| pair.target.data(i * 100..i * 100 + 97)).collect();
    let tail: Vec<DataSeg> = (0..2).map(|i| pair.target.data(i * 100 + 97..i * 100 + 100)).collect();
    let places = [scatter, tail].concat();
    pair.right.post_recv(&places);
    let segments: Vec<DataSeg> = gather[..60].to_vec();
    pair.left.post(Opcode::Send, &[segments.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 6000);
    let sent: Vec<u8> =
        (2..62).rev().flat_map(|i| pair.source.bytes()[i * 100..i * 100 + 100].to_vec()).collect();
    let received: Vec<u8> = places
        .iter()
        .flat_map(|place| {
            let at = (place.addr() - pair.target.at as u64) as usize;
            pair.target.bytes()[at..at + place.byte_count() as usize].to_vec()
        })
        .collect();
    assert_eq!(received[..6000], sent[..]);
    pair.right.post_recv(&[pair.target.data(0..6200)]);
    pair.left.post(Opcode::Send, &[gather.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 6200);
}

#[test]
fn one_doorbell_announces_many_and_unsignaled_ones_are_silent() {
    let mut pair = Pair::new(64);
    for value in 1..=8u8 {
        let flags = if value == 8 { CtrlFlags::CQ_UPDATE } else { CtrlFlags::empty() };
        let remote = pair.target.remote(value.into());
        let wqe = pair.left.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(&[value])], flags, [0; 4]);
        pair.left.head += pair.left.write(&wqe);
    }
    pair.left.ring(pair.left.head - 1);
    pair.run();
    assert_eq!(success(pair.left.cq.poll()), (Opcode::RdmaWrite as u8, 7));
    assert!(pair.left.cq.poll().is_none());
    assert_eq!(pair.target.bytes()[1..9], [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn rings_and_counters_wrap_for_a_long_time() {
    let psn = QpChange { sq_psn: Some(0xff_fff0), rq_psn: Some(0xff_ff00), ..QpChange::default() };
    let mut pair = Pair::with(&Sizes { blocks: 4, cqes: 4, ..SIZES }, 8, psn);
    for i in 0..70_000u32 {
        let remote = pair.target.remote(0);
        pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(&i.to_be_bytes())]);
        pair.run();
        assert_eq!(success(pair.left.cq.poll()).1, i as u16);
        assert_eq!(pair.target.bytes()[..4], i.to_be_bytes());
    }
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_queue_pair_may_be_connected_to_itself() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &SIZES);
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    let region = Region::new(&card, pdn, 4096, everything());
    region.fill(9);
    let before = region.bytes()[..2000].to_vec();
    // Source and target overlap.
    qp.post_recv(&[region.data(100..2100)]);
    qp.post(Opcode::Send, &[region.data(0..2000).as_bytes()]);
    run(&card);
    let mut opcodes: Vec<_> = (0..2).map(|_| qp.cq.poll().unwrap().opcode().unwrap() as u8).collect();
    opcodes.sort_unstable();
    assert_eq!(opcodes, [CqeOpcode::Requester as u8, CqeOpcode::RespSend as u8]);
    assert_eq!(region.bytes()[100..2100], before[..]);
}

#[test]
fn a_fenced_request_waits_for_reads_and_reads_are_throttled() {
    let mut pair = Pair::new(8 * MTU as usize);
    pair.target.fill(1);
    for i in 0..6 {
        let (remote, place) = (
            pair.target.remote(i * MTU as usize),
            pair.source.data(i * MTU as usize..(i + 1) * MTU as usize),
        );
        let wqe = pair.left.wqe(
            Opcode::RdmaRead,
            &[remote.as_bytes(), place.as_bytes()],
            CtrlFlags::CQ_UPDATE,
            [0; 4],
        );
        pair.left.head += pair.left.write(&wqe);
    }
    // Sends back what was read last: without the fence it would send zeroes.
    let (remote, data) =
        (pair.target.remote(7 * MTU as usize), pair.source.data(5 * MTU as usize..6 * MTU as usize));
    let flags = CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE;
    let wqe = pair.left.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()], flags, [0; 4]);
    pair.left.post_wqe(&wqe);
    pair.run();
    (0..7).for_each(|i| assert_eq!(success(pair.left.cq.poll()).1, i));
    let mtu = MTU as usize;
    assert_eq!(pair.target.bytes()[7 * mtu..], pair.target.bytes()[5 * mtu..6 * mtu]);
    assert!(pair.card.diagnostics().is_empty(), "max_dest_rd_atomic was respected");
}

#[test]
fn two_cards_talk_over_the_fabric() {
    let mtu = MTU as usize;
    let cards = [0, 1].map(|_| Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap());
    let pdns = [0, 1].map(|i: usize| cards[i].alloc_pd().unwrap());
    let mut qps = [0, 1].map(|i: usize| TestQp::new(&cards[i], pdns[i], &SIZES));
    let regions = [0, 1].map(|i: usize| Region::new(&cards[i], pdns[i], 30 * mtu + 3, everything()));
    for i in 0..2 {
        qps[i].connect(&cards[i], qps[1 - i].qpn, cards[1 - i].lid(), QpChange::default());
    }
    for round in 0..50 {
        let size = [1, 30 * mtu + 3, 0, 4096][round % 4];
        regions[0].fill(round);
        let segments: Vec<DataSeg> = if size == 0 { Vec::new() } else { vec![regions[0].data(0..size)] };
        qps[1].post_recv(&[regions[1].data(0..30 * mtu + 3)]);
        qps[0].post(Opcode::Send, &[segments.as_bytes()]);
        assert_eq!(qps[1].cq.wait().byte_count() as usize, size);
        success(Some(qps[0].cq.wait()));
        assert_eq!(regions[1].bytes()[..size], regions[0].bytes()[..size]);
    }
    let (remote, place) = (regions[0].remote(0), regions[1].data(0..20 * mtu));
    qps[1].post(Opcode::RdmaRead, &[remote.as_bytes(), place.as_bytes()]);
    success(Some(qps[1].cq.wait()));
    assert_eq!(regions[1].bytes()[..20 * mtu], regions[0].bytes()[..20 * mtu]);
    // After one card is dropped, requests of the other fail.
    let [first, second] = cards;
    drop(second);
    qps[0].post(Opcode::RdmaWrite, &[regions[1].remote(0).as_bytes(), &inline(b"x")]);
    assert_eq!(error(Some(qps[0].cq.wait())).1, Syndrome::RetryExceeded);
    drop(first);
}

//! Multicast groups.

use super::datagrams::{QKEY, datagram_qp, datagram_qp_with};
use super::*;
use crate::card::config::LIMITS;
use gdsync_sys::prm::wqe::{AddressFields, AddressVector, GrhFields};

/// Returns a group of this process.
fn group(number: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x12, number);
    gid[8..12].copy_from_slice(&std::process::id().to_be_bytes());
    gid
}

/// Returns the address of a group, on either link layer.
fn to(gid: [u8; 16]) -> AddressFields {
    let grh = Some(GrhFields { gid, hop_limit: 1, ..GrhFields::default() });
    AddressFields { qkey: QKEY, qpn: 0xff_ffff, dlid: 0xc001, grh, ..AddressFields::default() }
}

fn post(qp: &mut TestQp, fields: &AddressFields, data: &[u8]) {
    qp.post(Opcode::Send, &[AddressVector::new(fields).as_bytes(), &inline(data)]);
}

/// Returns the lengths of the messages that have arrived.
fn received(qp: &mut TestQp) -> Vec<u32> {
    let entries = std::iter::from_fn(|| qp.cq.poll());
    entries.filter(|cqe| cqe.opcode() == Ok(CqeOpcode::RespSend)).map(|cqe| cqe.byte_count()).collect()
}

/// Returns a card, and queue pairs with two receives each.
fn card_with(count: usize, config: impl Fn(usize, &mut QpConfig)) -> (Card, Vec<TestQp>, Region) {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let target = Region::new(&card, pdn, 4096, everything());
    let mut qps: Vec<TestQp> =
        (0..count).map(|index| datagram_qp_with(&card, pdn, |qp| config(index, qp))).collect();
    for (index, qp) in qps.iter_mut().enumerate() {
        for receive in 0..2 {
            let first = (index * 2 + receive) * 64;
            qp.post_recv(&[target.data(first..first + 64)]);
        }
    }
    (card, qps, target)
}

#[test]
fn every_member_gets_a_copy_with_a_network_header_and_nobody_else_does() {
    let (card, mut qps, target) = card_with(4, |_, _| {});
    let gid = group(1);
    for qp in &qps[1..3] {
        card.attach_multicast(qp.qpn, &gid).unwrap();
        card.attach_multicast(qp.qpn, &gid).unwrap();
    }
    card.attach_multicast(qps[3].qpn, &group(2)).unwrap();
    post(&mut qps[0], &to(gid), b"to all");
    run(&card);
    assert_eq!(success(qps[0].cq.poll()).0, Opcode::Send as u8);
    for (index, expected) in [(0, &[][..]), (1, &[46]), (2, &[46]), (3, &[])] {
        assert_eq!(received(&mut qps[index]), expected, "queue pair {index}");
    }
    for first in [128, 256] {
        let packet = &target.bytes()[first..first + 46];
        assert_eq!((&packet[24..40], &packet[40..]), (&gid[..], &b"to all"[..]));
    }
    card.detach_multicast(qps[1].qpn, &gid).unwrap();
    assert!(matches!(card.detach_multicast(qps[1].qpn, &gid), Err(CardError::NotFound { .. })));
    card.destroy_qp(qps[2].qpn).unwrap();
    post(&mut qps[0], &to(gid), b"to no member");
    run(&card);
    success(qps[0].cq.poll());
    assert!(received(&mut qps[1]).is_empty());
    assert_eq!(card.shared.engine.lock().resources.groups.groups(), 1, "the other group");
    assert!(card.diagnostics().is_empty());
}

#[test]
fn a_sender_hears_itself_where_it_is_a_member_that_does_not_block_it() {
    for blocks in [false, true] {
        let (card, mut qps, _target) = card_with(2, |_, config| config.block_own_multicast = blocks);
        qps.iter().for_each(|qp| card.attach_multicast(qp.qpn, &group(3)).unwrap());
        post(&mut qps[0], &to(group(3)), b"echo");
        run(&card);
        assert_eq!((received(&mut qps[0]).is_empty(), received(&mut qps[1])), (blocks, vec![44]));
    }
}

#[test]
fn what_names_no_group_is_lost() {
    let (card, mut qps, _target) = card_with(2, |_, _| {});
    let gid = group(4);
    card.attach_multicast(qps[1].qpn, &gid).unwrap();
    let other_number = AddressFields { qpn: qps[1].qpn, ..to(gid) };
    let mut unicast = gid;
    unicast[0] = 0xfe;
    let without_header = AddressFields { grh: None, ..to(gid) };
    let other_key = AddressFields { qkey: QKEY + 1, ..to(gid) };
    for fields in [other_number, to(unicast), without_header, other_key, to(group(5))] {
        post(&mut qps[0], &fields, b"lost");
        run(&card);
        success(qps[0].cq.poll());
        assert!(received(&mut qps[1]).is_empty());
    }
    // The datagram of a card that breaks the rules.
    let mut header = Header::new(crate::packet::PacketKind::Datagram, 0x77, 0xff_ffff, 0);
    header.set_group(gid);
    let mut engine = card.shared.engine.lock();
    assert_eq!(inject(&mut engine, &header, &[]), None);
}

#[test]
fn members_and_groups_are_checked_and_limited() {
    let (card, qps, _target) = card_with(1, |_, _| {});
    let errno = |result: Result<(), CardError>| result.map_err(|error| error.errno());
    let pdn = card.alloc_pd().unwrap();
    let connected = TestQp::with(&card, pdn, &SIZES, |_| {});
    assert_eq!(errno(card.attach_multicast(connected.qpn, &group(6))), Err(libc::EINVAL));
    assert_eq!(errno(card.attach_multicast(0x77_7777, &group(6))), Err(libc::EINVAL));
    for gid in [[0xfe; 16], card.gids()[0].gid, [0; 16]] {
        assert_eq!(errno(card.attach_multicast(qps[0].qpn, &gid)), Err(libc::EINVAL));
    }
    let mut mapped = std::net::Ipv4Addr::new(239, 0, 0, 1).to_ipv6_mapped().octets();
    mapped[13..].copy_from_slice(&std::process::id().to_be_bytes()[1..]);
    assert_eq!(errno(card.attach_multicast(qps[0].qpn, &mapped)), Ok(()));
    let numbered = |number: u16| {
        let mut gid = group(7);
        gid[4..6].copy_from_slice(&number.to_be_bytes());
        gid
    };
    for number in 1..LIMITS.max_groups as u16 {
        card.attach_multicast(qps[0].qpn, &numbered(number)).unwrap();
    }
    assert_eq!(errno(card.attach_multicast(qps[0].qpn, &numbered(0))), Err(libc::ENOMEM));
    let mut engine = card.shared.engine.lock();
    let others = 0x10_0000..0x10_0000 + LIMITS.max_group_members - 1;
    others.for_each(|qpn| engine.resources.groups.add(&mapped, qpn));
    drop(engine);
    let another = datagram_qp(&card, pdn);
    assert_eq!(errno(card.attach_multicast(another.qpn, &mapped)), Err(libc::ENOMEM));
    assert_eq!(errno(card.attach_multicast(qps[0].qpn, &mapped)), Ok(()), "it is attached");
}

#[test]
fn members_of_other_cards_get_copies_from_when_they_have_joined() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let cards = [0, 1, 2].map(|_| Card::start(link, Box::new(drop)).unwrap());
        let pdns = [0, 1, 2].map(|i: usize| cards[i].alloc_pd().unwrap());
        let mut qps = [0, 1, 2].map(|i: usize| datagram_qp(&cards[i], pdns[i]));
        let targets = [1, 2].map(|i: usize| Region::new(&cards[i], pdns[i], 100, everything()));
        let gid = group(if link == LinkLayer::Ethernet { 8 } else { 9 });
        for (index, target) in [1, 2].into_iter().zip(&targets) {
            qps[index].post_recv(&[target.data(0..100)]);
            cards[index].attach_multicast(qps[index].qpn, &gid).unwrap();
        }
        post(&mut qps[0], &to(gid), b"near and far");
        for index in [1, 2] {
            let entry = qps[index].cq.wait();
            assert_eq!((entry.byte_count(), entry.remote_qpn()), (52, qps[0].qpn));
            assert_eq!(&targets[index - 1].bytes()[40..52], b"near and far");
        }
    }
}

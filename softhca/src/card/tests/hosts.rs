//! Cards of different hosts, each at its own loopback address: the same semantics, the same faults.

use super::faults::{plan, run_until};
use super::*;
use std::net::{Ipv4Addr, SocketAddrV4};

/// Returns a card at 127.83.100.`last`. Every test uses its own addresses.
pub(super) fn card_at(last: u8) -> Card {
    card_with(last, Speed::default())
}

pub(super) fn card_with(last: u8, speed: Speed) -> Card {
    let address = SocketAddrV4::new(Ipv4Addr::new(127, 83, 100, last), 48200);
    let key = gdsync_auth::Key::new(b"the key of these cards").unwrap();
    let fabric = Fabric::at(address, key, speed).unwrap();
    Card::on(fabric, 0, LinkLayer::InfiniBand, Box::new(drop), Default::default(), Default::default())
}

/// A connection between two cards, and a region of each.
struct Apart {
    near: Card,
    far: Card,
    left: TestQp,
    right: TestQp,
    source: Region,
    target: Region,
}

impl Apart {
    fn new(last: u8, change: QpChange) -> Self {
        let (near, far) = (card_at(last), card_at(last + 1));
        let (pdn, far_pdn) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let (left, right) = (TestQp::new(&near, pdn, &SIZES), TestQp::new(&far, far_pdn, &SIZES));
        left.connect(&near, right.qpn, 0, QpChange { address: Some(address_of(&far)), ..change });
        right.connect(&far, left.qpn, 0, QpChange { address: Some(address_of(&near)), ..change });
        let len = 3 * crate::fabric::MAX_PAYLOAD;
        let source = Region::new(&near, pdn, len, everything());
        let target = Region::new(&far, far_pdn, len, everything());
        Apart { near, far, left, right, source, target }
    }

    fn run_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        run_until(&self.near, what, || {
            run(&self.far);
            done()
        });
    }
}

pub(super) fn address_of(card: &Card) -> Address {
    Address { dlid: 0, gid: Some(card.gids()[3].gid) }
}

#[test]
fn a_card_between_hosts_is_ethernet_and_its_gids_name_its_address() {
    let card = card_at(1);
    assert_eq!((card.link_layer(), card.lid(), card.guid()), (LinkLayer::Ethernet, 0, 0x0200_5efe_7f53_6401));
    assert!(card.gids().iter().all(|entry| entry.gid.ends_with(&[127, 83, 100, 1])));
    assert!(card.check_address(&Address { dlid: 7, gid: None }).is_err());
}

#[test]
fn there_are_no_multicast_groups_between_hosts() {
    let card = card_at(8);
    let pdn = card.alloc_pd().unwrap();
    let qp = super::datagrams::datagram_qp(&card, pdn);
    assert!(!card.has_multicast());
    let refused = card.attach_multicast(qp.qpn, &[0xff; 16]).unwrap_err();
    assert_eq!(
        (refused.errno(), card.detach_multicast(qp.qpn, &[0xff; 16]).is_err()),
        (libc::EOPNOTSUPP, true)
    );
}

#[test]
fn messages_writes_and_reads_of_several_packets_with_and_without_faults() {
    // The probability that eight retries in a row are lost is 2 in a million, with the answers.
    for faults in ["", "seed=1; drop p=0.1; delay=200us p=0.2; duplicate p=0.2; hold=2 p=0.1; rnr every=5"] {
        let change = QpChange { timeout: Some(10), ..QpChange::default() };
        let mut pair = Apart::new(2, change);
        let len = pair.source.len;
        for card in [&pair.near, &pair.far] {
            card.set_faults(Some(&plan(faults)));
        }
        pair.source.fill(9);
        pair.right.post_recv(&[pair.target.data(0..len)]);
        let data = pair.source.data(0..len);
        pair.left.post(Opcode::Send, &[data.as_bytes()]);
        pair.run_until("the send", || pair.right.cq.peek().is_some() && pair.left.cq.peek().is_some());
        let received = pair.right.cq.poll();
        assert_eq!(received.map(|cqe| cqe.byte_count() as usize), Some(len));
        success(pair.left.cq.poll());
        assert!(pair.target.bytes() == pair.source.bytes());
        pair.target.bytes().reverse();
        pair.left.post(Opcode::RdmaRead, &[pair.target.remote(0).as_bytes(), data.as_bytes()]);
        pair.run_until("the read", || pair.left.cq.peek().is_some());
        success(pair.left.cq.poll());
        assert!(pair.target.bytes() == pair.source.bytes());
    }
}

#[test]
fn a_host_that_goes_ends_the_retries_and_so_does_one_that_falls_silent() {
    let change = QpChange { timeout: Some(8), ..QpChange::default() };
    let mut pair = Apart::new(4, change);
    let (word, data) = (pair.target.remote(0), inline(b"hello"));
    pair.left.post(Opcode::RdmaWrite, &[word.as_bytes(), &data]);
    pair.run_until("the write", || pair.left.cq.peek().is_some());
    success(pair.left.cq.poll());
    pair.far.set_faults(Some(&plan("die nth=1 dir=in")));
    pair.left.post(Opcode::RdmaWrite, &[word.as_bytes(), &data]);
    pair.run_until("the end of the retries", || pair.left.cq.peek().is_some());
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RetryExceeded);

    // Without timeout, only the end of the TCP connection reveals that the peer has ended.
    let Apart { near, far, mut left, target, .. } =
        Apart::new(6, QpChange { timeout: Some(0), ..QpChange::default() });
    left.post(Opcode::RdmaWrite, &[target.remote(0).as_bytes(), &data]);
    run_until(&near, "the write", || {
        run(&far);
        left.cq.peek().is_some()
    });
    success(left.cq.poll());
    drop(far);
    let node = near.shared.engine.lock().qps[&left.qpn].endpoint.node(near.port);
    run_until(&near, "its end", || !near.shared.engine.lock().fabric.is_alive(node));
    left.post(Opcode::RdmaWrite, &[target.remote(0).as_bytes(), &data]);
    run(&near);
    assert_eq!(error(left.cq.poll()).1, Syndrome::RetryExceeded);
}

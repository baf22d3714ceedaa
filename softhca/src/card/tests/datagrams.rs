//! Datagrams.

use super::*;
use gdsync_sys::prm::cqe::{L3_GRH, L3_IPV4, L3_IPV6, PathFields};
use gdsync_sys::prm::wqe::{AddressFields, AddressVector, GrhFields};

pub(super) const QKEY: u32 = 0x1111_1111;

/// Moves a UD queue pair from RESET to RTS.
pub(super) fn ready(card: &Card, qp: &TestQp, pkey_index: u16) {
    let change = |state| QpChange { state: Some(state), ..QpChange::default() };
    let init =
        QpChange { pkey_index: Some(pkey_index), port: Some(1), qkey: Some(QKEY), ..change(QpState::Init) };
    card.modify_qp(qp.qpn, &init).unwrap();
    card.modify_qp(qp.qpn, &change(QpState::Rtr)).unwrap();
    card.modify_qp(qp.qpn, &QpChange { sq_psn: Some(0), ..change(QpState::Rts) }).unwrap();
}

pub(super) fn datagram_qp(card: &Card, pdn: u32) -> TestQp {
    datagram_qp_with(card, pdn, |_| {})
}

pub(super) fn datagram_qp_with(card: &Card, pdn: u32, change: impl FnOnce(&mut QpConfig)) -> TestQp {
    let qp = TestQp::with(card, pdn, &SIZES, |config| {
        config.transport = Transport::Ud;
        change(config);
    });
    ready(card, &qp, 0);
    qp
}

fn pair_on(link: LinkLayer) -> Pair {
    let card = Card::stopped(link, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    datagram_pair(card, pdn, |_| {})
}

/// Returns two UD queue pairs. `change` has changed the configuration of the right one.
pub(super) fn datagram_pair(card: Card, pdn: u32, change: impl FnOnce(&mut QpConfig)) -> Pair {
    let (left, right) = (datagram_qp(&card, pdn), datagram_qp_with(&card, pdn, change));
    let region = || Region::new(&card, pdn, 8192, everything());
    let (source, target) = (region(), region());
    target.bytes().fill(0x7b);
    Pair { card, pdn, left, right, source, target }
}

fn pair() -> Pair {
    pair_on(LinkLayer::InfiniBand)
}

/// Returns the right side's address, with the source GID at an index. libmlx5 does not set the bit of the route on
/// Ethernet.
fn fields(pair: &Pair, source_gid: Option<u8>) -> AddressFields {
    let grh = source_gid.map(|gid_index| GrhFields {
        gid_index,
        hop_limit: 64,
        gid: pair.card.gids()[usize::from(gid_index)].gid,
        ..GrhFields::default()
    });
    let dlid = if pair.card.link_layer() == LinkLayer::Ethernet { 0xc123 } else { pair.card.lid() };
    AddressFields { qkey: QKEY, qpn: pair.right.qpn, service_level: 3, dlid, grh, ..AddressFields::default() }
}

fn vector(pair: &Pair, fields: &AddressFields) -> Vec<u8> {
    let mut bytes = AddressVector::new(fields).as_bytes().to_vec();
    if pair.card.link_layer() == LinkLayer::Ethernet {
        bytes[28] &= 0xbf;
    }
    bytes
}

impl Pair {
    /// Sends a datagram of the source's bytes to the right.
    pub(super) fn send_datagram(&mut self, range: std::ops::Range<usize>) {
        let (to, data) = (fields(self, None), self.source.data(range));
        send(self, &to, data.as_bytes());
    }
}

fn send(pair: &mut Pair, fields: &AddressFields, data: &[u8]) {
    let vector = vector(pair, fields);
    pair.left.post(Opcode::Send, &[&vector, data]);
    pair.run();
}

#[test]
fn a_datagram_comes_behind_room_for_a_header() {
    let mut pair = pair();
    pair.source.fill(9);
    let to = fields(&pair, None);
    for size in [1usize, 100, 4096] {
        pair.right.post_recv(&[pair.target.data(0..size + 40)]);
        let (vector, data) = (vector(&pair, &to), pair.source.data(0..size));
        let wqe = pair.left.wqe(
            Opcode::SendImm,
            &[&vector, data.as_bytes()],
            CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED,
            [1, 2, 3, 4],
        );
        pair.left.post_wqe(&wqe);
        pair.run();
        assert_eq!(success(pair.left.cq.poll()).0, Opcode::SendImm as u8);
        let cqe = pair.right.cq.poll().unwrap();
        assert_eq!((cqe.opcode(), cqe.byte_count() as usize), (Ok(CqeOpcode::RespSendImm), size + 40));
        assert_eq!((cqe.remote_qpn(), cqe.imm(), cqe.is_solicited()), (pair.left.qpn, [1, 2, 3, 4], true));
        let path = PathFields { slid: pair.card.lid(), level_or_l3_type: 3, has_grh: false };
        assert_eq!(cqe.path(), path);
        assert_eq!(pair.target.bytes()[40..40 + size], pair.source.bytes()[..size]);
        assert!(pair.target.bytes()[..40].iter().all(|byte| *byte == 0x7b), "no header came for these bytes");
    }
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_datagram_without_data_is_a_header() {
    let mut pair = pair();
    let to = fields(&pair, None);
    pair.right.post_recv(&[pair.target.data(0..40)]);
    send(&mut pair, &to, &[]);
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 40);
}

#[test]
fn the_network_header_comes_with_a_route() {
    let cases = [
        (LinkLayer::InfiniBand, 0, 3, 0x1b),
        (LinkLayer::Ethernet, 0, L3_GRH, 0x1b),
        (LinkLayer::Ethernet, 1, L3_IPV6, 17),
        (LinkLayer::Ethernet, 2, L3_GRH, 0x1b),
        (LinkLayer::Ethernet, 3, L3_IPV4, 17),
    ];
    for (link, index, level_or_l3_type, next) in cases {
        let mut pair = pair_on(link);
        let to = fields(&pair, Some(index));
        pair.right.post_recv(&[pair.target.data(0..100)]);
        send(&mut pair, &to, &inline(b"routed"));
        success(pair.left.cq.poll());
        let cqe = pair.right.cq.poll().unwrap();
        let slid = if link == LinkLayer::Ethernet { 0 } else { pair.card.lid() };
        assert_eq!(cqe.path(), PathFields { slid, level_or_l3_type, has_grh: true }, "{link:?} {index}");
        let received = pair.target.bytes();
        assert_eq!(&received[40..46], b"routed");
        let gid = pair.card.gids()[usize::from(index)].gid;
        if level_or_l3_type == L3_IPV4 && link == LinkLayer::Ethernet {
            assert_eq!((received[20], received[29]), (0x45, next));
            assert_eq!((&received[32..36], &received[36..40]), (&gid[12..], &gid[12..]));
        } else {
            assert_eq!((received[0] >> 4, received[6]), (6, next));
            assert_eq!((&received[8..24], &received[24..40]), (&gid[..], &gid[..]));
        }
        assert!(pair.card.diagnostics().is_empty());
    }
}

#[test]
fn a_source_that_the_port_does_not_have_is_refused() {
    let mut pair = pair();
    let mut to = fields(&pair, Some(0));
    to.grh = to.grh.map(|grh| GrhFields { gid_index: 1, ..grh });
    send(&mut pair, &to, &inline(b"from nowhere"));
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalQpOperation);
    assert!(pair.diagnosed("grh_gid_fl"));
}

#[test]
fn another_q_key_is_not_heard() {
    let mut pair = pair();
    pair.right.post_recv(&[pair.target.data(0..100)]);
    let to = fields(&pair, None);
    send(&mut pair, &AddressFields { qkey: QKEY + 1, ..to }, &inline(b"wrong"));
    success(pair.left.cq.poll());
    assert!(pair.right.cq.poll().is_none() && pair.diagnosed("Q_Key"));
    send(&mut pair, &AddressFields { qkey: 1 << 31, ..to }, &inline(b"own"));
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 43, "the top bit selects the sender's own");
}

#[test]
fn without_a_receive_it_is_dropped() {
    let mut pair = pair();
    let to = fields(&pair, None);
    send(&mut pair, &to, &inline(b"lost"));
    success(pair.left.cq.poll());
    pair.right.post_recv(&[pair.target.data(0..100)]);
    send(&mut pair, &to, &inline(b"heard"));
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 45);
    assert!(pair.right.cq.poll().is_none() && pair.card.diagnostics().is_empty());
}

#[test]
fn a_receive_without_room_for_the_header_fails() {
    let mut pair = pair();
    let to = fields(&pair, None);
    pair.right.post_recv(&[pair.target.data(0..44)]);
    send(&mut pair, &to, &inline(b"12345"));
    success(pair.left.cq.poll());
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalLength);
    assert_eq!((pair.state(&pair.left), pair.state(&pair.right)), (QpState::Rts, QpState::Err));
    assert!(pair.diagnosed("receive length"));
}

#[test]
fn a_receive_with_a_wrong_key_fails() {
    let mut pair = pair();
    let to = fields(&pair, None);
    pair.right.post_recv(&[DataSeg::new(100, 0x4242, pair.target.at as u64)]);
    send(&mut pair, &to, &inline(b"12345"));
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalProtection);
    assert!(pair.diagnosed("receive lkey"));
}

#[test]
fn more_than_the_mtu_is_refused_at_the_sender() {
    let mut pair = pair();
    let (to, data) = (fields(&pair, None), pair.source.data(0..4097));
    send(&mut pair, &to, data.as_bytes());
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalLength);
    assert_eq!(pair.state(&pair.left), QpState::Err);
}

#[test]
fn a_datagram_without_a_destination_is_lost() {
    let mut pair = pair();
    let to = fields(&pair, None);
    send(&mut pair, &AddressFields { qpn: 0x77_7777, ..to }, &inline(b"hello"));
    // A LID that no unicast port can have.
    send(&mut pair, &AddressFields { dlid: 0xfffe, ..to }, &inline(b"hello"));
    success(pair.left.cq.poll());
    success(pair.left.cq.poll());
    assert_eq!(pair.state(&pair.left), QpState::Rts);
}

#[test]
fn what_was_posted_before_the_end_has_left() {
    let mut pair = pair();
    pair.right.post_recv(&[pair.target.data(0..100)]);
    let (vector, data) = (vector(&pair, &fields(&pair, None)), inline(b"last words"));
    pair.left.post(Opcode::Send, &[&vector, &data]);
    pair.card.destroy_qp(pair.left.qpn).unwrap();
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 50);
}

#[test]
fn one_queue_pair_talks_to_itself_and_to_many() {
    let mut pair = pair();
    let to = fields(&pair, None);
    pair.left.post_recv(&[pair.target.data(0..100)]);
    pair.right.post_recv(&[pair.target.data(100..200)]);
    let own = AddressFields { qpn: pair.left.qpn, ..to };
    send(&mut pair, &own, &inline(b"me"));
    send(&mut pair, &to, &inline(b"you"));
    let mut received: Vec<u32> = Vec::new();
    while let Some(cqe) = pair.left.cq.poll() {
        received.extend((cqe.opcode() == Ok(CqeOpcode::RespSend)).then_some(cqe.byte_count()));
    }
    assert_eq!(received, [42]);
    assert_eq!(pair.right.cq.poll().unwrap().byte_count(), 43);
    assert_eq!((&pair.target.bytes()[40..42], &pair.target.bytes()[140..143]), (&b"me"[..], &b"you"[..]));
}

#[test]
fn datagrams_between_cards() {
    for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
        let cards = [0, 1].map(|_| Card::start(link, Box::new(drop)).unwrap());
        let pdns = [0, 1].map(|i: usize| cards[i].alloc_pd().unwrap());
        let mut left = datagram_qp(&cards[0], pdns[0]);
        let mut right = datagram_qp(&cards[1], pdns[1]);
        let target = Region::new(&cards[1], pdns[1], 100, everything());
        right.post_recv(&[target.data(0..100)]);
        let gid = cards[1].gids()[0].gid;
        let fields = AddressFields {
            qkey: QKEY,
            qpn: right.qpn,
            dlid: cards[1].lid(),
            grh: Some(GrhFields { gid, ..GrhFields::default() }),
            ..AddressFields::default()
        };
        left.post(Opcode::Send, &[AddressVector::new(&fields).as_bytes(), &inline(b"far")]);
        let received = right.cq.wait();
        assert_eq!((received.byte_count(), received.remote_qpn()), (43, left.qpn));
        assert_eq!(received.path().slid, if link == LinkLayer::Ethernet { 0 } else { cards[0].lid() });
        assert_eq!(&target.bytes()[40..43], b"far");
    }
}

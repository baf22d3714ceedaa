//! Memory windows and indirect keys.

use super::*;
use crate::card::{KeyConfig, NULL_KEY, WindowKind};
use gdsync_sys::prm::umr::{
    ANY_QP, KeyAccess, KeyContextSeg, KeyFields, KeyMask, StridedEntry, StridedHeader, UmrCtrlSeg, UmrFlags,
};

mod regions;

/// Returns a pair whose target allows windows, and remote rights only through them.
fn pair() -> Pair {
    let change = QpChange { access: Some(everything()), ..QpChange::default() };
    let mut pair = Pair::with(&Sizes { blocks: 64, ..SIZES }, 256, change);
    pair.target = Region::new(&pair.card, pair.pdn, 256, Access::LOCAL_WRITE | Access::MW_BIND);
    pair.source.fill(1);
    pair
}

/// The bind of a window as libmlx5 posts it; zero bytes close the window.
struct Bind {
    kind: WindowKind,
    /// The window's key, and the new one.
    keys: (u32, u32),
    region: Region,
    range: std::ops::Range<u64>,
    access: KeyAccess,
}

impl Bind {
    fn of(kind: WindowKind, key: u32, region: Region) -> Self {
        let (range, access) = (16..80, KeyAccess::REMOTE_READ | KeyAccess::REMOTE_WRITE);
        Bind { kind, keys: (key, (key & !0xff) | (key + 1) & 0xff), region, range, access }
    }

    fn post(&self, qp: &mut TestQp) {
        let is_open = !self.range.is_empty();
        let mut mask = KeyMask::FREE | KeyMask::TAG;
        let mut flags = UmrFlags::INLINE | UmrFlags::TRANSLATION_OFFSET;
        if is_open {
            mask |= KeyMask::LEN | KeyMask::START_ADDR | KeyMask::LOCAL_WRITE;
            mask |= KeyMask::REMOTE_READ | KeyMask::REMOTE_WRITE | KeyMask::ATOMIC;
        }
        if self.kind == WindowKind::Type2 {
            mask |= KeyMask::QPN;
            flags |= if is_open { UmrFlags::CHECK_FREE } else { UmrFlags::CHECK_QPN };
        }
        let start = self.region.at as u64 + self.range.start;
        let len = self.range.end - self.range.start;
        let fields = KeyFields {
            closed: !is_open,
            access: self.access,
            qpn: if self.kind == WindowKind::Type2 && is_open { qp.qpn } else { ANY_QP },
            tag: self.keys.1 as u8,
            start_addr: start,
            len,
        };
        let entries = [DataSeg::new(len as u32, self.region.key, start).as_bytes(), &[0; 48]].concat();
        change(qp, self.keys.0, flags, mask, &fields, if is_open { &entries } else { &[] });
    }
}

fn change(qp: &mut TestQp, key: u32, flags: UmrFlags, mask: KeyMask, fields: &KeyFields, entries: &[u8]) {
    let umr = UmrCtrlSeg::new(flags, mask, (entries.len() / SEGMENT) as u16);
    let context = KeyContextSeg::new(fields);
    let segments = [umr.as_bytes(), context.as_bytes(), entries];
    let wqe = qp.wqe(Opcode::Umr, &segments, CtrlFlags::CQ_UPDATE, key.to_be_bytes());
    qp.post_wqe(&wqe);
}

/// Writes 8 bytes through a key to `offset` of the target; memory below it has an offset that wraps.
fn write(pair: &mut Pair, key: u32, offset: u64) {
    let remote = RemoteAddrSeg::new((pair.target.at as u64).wrapping_add(offset), key);
    let data = pair.source.data(0..8);
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
}

#[test]
fn a_window_opens_its_range_until_it_is_closed() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut pair = pair();
        let key = pair.card.alloc_window(pair.pdn, kind).unwrap();
        let bind = Bind::of(kind, key, pair.target);
        bind.post(&mut pair.right);
        pair.run();
        assert_eq!(pair.right.cq.poll().unwrap().wqe_opcode(), Opcode::Umr as u8, "{kind:?}");
        write(&mut pair, bind.keys.1, 16);
        success(pair.left.cq.poll());
        assert_eq!(pair.target.bytes()[16..24], pair.source.bytes()[..8]);
        let remote = RemoteAddrSeg::new(pair.target.at as u64 + 16, bind.keys.1);
        let back = pair.source.data(64..128);
        pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), back.as_bytes()]);
        pair.run();
        success(pair.left.cq.poll());
        assert_eq!(pair.source.bytes()[64..128], pair.target.bytes()[16..80]);
        Bind { range: 0..0, keys: (bind.keys.1, key), ..bind }.post(&mut pair.right);
        pair.run();
        success(pair.right.cq.poll());
        write(&mut pair, key, 16);
        assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess, "{kind:?}");
        assert!(pair.diagnosed("rkey"));
        pair.card.deregister_memory(key).unwrap();
        assert!(pair.card.deregister_memory(key).is_err());
    }
}

#[test]
fn what_a_window_does_not_open_is_refused() {
    type Spoil = fn(&mut Pair, &mut Bind) -> (u32, u64);
    let cases: [(&str, Spoil); 6] = [
        ("not bound", |_, bind| {
            bind.range = 0..0;
            (bind.keys.0, 16)
        }),
        ("before its range", |_, bind| (bind.keys.1, 15)),
        ("beyond its range", |_, bind| (bind.keys.1, 73)),
        ("the key before the bind", |_, bind| (bind.keys.0, 16)),
        ("no right", |_, bind| {
            bind.access = KeyAccess::REMOTE_READ;
            (bind.keys.1, 16)
        }),
        ("its region is gone", |pair, bind| {
            pair.card.deregister_memory(bind.region.key).unwrap();
            (bind.keys.1, 16)
        }),
    ];
    for (name, spoil) in cases {
        let mut pair = pair();
        let key = pair.card.alloc_window(pair.pdn, WindowKind::Type1).unwrap();
        let mut bind = Bind::of(WindowKind::Type1, key, pair.target);
        let is_gone = name == "its region is gone";
        if is_gone {
            bind.post(&mut pair.right);
            pair.run();
        }
        let (key, offset) = spoil(&mut pair, &mut bind);
        if !is_gone {
            bind.post(&mut pair.right);
            pair.run();
        }
        success(pair.right.cq.poll());
        write(&mut pair, key, offset);
        assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess, "{name}");
        assert!(pair.target.bytes().iter().all(|byte| *byte == 0), "{name}");
    }
}

#[test]
fn binds_that_break_the_rules_fail_the_queue_pair() {
    type Spoil = fn(&mut Pair, &mut Bind);
    let cases: [(&str, Spoil); 8] = [
        ("another domain", |pair, bind| {
            let other = pair.card.alloc_pd().unwrap();
            bind.keys.0 = pair.card.alloc_window(other, WindowKind::Type2).unwrap();
        }),
        ("no window", |pair, bind| bind.keys.0 = pair.source.key),
        ("no key", |_, bind| bind.keys.0 = 0x4242_0000),
        ("a region that allows no windows", |pair, bind| bind.region = pair.source),
        ("beyond its region", |_, bind| bind.range = 200..257),
        ("writes to a region without local write", |pair, bind| {
            bind.region = Region::new(&pair.card, pair.pdn, 256, Access::MW_BIND);
        }),
        ("the other type", |_, bind| bind.kind = WindowKind::Type1),
        ("bound already", |pair, bind| {
            bind.post(&mut pair.right);
            pair.run();
            success(pair.right.cq.poll());
            bind.keys.0 = bind.keys.1;
        }),
    ];
    for (name, spoil) in cases {
        let mut pair = pair();
        let key = pair.card.alloc_window(pair.pdn, WindowKind::Type2).unwrap();
        let mut bind = Bind::of(WindowKind::Type2, key, pair.target);
        spoil(&mut pair, &mut bind);
        bind.post(&mut pair.right);
        pair.run();
        assert_eq!(error(pair.right.cq.poll()).1, Syndrome::MwBind, "{name}");
        assert_eq!(pair.state(&pair.right), QpState::Err, "{name}");
        assert!(pair.diagnosed("mkey"), "{name}");
    }
}

#[test]
fn a_window_of_type_2_belongs_to_its_queue_pair() {
    let mut pair = pair();
    let key = pair.card.alloc_window(pair.pdn, WindowKind::Type2).unwrap();
    // Bound by the left queue pair, so requests to the right one may not use it.
    let bind = Bind::of(WindowKind::Type2, key, pair.target);
    bind.post(&mut pair.left);
    pair.run();
    success(pair.left.cq.poll());
    write(&mut pair, bind.keys.1, 16);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess);
    // Nor may the right one close it.
    let mut pair = self::pair();
    let key = pair.card.alloc_window(pair.pdn, WindowKind::Type2).unwrap();
    let bind = Bind::of(WindowKind::Type2, key, pair.target);
    bind.post(&mut pair.left);
    pair.run();
    Bind { range: 0..0, keys: (bind.keys.1, key), ..bind }.post(&mut pair.right);
    pair.run();
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::MwBind);
}

/// Sends 8 bytes that invalidate a key.
fn send_and_invalidate(pair: &mut Pair, key: u32) {
    pair.right.post_recv(&[pair.target.data(0..8)]);
    let data = pair.source.data(0..8);
    let wqe = pair.left.wqe(Opcode::SendInval, &[data.as_bytes()], CtrlFlags::CQ_UPDATE, key.to_be_bytes());
    pair.left.post_wqe(&wqe);
    pair.run();
}

#[test]
fn a_send_closes_the_peers_window() {
    let mut pair = pair();
    let key = pair.card.alloc_window(pair.pdn, WindowKind::Type2).unwrap();
    let bind = Bind::of(WindowKind::Type2, key, pair.target);
    bind.post(&mut pair.right);
    pair.run();
    success(pair.right.cq.poll());
    send_and_invalidate(&mut pair, bind.keys.1);
    success(pair.left.cq.poll());
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!(cqe.opcode(), Ok(CqeOpcode::RespSendInval));
    assert_eq!(u32::from_be_bytes(cqe.imm()), bind.keys.1);
    assert_eq!(pair.target.bytes()[..8], pair.source.bytes()[..8]);
    // It can be bound again, by the rules of a closed window.
    Bind { keys: (bind.keys.1, key), ..bind }.post(&mut pair.right);
    pair.run();
    success(pair.right.cq.poll());
    send_and_invalidate(&mut pair, key);
    success(pair.left.cq.poll());
    assert_eq!(pair.right.cq.poll().unwrap().opcode(), Ok(CqeOpcode::RespSendInval));
    // It is closed.
    send_and_invalidate(&mut pair, key);
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::MwBind);
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteOperation);
}

#[test]
fn a_region_is_not_invalidated() {
    let mut pair = pair();
    let key = pair.target.key;
    send_and_invalidate(&mut pair, key);
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::MwBind);
    assert!(pair.diagnosed("invalidate"));
}

/// Returns a key that a work request may fill with 4 entries, as `mlx5dv_create_mkey` makes it.
fn open_key(pair: &Pair) -> KeyConfig<'static> {
    KeyConfig {
        pdn: pair.pdn,
        tag: 0,
        access: Access::empty(),
        start: 0,
        len: 0,
        closed: true,
        changeable: true,
        remote_invalidate: false,
        room: 4,
        log_entity_size: None,
        entries: &[],
    }
}

/// Fills a key as `mlx5dv_wr_mr_list` and `mlx5dv_wr_mr_interleaved` do.
fn fill(qp: &mut TestQp, key: u32, len: u64, entries: &[u8]) {
    let mask = KeyMask::FREE | KeyMask::TAG | KeyMask::LEN | KeyMask::LOCAL_WRITE | KeyMask::REMOTE_WRITE;
    let access = KeyAccess::LOCAL_WRITE | KeyAccess::REMOTE_WRITE;
    let fields = KeyFields { access, qpn: ANY_QP, tag: key as u8, len, ..KeyFields::default() };
    let mut entries = entries.to_vec();
    entries.resize(entries.len().next_multiple_of(64), 0);
    change(qp, key, UmrFlags::INLINE, mask, &fields, &entries);
}

/// `IBV_WR_LOCAL_INV`, as libmlx5 posts it: it checks the queue pair, and a key that names none is every one's.
#[test]
fn a_queue_pair_closes_a_key_of_no_queue_pair() {
    let mut pair = pair();
    let key = pair.card.create_key(&open_key(&pair)).unwrap();
    fill(&mut pair.left, key, 8, pair.source.data(0..8).as_bytes());
    pair.run();
    success(pair.left.cq.poll());
    let fields = KeyFields { closed: true, qpn: ANY_QP, tag: key as u8, ..KeyFields::default() };
    let mask = KeyMask::FREE | KeyMask::TAG | KeyMask::QPN;
    change(&mut pair.right, key, UmrFlags::INLINE | UmrFlags::CHECK_QPN, mask, &fields, &[]);
    pair.run();
    success(pair.right.cq.poll());
    pair.left.post(Opcode::Send, &[DataSeg::new(8, key, 0).as_bytes()]);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
}

#[test]
fn an_indirect_key_gathers_and_scatters() {
    let mut pair = pair();
    let key = pair.card.create_key(&open_key(&pair)).unwrap();
    assert_ne!(key, StridedHeader::OPERATION);
    let list = [pair.source.data(100..103), pair.source.data(10..15)];
    fill(&mut pair.left, key, 8, list.as_bytes());
    // Every second byte of the target, twice 4 blocks of one byte.
    let spread = pair.card.create_key(&open_key(&pair)).unwrap();
    let entries = [0, 100].map(|at| StridedEntry::new(2, 1, pair.target.key, pair.target.at as u64 + at));
    let strided = [StridedHeader::new(2, 4, 2).as_bytes(), entries.as_bytes()].concat();
    fill(&mut pair.right, spread, 8, &strided);
    pair.run();
    success(pair.left.cq.poll());
    success(pair.right.cq.poll());
    let (remote, data) = (RemoteAddrSeg::new(0, spread), DataSeg::new(8, key, 0));
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    let sent = [&pair.source.bytes()[100..103], &pair.source.bytes()[10..15]].concat();
    let target = pair.target.bytes();
    let got: Vec<u8> = (0..4).flat_map(|i| [target[i * 2], target[100 + i * 2]]).collect();
    assert_eq!(got, sent);
    assert_eq!(target.iter().filter(|byte| **byte != 0).count(), sent.iter().filter(|b| **b != 0).count());
    // A receive through the list: the same places, in order.
    pair.left.post_recv(&[DataSeg::new(8, key, 0)]);
    let data = pair.target.data(0..8);
    pair.right.post(Opcode::Send, &[data.as_bytes()]);
    pair.run();
    assert_eq!(pair.left.cq.poll().unwrap().opcode(), Ok(CqeOpcode::RespSend));
    let source = pair.source.bytes();
    assert_eq!([&source[100..103], &source[10..15]].concat(), target[..8]);
    assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
}

#[test]
fn keys_of_fixed_ranges_and_keys_of_keys() {
    let mut pair = pair();
    pair.target = Region::new(&pair.card, pair.pdn, 256, everything());
    let entries = [pair.target.data(64..128), pair.target.data(0..64)];
    let access = everything();
    let config = KeyConfig {
        access,
        start: 0x1000,
        len: 128,
        closed: false,
        changeable: false,
        log_entity_size: Some(6),
        entries: entries.as_bytes(),
        ..open_key(&pair)
    };
    let mut key = pair.card.create_key(&config).unwrap();
    let write = |pair: &mut Pair, key: u32, at: u64| {
        let (remote, data) = (RemoteAddrSeg::new(at, key), pair.source.data(0..8));
        pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
        pair.run();
    };
    write(&mut pair, key, 0x1000 + 60);
    success(pair.left.cq.poll());
    let (source, target) = (pair.source.bytes(), pair.target.bytes());
    assert_eq!((&target[124..128], &target[..4]), (&source[..4], &source[4..8]));
    // Four keys deep is the limit.
    for depth in 0..4 {
        let entries = [DataSeg::new(128, key, 0x1000)];
        let config = KeyConfig { log_entity_size: None, entries: entries.as_bytes(), ..config };
        key = pair.card.create_key(&config).unwrap();
        write(&mut pair, key, 0x1000);
        match depth < 3 {
            true => _ = success(pair.left.cq.poll()),
            false => assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteAccess),
        }
    }
}

#[test]
fn changes_that_a_key_does_not_take_fail() {
    let entries = |pair: &Pair, count| vec![pair.source.data(0..8); count].as_bytes().to_vec();
    for case in ["fixed", "room", "short"] {
        let mut pair = pair();
        let config = KeyConfig { changeable: case != "fixed", ..open_key(&pair) };
        let key = pair.card.create_key(&config).unwrap();
        let entries = entries(&pair, if case == "room" { 5 } else { 1 });
        fill(&mut pair.left, key, 16, &entries);
        let data = DataSeg::new(16, key, 0);
        pair.left.post(Opcode::Send, &[data.as_bytes()]);
        pair.right.post_recv(&[pair.target.data(0..16)]);
        pair.run();
        if case == "short" {
            success(pair.left.cq.poll());
            assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection, "the list ends early");
        } else {
            assert_eq!(error(pair.left.cq.poll()).1, Syndrome::MwBind, "{case}");
        }
    }
}

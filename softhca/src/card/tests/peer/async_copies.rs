//! Asynchronous copies by a client, between two cards, and between queue pairs of one.

use super::*;
use crate::card::engine::SECTION;
use crate::card::memory::peer_copies::{MAX_PENDING, MIN_DIRECT};
use crate::card::port::MTU;
use crate::card::tests::dead_peers::{card, run_both};
use crate::peer_memory;
use std::sync::atomic::Ordering::SeqCst;

pub(super) const LONG: usize = 37 * MTU as usize + 20_000;

/// Numbers of cards that a connection may be between.
pub(super) const CARDS: [usize; 2] = [1, 2];

/// A connection between two cards or within one, with memory of the fake GPU on either side.
pub(super) struct Setting {
    pub(super) near: Card,
    /// The second card.
    pub(super) far: Option<Card>,
    /// Protection domains of both sides.
    pub(super) domains: [u32; 2],
    pub(super) left: TestQp,
    pub(super) right: TestQp,
    pub(super) source: Memory,
    pub(super) target: Memory,
}

impl Setting {
    fn new() -> Self {
        Self::of(2)
    }

    pub(super) fn of(cards: usize) -> Self {
        let (near, second) = (card(), (cards == 2).then(card));
        let far = second.as_ref().unwrap_or(&near);
        let (pdn, far_pdn) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let (left, right) = (TestQp::new(&near, pdn, &SIZES), TestQp::new(far, far_pdn, &SIZES));
        left.connect(&near, right.qpn, far.lid(), QpChange::default());
        right.connect(far, left.qpn, near.lid(), QpChange::default());
        let source = Memory::new(&near, pdn, LONG, true);
        let target = Memory::new(far, far_pdn, LONG, true);
        for memory in [&source, &target] {
            memory.gpu().begins.store(true, SeqCst);
        }
        Setting { near, far: second, domains: [pdn, far_pdn], left, right, source, target }
    }

    pub(super) fn far(&self) -> &Card {
        self.far.as_ref().unwrap_or(&self.near)
    }

    pub(super) fn post(&mut self, opcode: Opcode, len: usize) {
        let list = self.source.all(len);
        match opcode {
            Opcode::Send => {
                self.right.post_recv(&self.target.all(len));
                post(&mut self.left, opcode, None, &list);
            }
            _ => post(&mut self.left, opcode, Some(self.target.region.remote(0)), &list),
        }
    }

    pub(super) fn run(&mut self) {
        let Setting { near, far, left, source, target, .. } = self;
        run_both(near, far.as_ref(), || {
            // No copy is in progress after a step.
            assert_eq!((source.gpu().under_way(), target.gpu().under_way()), (0, 0));
            left.cq.peek().is_some()
        });
    }

    pub(super) fn states(&self) -> (QpState, QpState) {
        let state = |card: &Card, qp: &TestQp| card.query_qp(qp.qpn).unwrap().state;
        (state(&self.near, &self.left), state(self.far(), &self.right))
    }
}

#[test]
fn messages_of_every_length_arrive_whole() {
    for cards in CARDS {
        let mut setting = Setting::of(cards);
        let lengths = [1, 8192, 16_383, 16_384, 65_536, 65_537, 4 * 65_536, 5 * 65_536 + 9, LONG];
        for (round, (len, opcode)) in
            lengths.into_iter().flat_map(|len| [(len, Opcode::Send), (len, Opcode::RdmaWrite)]).enumerate()
        {
            let bytes = pattern(LONG, round);
            setting.source.set(&bytes);
            setting.target.set(&vec![0; LONG]);
            setting.post(opcode, len);
            setting.run();
            success(setting.left.cq.poll());
            let got = setting.target.get();
            assert!(got[..len] == bytes[..len], "{len} bytes by {opcode:?}");
            assert!(got[len..].iter().all(|byte| *byte == 0));
            if opcode == Opcode::Send {
                assert_eq!(setting.right.cq.poll().unwrap().byte_count() as usize, len);
            }
        }
        assert_eq!(setting.states(), (QpState::Rts, QpState::Rts));
    }
}

#[test]
fn requests_that_follow_each_other_are_read_together() {
    const LEN: usize = 8192;
    const COUNT: usize = 12;
    for cards in CARDS {
        let mut setting = Setting::of(cards);
        let bytes = pattern(COUNT * LEN, cards);
        setting.source.set(&[bytes.clone(), vec![0; LONG - bytes.len()]].concat());
        for i in 0..COUNT {
            let (at, signals) =
                (i * LEN, if i + 1 == COUNT { CtrlFlags::CQ_UPDATE } else { CtrlFlags::empty() });
            let list = [setting.source.data(at..at + LEN)];
            let remote = setting.target.region.remote(at);
            let wqe =
                setting.left.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), list.as_bytes()], signals, [0; 4]);
            setting.left.head += setting.left.write(&wqe);
        }
        setting.left.ring(COUNT as u32 - 1);
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.target.get()[..bytes.len()] == bytes);
        // A wait for each step of the card.
        let waits = setting.source.gpu().waits();
        assert!((1..=2).contains(&waits), "{waits} waits for {COUNT} requests");
        // One alone is read at once.
        setting.post(Opcode::RdmaWrite, LEN);
        setting.run();
        success(setting.left.cq.poll());
        assert_eq!(setting.source.gpu().waits(), waits);
    }
}

#[test]
fn a_read_is_answered_from_memory_whose_copies_begin() {
    for cards in CARDS {
        let mut setting = Setting::of(cards);
        setting.target.set(&pattern(LONG, 5));
        setting.post(Opcode::RdmaRead, LONG);
        setting.run();
        success(setting.left.cq.poll());
        assert!(setting.source.get() == pattern(LONG, 5));
    }
}

#[test]
fn only_one_side_need_begin_copies() {
    for cards in CARDS {
        for side in [0, 1] {
            let mut setting = Setting::of(cards);
            [&setting.source, &setting.target][side].gpu().begins.store(false, SeqCst);
            setting.source.set(&pattern(LONG, side));
            setting.post(Opcode::Send, LONG);
            setting.run();
            success(setting.left.cq.poll());
            assert!(setting.target.get() == pattern(LONG, side));
        }
    }
}

#[test]
fn a_list_of_both_kinds_of_memory_arrives_in_order() {
    let mut setting = Setting::new();
    let [pdn, far_pdn] = setting.domains;
    let pieces = [(30_000, true), (100_000, false), (70_000, true), (40_000, false), (200_000, true)];
    let memories: Vec<Memory> =
        pieces.iter().map(|(len, is_peer)| Memory::new(&setting.near, pdn, *len, *is_peer)).collect();
    let mut all = Vec::new();
    for (i, (memory, (len, _))) in memories.iter().zip(pieces).enumerate() {
        let bytes = pattern(len, i);
        memory.set(&bytes);
        // The third client starts no copies: copies already started for the packet are withdrawn.
        if let Some(gpu) = &memory.gpu {
            gpu.begins.store(i != 2, SeqCst);
        }
        all.extend(bytes);
    }
    let place = Memory::new(setting.far(), far_pdn, all.len(), true);
    place.gpu().begins.store(true, SeqCst);
    let list: Vec<DataSeg> =
        memories.iter().zip(pieces).map(|(memory, (len, _))| memory.data(0..len)).collect();
    setting.right.post_recv(&place.all(all.len()));
    post(&mut setting.left, Opcode::Send, None, &list);
    setting.run();
    success(setting.left.cq.poll());
    assert!(place.get() == all);
}

#[test]
fn a_source_that_fails_late_fails_its_own_request() {
    for cards in CARDS {
        for good in [0, 1, 2 * cards as i64] {
            let mut setting = Setting::of(cards);
            setting.source.gpu().finishes_left.store(good, SeqCst);
            let small = Memory::new(&setting.near, setting.domains[0], 64, false);
            // An earlier request is outstanding, and has left.
            let remote = setting.target.region.remote(0);
            for list in [&small.all(64), &setting.source.all(LONG), &small.all(64)] {
                let wqe = setting.left.wqe(
                    Opcode::RdmaWrite,
                    &[remote.as_bytes(), list.as_bytes()],
                    CtrlFlags::CQ_UPDATE,
                    [0; 4],
                );
                setting.left.head += setting.left.write(&wqe);
            }
            setting.left.ring(2);
            setting.run();
            success(setting.left.cq.poll());
            setting.run();
            assert_eq!(error(setting.left.cq.poll()).1, Syndrome::LocalProtection, "after {good}");
            setting.run();
            assert_eq!(error(setting.left.cq.poll()).1, Syndrome::WrFlush);
            assert_eq!(setting.states(), (QpState::Err, QpState::Rts));
            let all = setting.near.diagnostics();
            assert!(all.len() == 1 && all[0].message.contains("a copy has failed"), "{all:?}");
            // Withdrawn packets have not arrived. One packet of each earlier batch may have been in two pieces.
            let lot = if cards == 1 { SECTION } else { MAX_PENDING };
            let lot = (lot / MTU as usize + 1) as i64;
            assert!(setting.target.gpu().writes.load(SeqCst) as i64 <= 1 + lot * good);
        }
    }
}

#[test]
fn a_source_that_cannot_begin_fails_its_request() {
    for cards in CARDS {
        for good in [0, 2, 9] {
            let mut setting = Setting::of(cards);
            setting.source.gpu().reads_left.store(good, SeqCst);
            setting.post(Opcode::RdmaWrite, LONG);
            setting.run();
            assert_eq!(error(setting.left.cq.poll()).1, Syndrome::LocalProtection, "after {good}");
            assert_eq!(setting.states(), (QpState::Err, QpState::Rts));
            assert_eq!(setting.source.gpu().under_way(), 0);
        }
    }
}

#[test]
fn a_packet_whose_own_copies_fail_is_not_made_for_ever() {
    // The first piece's client starts a copy that fails; the second piece's starts none, or cannot.
    for can_read in [true, false] {
        let mut setting = Setting::new();
        let [first, second] = [(); 2].map(|()| Memory::new(&setting.near, setting.domains[0], 20_000, true));
        first.set(&pattern(20_000, 1));
        second.set(&pattern(20_000, 2));
        first.gpu().begins.store(true, SeqCst);
        first.gpu().finishes_left.store(0, SeqCst);
        second.gpu().begins.store(!can_read, SeqCst);
        second.gpu().reads_left.store(if can_read { 1 } else { 0 }, SeqCst);
        let list = [first.data(0..20_000), second.data(0..20_000)];
        post(&mut setting.left, Opcode::RdmaWrite, Some(setting.target.region.remote(0)), &list);
        setting.run();
        if can_read {
            success(setting.left.cq.poll());
            assert!(setting.target.get()[..40_000] == [pattern(20_000, 1), pattern(20_000, 2)].concat());
        } else {
            assert_eq!(error(setting.left.cq.poll()).1, Syndrome::LocalProtection);
            assert_eq!(setting.states(), (QpState::Err, QpState::Rts));
        }
    }
}

#[test]
fn an_answer_that_fails_late_is_refused() {
    // In the middle of the answer, and after all of it was built.
    for (good, len) in [(1, LONG), (0, 2 * MTU as usize)] {
        let mut setting = Setting::new();
        setting.target.gpu().finishes_left.store(good, SeqCst);
        setting.post(Opcode::RdmaRead, len);
        setting.run();
        assert_eq!(error(setting.left.cq.poll()).1, Syndrome::RemoteAccess, "{len} bytes");
        assert_eq!(setting.states(), (QpState::Err, QpState::Err));
    }
}

#[test]
fn a_target_that_fails_late_fails_both_sides() {
    for cards in CARDS {
        for (opcode, near, far) in [
            (Opcode::Send, Syndrome::RemoteOperation, Some(Syndrome::LocalProtection)),
            (Opcode::RdmaWrite, Syndrome::RemoteAccess, None),
        ] {
            let mut setting = Setting::of(cards);
            setting.post(opcode, LONG);
            setting.run();
            success(setting.left.cq.poll());
            for good in 0..setting.target.gpu().waits() {
                let mut setting = Setting::of(cards);
                setting.target.gpu().finishes_left.store(good, SeqCst);
                setting.post(opcode, LONG);
                setting.run();
                assert_eq!(error(setting.left.cq.poll()).1, near, "{opcode:?} after {good}");
                assert_eq!(setting.right.cq.poll().map(|cqe| error(Some(cqe)).1), far);
                assert_eq!(setting.states(), (QpState::Err, QpState::Err));
                let all = setting.far().diagnostics();
                assert!(all.len() == 1 && all[0].message.contains("a copy has failed"), "{all:?}");
            }
        }
    }
}

#[test]
fn requests_before_the_one_that_fails_late_complete() {
    let mut setting = Setting::new();
    // The first message's copies end in ten waits or fewer; a later one's fail.
    setting.post(Opcode::RdmaWrite, LONG);
    setting.run();
    success(setting.left.cq.poll());
    setting.target.gpu().finishes_left.store(2, SeqCst);
    let remote = setting.target.region.remote(0);
    for len in [64, LONG] {
        let list = setting.source.all(len);
        post(&mut setting.left, Opcode::RdmaWrite, Some(remote), &list);
    }
    setting.run();
    success(setting.left.cq.poll());
    setting.run();
    assert_eq!(error(setting.left.cq.poll()).1, Syndrome::RemoteAccess);
}

#[test]
fn a_card_that_panics_waits_for_copies_before_their_memory_goes() {
    let (card, gpu, bytes) = (card(), fake_gpu::allocate(MIN_DIRECT), vec![7; MIN_DIRECT]);
    gpu.begins.store(true, SeqCst);
    let mapping = Arc::new(peer_memory::acquire(gpu.addr, MIN_DIRECT as u64, true).unwrap().unwrap());
    let mut engine = card.shared.engine.lock();
    let goes_on = card.shared.contain(&mut engine, |engine| {
        let peers = &mut engine.resources.peers;
        peers.end_later(Some((1, 2)));
        // SAFETY: the bytes live to the end of the test.
        assert!(unsafe { peers.write(&mapping, gpu.addr, bytes.as_ptr(), MIN_DIRECT) }.unwrap());
        assert_eq!(gpu.under_way(), 1);
        panic!("as a bug of the card would");
    });
    assert!(!goes_on);
    assert!(gpu.under_way() == 0 && gpu.get() == bytes);
}

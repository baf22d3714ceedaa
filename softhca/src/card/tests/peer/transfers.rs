//! Successful messages.

use super::*;
use crate::card::port::MTU;
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;

const OPCODES: [Opcode; 5] =
    [Opcode::Send, Opcode::SendImm, Opcode::RdmaWrite, Opcode::RdmaWriteImm, Opcode::RdmaRead];

/// The sides in peer memory: at least one.
const SIDES: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// Returns the number of calls that copy `size` contiguous bytes: one per packet.
fn packets(size: usize) -> usize {
    size.div_ceil(MTU as usize)
}

/// Moves `size` bytes from `source` to `target` with `left` as the requester: an RDMA read gets them from `right`.
fn transfer(
    opcode: Opcode,
    left: &mut TestQp,
    right: &mut TestQp,
    source: &Memory,
    target: &Memory,
    size: usize,
) {
    match opcode {
        Opcode::Send | Opcode::SendImm => {
            right.post_recv(&target.all(size));
            post(left, opcode, None, &source.all(size));
        }
        Opcode::RdmaRead => post(left, opcode, Some(source.region.remote(0)), &target.all(size)),
        _ => {
            right.post_recv(&[]);
            post(left, opcode, Some(target.region.remote(0)), &source.all(size));
        }
    }
}

fn completes_a_receive(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::RdmaWriteImm)
}

#[test]
fn every_operation_of_every_size_in_one_process() {
    let mtu = MTU as usize;
    for size in [0, 1, 63, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 40 * mtu + 1] {
        for ((from_peer, to_peer), opcode) in SIDES.into_iter().flat_map(|s| OPCODES.map(|o| (s, o))) {
            let mut pair = Pair::new(1);
            let source = Memory::new(&pair.card, pair.pdn, size.max(1) + 9, from_peer);
            let target = Memory::new(&pair.card, pair.pdn, size.max(1) + 9, to_peer);
            let sent = pattern(size.max(1) + 9, size);
            source.set(&sent);
            transfer(opcode, &mut pair.left, &mut pair.right, &source, &target, size);
            pair.run();
            let what = format!("{opcode:?} of {size} bytes, from peer {from_peer}, to peer {to_peer}");
            assert_eq!(success(pair.left.cq.poll()).0, opcode as u8, "{what}");
            let received = pair.right.cq.poll();
            assert_eq!(received.is_some(), completes_a_receive(opcode), "{what}");
            assert!(
                received.is_none_or(|cqe| !cqe.is_error() && cqe.byte_count() as usize == size),
                "{what}"
            );
            let got = target.get();
            assert!(got[..size] == sent[..size] && got[size..].iter().all(|byte| *byte == 0), "{what}");
            assert!(pair.card.diagnostics().is_empty(), "{what}: {:?}", pair.card.diagnostics());
            for (memory, calls) in [(&source, (packets(size), 0)), (&target, (0, packets(size)))] {
                let Some(gpu) = &memory.gpu else { continue };
                assert_eq!(
                    (gpu.reads.load(SeqCst), gpu.writes.load(SeqCst)),
                    calls,
                    "{what}: one call a packet"
                );
            }
        }
    }
}

#[test]
fn host_memory_and_inline_data_work_as_before() {
    let mut pair = Pair::new(3 * MTU as usize);
    fake_gpu::allocate(1);
    pair.source.fill(3);
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..3 * MTU as usize));
    pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(pair.target.bytes(), pair.source.bytes());
    let target = Memory::new(&pair.card, pair.pdn, 5, true);
    pair.left.post(Opcode::RdmaWrite, &[target.region.remote(0).as_bytes(), &inline(b"hello")]);
    pair.run();
    success(pair.left.cq.poll());
    assert_eq!(target.get(), b"hello");
}

#[test]
fn a_message_to_oneself_may_overlap() {
    let card = Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let pdn = card.alloc_pd().unwrap();
    let mut qp = TestQp::new(&card, pdn, &SIZES);
    qp.connect(&card, qp.qpn, card.lid(), QpChange::default());
    let memory = Memory::new(&card, pdn, 4096, true);
    memory.set(&pattern(4096, 9));
    qp.post_recv(&[memory.data(100..2100)]);
    qp.post(Opcode::Send, &[memory.data(0..2000).as_bytes()]);
    run(&card);
    assert!((0..2).all(|_| !qp.cq.poll().unwrap().is_error()));
    assert_eq!(memory.get()[100..2100], pattern(2000, 9));
}

#[test]
fn a_receiver_that_is_not_ready_gets_it_later() {
    for opcode in [Opcode::Send, Opcode::RdmaWriteImm] {
        let mut pair = Pair::new(1);
        let source = Memory::new(&pair.card, pair.pdn, 100, true);
        let target = Memory::new(&pair.card, pair.pdn, 100, true);
        source.set(&pattern(100, 2));
        let remote = (opcode == Opcode::RdmaWriteImm).then(|| target.region.remote(0));
        post(&mut pair.left, opcode, remote, &source.all(100));
        pair.run();
        assert!(pair.left.cq.peek().is_none());
        assert_eq!(target.gpu().calls(), 0, "nothing was taken");
        pair.right.post_recv(&target.all(100));
        let deadline = Instant::now() + Duration::from_secs(10);
        while pair.left.cq.peek().is_none() {
            assert!(Instant::now() < deadline);
            pair.run();
        }
        success(pair.left.cq.poll());
        assert_eq!(target.get(), source.get());
    }
}

struct Cards {
    cards: [Card; 2],
    qps: [TestQp; 2],
    pdns: [u32; 2],
}

impl Cards {
    fn new(start: impl Fn() -> Card) -> Self {
        let cards = [0, 1].map(|_| start());
        let pdns = [0, 1].map(|i: usize| cards[i].alloc_pd().unwrap());
        let qps = [0, 1].map(|i: usize| TestQp::new(&cards[i], pdns[i], &SIZES));
        for i in 0..2 {
            qps[i].connect(&cards[i], qps[1 - i].qpn, cards[1 - i].lid(), QpChange::default());
        }
        Cards { cards, qps, pdns }
    }

    fn memory(&self, card: usize, len: usize, is_peer: bool) -> Memory {
        Memory::new(&self.cards[card], self.pdns[card], len, is_peer)
    }
}

#[test]
fn every_operation_over_the_fabric() {
    let mtu = MTU as usize;
    let started = || Card::start(LinkLayer::InfiniBand, Box::new(drop)).unwrap();
    let mut both = Cards::new(started);
    for (round, ((from_peer, to_peer), opcode)) in
        SIDES.into_iter().flat_map(|s| OPCODES.map(|o| (s, o))).enumerate()
    {
        let is_read = opcode == Opcode::RdmaRead;
        for size in [0, 1, 4096, 30 * mtu + 3] {
            let source = both.memory(usize::from(is_read), size.max(1), from_peer);
            let target = both.memory(usize::from(!is_read), size.max(1), to_peer);
            let sent = pattern(size.max(1), round + size);
            source.set(&sent);
            let [left, right] = &mut both.qps;
            transfer(opcode, left, right, &source, &target, size);
            assert_eq!(success(Some(left.cq.wait())).0, opcode as u8);
            if completes_a_receive(opcode) {
                assert_eq!(right.cq.wait().byte_count() as usize, size);
            }
            assert!(target.get()[..size] == sent[..size], "{opcode:?} of {size} bytes");
            // A write takes no receive, but the next message does.
            if opcode == Opcode::RdmaWrite {
                post(left, Opcode::SendImm, None, &[]);
                success(Some(left.cq.wait()));
                right.cq.wait();
            }
        }
    }
    for card in &both.cards {
        assert!(card.diagnostics().is_empty(), "{:?}", card.diagnostics());
    }
}

#[test]
fn nothing_is_read_for_a_packet_that_cannot_leave() {
    let size = 40 * MTU as usize;
    let mut both = Cards::new(|| Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap());
    let (source, target) = (both.memory(0, size, true), both.memory(1, size, true));
    source.set(&pattern(size, 1));
    post(&mut both.qps[0], Opcode::RdmaWrite, Some(target.region.remote(0)), &source.all(size));
    run(&both.cards[0]);
    let reads = source.gpu().reads.load(SeqCst);
    assert!(reads > 1 && reads < 40, "the ring is full after {reads} packets");
    (0..100).for_each(|_| run(&both.cards[0]));
    assert_eq!(source.gpu().reads.load(SeqCst), reads);
    let deadline = Instant::now() + Duration::from_secs(20);
    while both.qps[0].cq.peek().is_none() {
        assert!(Instant::now() < deadline);
        both.cards.iter().for_each(run);
    }
    success(both.qps[0].cq.poll());
    assert!(target.get() == source.get());
    assert_eq!(source.gpu().reads.load(SeqCst), 40);
}

#[test]
fn a_region_is_given_back_when_it_is_deregistered() {
    let size = 40 * MTU as usize;
    let mut both = Cards::new(|| Card::stopped(LinkLayer::InfiniBand, Box::new(drop)).unwrap());
    let (source, target) = (both.memory(0, size, true), both.memory(1, size, true));
    assert_eq!((source.gpu().regions.load(SeqCst), target.gpu().regions.load(SeqCst)), (1, 1));
    post(&mut both.qps[0], Opcode::RdmaWrite, Some(target.region.remote(0)), &source.all(size));
    // In the middle of a message, with a packet that waits for room.
    run(&both.cards[0]);
    both.cards[0].deregister_memory(source.region.key).unwrap();
    assert_eq!(source.gpu().regions.load(SeqCst), 0);
    let calls = source.gpu().calls();
    for _ in 0..10 {
        both.cards.iter().for_each(run);
    }
    assert_eq!(error(both.qps[0].cq.poll()).1, Syndrome::LocalProtection);
    assert_eq!(source.gpu().calls(), calls, "it is not touched any more");
    // Dropping the cards drops the remaining regions.
    drop(both);
    assert_eq!(target.gpu().regions.load(SeqCst), 0);
}

/// Returns pieces of `0..total`, each with whether it is peer memory.
fn cuts() -> impl Strategy<Value = Vec<(usize, bool)>> {
    let small = 1usize..300;
    let large = 1usize..MTU as usize * 2;
    proptest::collection::vec((prop_oneof![3 => small, 1 => large], any::<bool>()), 1..12)
}

/// A list of segments in two memories, and its pieces.
struct List {
    memories: [Memory; 2],
    segments: Vec<DataSeg>,
    cuts: Vec<(usize, bool)>,
}

impl List {
    fn new(pair: &Pair, cuts: &[(usize, bool)]) -> Self {
        let lens: [usize; 2] =
            [false, true].map(|peer| cuts.iter().filter(|cut| cut.1 == peer).map(|cut| cut.0).sum());
        let memories =
            [false, true].map(|peer| Memory::new(&pair.card, pair.pdn, lens[usize::from(peer)].max(1), peer));
        let mut at = [0; 2];
        let segment = |&(len, peer): &(usize, bool)| {
            let start = at[usize::from(peer)];
            at[usize::from(peer)] += len;
            memories[usize::from(peer)].data(start..start + len)
        };
        let segments = cuts.iter().map(segment).collect();
        List { memories, segments, cuts: cuts.to_vec() }
    }

    fn total(&self) -> usize {
        self.cuts.iter().map(|cut| cut.0).sum()
    }

    /// Returns its bytes, in the order of the list.
    fn get(&self) -> Vec<u8> {
        let contents = [0, 1].map(|i: usize| self.memories[i].get());
        let mut at = [0; 2];
        let piece = |&(len, peer): &(usize, bool)| {
            let start = at[usize::from(peer)];
            at[usize::from(peer)] += len;
            contents[usize::from(peer)][start..start + len].to_vec()
        };
        self.cuts.iter().flat_map(piece).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn lists_of_host_and_peer_memory_carry_the_same_bytes(from in cuts(), to in cuts(), seed in 0usize..256) {
        let mut pair = Pair::with(&Sizes { recv_segments: 16, ..SIZES }, 1, QpChange::default());
        let (source, target) = (List::new(&pair, &from), List::new(&pair, &to));
        source.memories.iter().enumerate().for_each(|(i, m)| m.set(&pattern(m.region.len, seed + i)));
        let sent = source.get();
        // A send: a list on both sides, and a receive that may be larger.
        pair.right.post_recv(&target.segments);
        post(&mut pair.left, Opcode::Send, None, &source.segments);
        pair.run();
        let count = source.total();
        if count <= target.total() {
            success(pair.left.cq.poll());
            let got = target.get();
            prop_assert!(got[..count] == sent[..]);
            prop_assert!(got[count..].iter().all(|byte| *byte == 0));
        } else {
            prop_assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteInvalidRequest);
            prop_assert!(target.get().iter().all(|byte| *byte == 0));
        }
        // A write to contiguous memory, and back with a read.
        let mut pair = Pair::new(1);
        let (source, back) = (List::new(&pair, &from), List::new(&pair, &from));
        source.memories.iter().enumerate().for_each(|(i, m)| m.set(&pattern(m.region.len, seed + i)));
        let middle = Memory::new(&pair.card, pair.pdn, count, seed % 2 == 0);
        post(&mut pair.left, Opcode::RdmaWrite, Some(middle.region.remote(0)), &source.segments);
        post(&mut pair.left, Opcode::RdmaRead, Some(middle.region.remote(0)), &back.segments);
        pair.run();
        success(pair.left.cq.poll());
        success(pair.left.cq.poll());
        prop_assert!(middle.get() == sent);
        prop_assert!(back.get() == sent);
    }
}

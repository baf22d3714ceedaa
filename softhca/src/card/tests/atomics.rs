//! Atomic operations of reliable connections.

use super::*;
use crate::packet::PacketKind;
use gdsync_sys::prm::wqe::AtomicSeg;
use zerocopy::byteorder::big_endian::{U32, U64};

fn atomic() -> Access {
    everything() | Access::REMOTE_ATOMIC
}

/// Returns a pair that allows atomics, with 64 bytes on each side.
fn pair() -> Pair {
    let change = QpChange { access: Some(everything() | Access::REMOTE_ATOMIC), ..QpChange::default() };
    let mut pair = Pair::with(&SIZES, 64, change);
    pair.target = Region::new(&pair.card, pair.pdn, 64, everything() | Access::REMOTE_ATOMIC);
    pair
}

fn value(region: &Region, index: usize) -> u64 {
    u64::from_ne_bytes(region.bytes()[index * 8..][..8].try_into().unwrap())
}

fn set(region: &Region, index: usize, value: u64) {
    region.bytes()[index * 8..][..8].copy_from_slice(&value.to_ne_bytes());
}

/// Posts an operation on word `index` of the target, with the result in the same word of the source.
fn post(pair: &mut Pair, opcode: Opcode, index: usize, operands: AtomicSeg) {
    let (remote, result) = (pair.target.remote(index * 8), pair.source.data(index * 8..index * 8 + 8));
    pair.left.post(opcode, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
    pair.run();
}

#[test]
fn a_fetch_and_add_returns_the_original_in_host_order() {
    let mut pair = pair();
    set(&pair.target, 1, 0x1122_3344_5566_7788);
    post(&mut pair, Opcode::AtomicFa, 1, AtomicSeg::new(0x10, 0));
    let cqe = pair.left.cq.poll().unwrap();
    assert_eq!((cqe.wqe_opcode(), cqe.byte_count()), (Opcode::AtomicFa as u8, 8));
    assert_eq!(value(&pair.source, 1), 0x1122_3344_5566_7788);
    assert_eq!(value(&pair.target, 1), 0x1122_3344_5566_7798);
    assert!(pair.right.cq.poll().is_none(), "the target gets no completion");
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_compare_and_swap_changes_what_it_expects_only() {
    let mut pair = pair();
    set(&pair.target, 0, 7);
    post(&mut pair, Opcode::AtomicCs, 0, AtomicSeg::new(9, 8));
    success(pair.left.cq.poll());
    assert_eq!((value(&pair.source, 0), value(&pair.target, 0)), (7, 7));
    post(&mut pair, Opcode::AtomicCs, 0, AtomicSeg::new(9, 7));
    success(pair.left.cq.poll());
    assert_eq!((value(&pair.source, 0), value(&pair.target, 0)), (7, 9));
}

#[test]
fn more_than_may_be_in_flight_are_done_in_order() {
    let mut pair = pair();
    for n in 0..8u64 {
        let (remote, result) = (pair.target.remote(0), pair.source.data(n as usize * 8..n as usize * 8 + 8));
        let operands = AtomicSeg::new(1 << n, 0);
        let wqe = pair.left.wqe(
            Opcode::AtomicFa,
            &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()],
            CtrlFlags::CQ_UPDATE,
            [0; 4],
        );
        pair.left.head += pair.left.write(&wqe);
    }
    pair.left.ring(pair.left.head - 1);
    pair.run();
    for n in 0..8u64 {
        success(pair.left.cq.poll());
        assert_eq!(value(&pair.source, n as usize), (1 << n) - 1);
    }
    assert_eq!(value(&pair.target, 0), 0xff);
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn a_request_that_comes_again_is_answered_and_not_executed() {
    let pair = pair();
    set(&pair.target, 0, 5);
    let mut engine = pair.card.shared.engine.lock();
    let mut header = Header::new(PacketKind::FetchAdd, pair.left.qpn, pair.right.qpn, 0);
    (header.addr, header.rkey) = (U64::new(pair.target.at as u64), U32::new(pair.target.key));
    (header.length, header.operands[0]) = (U32::new(8), U64::new(3));
    for _ in 0..3 {
        let originals = answer(&mut engine, &header);
        assert_eq!(originals, Some(5), "the same answer every time");
        assert_eq!(value(&pair.target, 0), 8, "added once");
    }
    header.psn = U32::new(1);
    assert_eq!(answer(&mut engine, &header), Some(8));
    // The result of an older operation was dropped.
    header.psn = U32::new(0xff_ff00);
    assert_eq!(answer(&mut engine, &header), None);
    assert_eq!(value(&pair.target, 0), 11);
}

/// Delivers a request to the card, and takes the value of its answer.
fn answer(engine: &mut Engine, header: &Header) -> Option<u64> {
    inject(engine, header, &[]);
    let qpn = header.dest_qpn.get();
    engine.with_qps(|qps, context| {
        let qp = qps.get_mut(&qpn).unwrap();
        let response = qp.next_packet(context)?;
        qp.packet_sent(&response, context);
        assert_eq!(response.header.kind, PacketKind::AtomicResponse as u8);
        Some(response.header.operands[0].get())
    })
}

#[test]
fn what_may_not_be_changed_is_refused() {
    let cases: [(&str, &str, Syndrome, Access, u64); 4] = [
        ("a word that is not aligned", "atomic address", Syndrome::RemoteInvalidRequest, atomic(), 4),
        ("a word beyond the region", "rkey", Syndrome::RemoteAccess, atomic(), 64),
        ("no right of the region", "rkey", Syndrome::RemoteAccess, everything(), 0),
        ("no right of the queue pair", "qp_access_flags", Syndrome::RemoteInvalidRequest, atomic(), 0),
    ];
    for (name, field, syndrome, access, offset) in cases {
        let mut pair = pair();
        if field == "qp_access_flags" {
            let rights = QpChange { access: Some(everything()), ..QpChange::default() };
            pair.card.modify_qp(pair.right.qpn, &rights).unwrap();
        }
        pair.target = Region::new(&pair.card, pair.pdn, 64, access);
        let remote = RemoteAddrSeg::new(pair.target.at as u64 + offset, pair.target.key);
        let (operands, result) = (AtomicSeg::new(1, 0), pair.source.data(0..8));
        pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
        pair.run();
        assert_eq!(error(pair.left.cq.poll()).1, syndrome, "{name}");
        assert!(pair.diagnosed(field), "{name}");
        assert!(pair.target.bytes().iter().all(|byte| *byte == 0), "{name}");
        assert_eq!(pair.state(&pair.right), QpState::Err, "{name}");
    }
}

#[test]
fn a_region_whose_addresses_hide_its_alignment_is_refused() {
    let mut pair = pair();
    let at = memory(64);
    let config = RegionConfig::new(pair.pdn, at as u64 + 4, 32, atomic());
    // SAFETY: the memory is never freed.
    let key = unsafe { pair.card.register_memory(&RegionConfig { iova: 0x1000, ..config }) }.unwrap();
    let (remote, operands) = (RemoteAddrSeg::new(0x1000, key), AtomicSeg::new(1, 0));
    let result = pair.source.data(0..8);
    pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::RemoteInvalidRequest);
}

#[test]
fn the_place_of_the_result_must_be_writable_before_anything_is_changed() {
    let mut pair = pair();
    let readonly = Region::new(&pair.card, pair.pdn, 64, Access::empty());
    let (remote, operands, result) = (pair.target.remote(0), AtomicSeg::new(1, 0), readonly.data(0..8));
    pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), operands.as_bytes(), result.as_bytes()]);
    pair.run();
    assert_eq!(error(pair.left.cq.poll()).1, Syndrome::LocalProtection);
    assert_eq!(value(&pair.target, 0), 0);
}

#[test]
fn cpu_threads_and_the_card_add_to_the_same_word() {
    let mut pair = pair();
    let word = pair.target.at as usize;
    let thread = std::thread::spawn(move || {
        // SAFETY: aligned, and never freed; the card changes it with atomic operations, too.
        let word = unsafe { AtomicU64::from_ptr(word as *mut u64) };
        (0..100_000).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed));
    });
    for _ in 0..500 {
        post(&mut pair, Opcode::AtomicFa, 0, AtomicSeg::new(1 << 32, 0));
        success(pair.left.cq.poll());
    }
    thread.join().unwrap();
    assert_eq!(value(&pair.target, 0), (500 << 32) + 100_000);
}

/// Posts a masked operation of `4 << size` bytes at `offset` of the target, with the result at the same offset of the
/// source.
fn post_masked(pair: &mut Pair, opcode: Opcode, size: u8, offset: usize, operands: &[u8]) {
    let bytes = 4 << size;
    let (remote, result) = (pair.target.remote(offset), pair.source.data(offset..offset + bytes));
    let segments = [remote.as_bytes(), operands, result.as_bytes()];
    let mut wqe = pair.left.wqe(opcode, &segments, CtrlFlags::CQ_UPDATE, [0; 4]);
    wqe[0] = 8 + size;
    pair.left.post_wqe(&wqe);
    pair.run();
}

#[test]
fn masked_operations_change_some_bits_of_4_and_8_bytes() {
    let mut pair = pair();
    set(&pair.target, 0, u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
    let half = u32::from_ne_bytes([5, 6, 7, 8]);
    let swap = [0xff00_ff00u32, half & 0xff, 0x0f00_0f00, 0xff].map(u32::to_be_bytes).concat();
    post_masked(&mut pair, Opcode::AtomicMaskedCs, 0, 4, &swap);
    success(pair.left.cq.poll());
    let changed = half & !0x0f00_0f00 | 0x0f00_0f00;
    assert_eq!(pair.target.bytes()[4..8], changed.to_ne_bytes());
    assert_eq!(pair.target.bytes()[..4], [1, 2, 3, 4], "nothing beside it");
    assert_eq!(pair.source.bytes()[4..8], half.to_be_bytes(), "4 bytes come back big endian");
    // A compared bit differs.
    post_masked(&mut pair, Opcode::AtomicMaskedCs, 0, 4, &[0u32, !0, !0, !0].map(u32::to_be_bytes).concat());
    success(pair.left.cq.poll());
    assert_eq!(pair.target.bytes()[4..8], changed.to_ne_bytes());
    let add = [1u32, 0, 0, 0].map(u32::to_be_bytes).concat();
    post_masked(&mut pair, Opcode::AtomicMaskedFa, 0, 4, &add);
    success(pair.left.cq.poll());
    assert_eq!(pair.target.bytes()[4..8], (changed + 1).to_ne_bytes());
    // An addition with a boundary at every bit is an exclusive or.
    set(&pair.target, 2, 0x3c3c);
    post_masked(&mut pair, Opcode::AtomicMaskedFa, 1, 16, AtomicSeg::new(0x0ff0, u64::MAX).as_bytes());
    success(pair.left.cq.poll());
    assert_eq!((value(&pair.target, 2), value(&pair.source, 2)), (0x33cc, 0x3c3c));
    let both = [AtomicSeg::new(u64::MAX, 0), AtomicSeg::new(0xff, 0)];
    post_masked(&mut pair, Opcode::AtomicMaskedCs, 1, 16, both.as_bytes());
    success(pair.left.cq.poll());
    assert_eq!((value(&pair.target, 2), value(&pair.source, 2)), (0x33ff, 0x33cc));
    assert!(pair.card.diagnostics().is_empty());
}

#[test]
fn requests_that_no_card_makes_are_refused() {
    for (length, payload) in [(2, vec![]), (16, vec![]), (8, vec![0; 8])] {
        let pair = pair();
        let mut engine = pair.card.shared.engine.lock();
        let mut header = Header::new(PacketKind::FetchAdd, pair.left.qpn, pair.right.qpn, 0);
        (header.addr, header.rkey) = (U64::new(pair.target.at as u64), U32::new(pair.target.key));
        header.length = U32::new(length);
        inject(&mut engine, &header, &[(payload.as_ptr(), payload.len())]);
        drop(engine);
        assert_eq!(pair.state(&pair.right), QpState::Err, "{length} bytes");
        assert!(pair.diagnosed("atomic"));
    }
}

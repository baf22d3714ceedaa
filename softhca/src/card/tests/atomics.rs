//! Atomic operations of reliable connections.

use super::*;
use crate::packet::PacketKind;
use gdsync_sys::prm::wqe::AtomicSeg;
use zerocopy::byteorder::big_endian::{U32, U64};

/// A pair that allows atomics, with 64 bytes on each side.
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

/// Posts an operation on word `index` of the target, with the result in the same word of the
/// source.
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
    header.operands[0] = U64::new(3);
    for _ in 0..3 {
        let originals = answer(&mut engine, &header);
        assert_eq!(originals, Some(5), "the same answer every time");
        assert_eq!(value(&pair.target, 0), 8, "added once");
    }
    header.psn = U32::new(1);
    assert_eq!(answer(&mut engine, &header), Some(8));
    // The result of an older operation is not kept.
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
        ("a word that is not aligned", "atomic address", Syndrome::RemoteInvalidRequest, Access::all(), 4),
        ("a word beyond the region", "rkey", Syndrome::RemoteAccess, Access::all(), 64),
        ("no right of the region", "rkey", Syndrome::RemoteAccess, everything(), 0),
        ("no right of the queue pair", "qp_access_flags", Syndrome::RemoteAccess, Access::all(), 0),
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
    let config = RegionConfig::new(pair.pdn, at as u64 + 4, 32, Access::all());
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

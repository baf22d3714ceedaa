//! Scatter-to-CQE: small data inside completion entries.

use super::*;
use gdsync_sys::prm::wqe::AtomicSeg;

/// A pair whose queue pairs ask for it.
fn pair(scatter: ScatterToCqe, signal_all: bool) -> Pair {
    let access = everything() | Access::REMOTE_ATOMIC;
    let mut pair = Pair::new(256);
    let Pair { card, pdn, .. } = &pair;
    let make = || {
        TestQp::with(card, *pdn, &SIZES, |config| (config.scatter, config.signal_all) = (scatter, signal_all))
    };
    let (left, right) = (make(), make());
    let change = QpChange { access: Some(access), ..QpChange::default() };
    left.connect(card, right.qpn, card.lid(), change);
    right.connect(card, left.qpn, card.lid(), change);
    let target = Region::new(card, *pdn, 256, access);
    (pair.left, pair.right, pair.target) = (left, right, target);
    pair.source.fill(3);
    pair
}

const BOTH: ScatterToCqe = ScatterToCqe { requests: true, receives: true };

#[test]
fn a_small_send_is_in_the_entry_and_not_in_memory() {
    for scatter in [BOTH, ScatterToCqe { requests: false, ..BOTH }] {
        for (length, is_inside) in [(1, true), (31, true), (32, true), (33, false), (200, false)] {
            let mut pair = pair(scatter, false);
            pair.right.post_recv(&[pair.target.data(0..16), pair.target.data(16..256)]);
            pair.left.post(Opcode::Send, &[pair.source.data(0..length).as_bytes()]);
            pair.run();
            let cqe = pair.right.cq.poll().unwrap();
            let sent = &pair.source.bytes()[..length];
            assert_eq!(cqe.data(), is_inside.then_some(sent), "{length} bytes");
            assert_eq!((cqe.opcode(), cqe.byte_count() as usize), (Ok(CqeOpcode::RespSend), length));
            let in_memory = pair.target.bytes()[..length] == *sent;
            assert!(
                in_memory != is_inside
                    && (in_memory || pair.target.bytes()[..length].iter().all(|b| *b == 0))
            );
            success(pair.left.cq.poll());
        }
    }
}

#[test]
fn an_empty_message_and_a_write_with_immediate_have_no_data_inside() {
    let mut pair = pair(BOTH, false);
    pair.right.post_recv(&[pair.target.data(0..16)]);
    pair.right.post_recv(&[pair.target.data(16..32)]);
    pair.left.post(Opcode::Send, &[]);
    let (remote, data) = (pair.target.remote(64), pair.source.data(0..8));
    pair.left.post(Opcode::RdmaWriteImm, &[remote.as_bytes(), data.as_bytes()]);
    pair.run();
    assert_eq!(pair.right.cq.poll().unwrap().data(), None);
    let cqe = pair.right.cq.poll().unwrap();
    assert_eq!((cqe.opcode(), cqe.data()), (Ok(CqeOpcode::RespWriteImm), None));
    assert_eq!(pair.target.bytes()[64..72], pair.source.bytes()[..8]);
}

#[test]
fn a_receive_that_is_too_short_fails_as_ever() {
    let mut pair = pair(BOTH, false);
    pair.right.post_recv(&[pair.target.data(0..4)]);
    pair.left.post(Opcode::Send, &[pair.source.data(0..8).as_bytes()]);
    pair.run();
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalLength);
}

#[test]
fn results_are_in_the_entries_that_are_written() {
    for (scatter, signal_all, is_inside) in
        [(BOTH, true, true), (BOTH, false, true), (ScatterToCqe { requests: false, ..BOTH }, true, false)]
    {
        let mut pair = pair(scatter, signal_all);
        pair.target.fill(5);
        let (remote, whole) = (pair.target.remote(64), pair.source.data(0..24));
        pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), whole.as_bytes()]);
        let (word, place) = (pair.target.remote(0), pair.source.data(32..40));
        let one = AtomicSeg::new(1, 0);
        pair.left.post(Opcode::AtomicFa, &[word.as_bytes(), one.as_bytes(), place.as_bytes()]);
        let large = pair.source.data(64..128);
        pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), large.as_bytes()]);
        let before: [u8; 8] = pair.target.bytes()[..8].try_into().unwrap();
        pair.run();
        let (read, atomic, large) =
            (pair.left.cq.poll().unwrap(), pair.left.cq.poll().unwrap(), pair.left.cq.poll().unwrap());
        assert_eq!(read.data(), is_inside.then_some(&pair.target.bytes()[64..88]));
        assert_eq!(atomic.data(), is_inside.then_some(&before[..]));
        assert_eq!((large.data(), &pair.source.bytes()[64..128]), (None, &pair.target.bytes()[64..128]));
        assert_eq!(pair.source.bytes()[..24] == pair.target.bytes()[64..88], !is_inside);
        assert_eq!(pair.source.bytes()[32..40] == before, !is_inside);
    }
}

#[test]
fn a_result_without_an_entry_goes_to_memory() {
    let mut pair = pair(BOTH, false);
    pair.target.fill(5);
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..24));
    let wqe =
        pair.left.wqe(Opcode::RdmaRead, &[remote.as_bytes(), data.as_bytes()], CtrlFlags::empty(), [0; 4]);
    pair.left.post_wqe(&wqe);
    pair.run();
    assert!(pair.left.cq.poll().is_none());
    assert_eq!(pair.source.bytes()[..24], pair.target.bytes()[..24]);
}

#[test]
fn entries_of_128_bytes_have_no_data_inside() {
    let mut pair = pair(BOTH, false);
    let Pair { card, pdn, .. } = &pair;
    let (ring, dbrec) = (memory(16 * 128), memory(8).cast());
    let config = CqConfig { ring, entries: 16, stride: 128, dbrec, ignore_overrun: false, collapsed: false };
    // SAFETY: the memory is never freed.
    let cqn = unsafe { card.create_cq(&config) }.unwrap();
    let make = || {
        TestQp::with(card, *pdn, &SIZES, |config| {
            (config.scatter, config.recv_cq) = (BOTH, Some(cqn));
        })
    };
    let (left, right) = (make(), make());
    left.connect(card, right.qpn, card.lid(), QpChange::default());
    right.connect(card, left.qpn, card.lid(), QpChange::default());
    (pair.left, pair.right) = (left, right);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.left.post(Opcode::Send, &[pair.source.data(0..8).as_bytes()]);
    pair.run();
    assert_eq!(pair.target.bytes()[..8], pair.source.bytes()[..8]);
}

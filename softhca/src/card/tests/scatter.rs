//! Scatter-to-CQE: small data inside completion entries.

use super::*;
use gdsync_sys::prm::wqe::AtomicSeg;

/// Returns a pair whose queue pairs ask for small data in their entries.
fn pair(scatter: ScatterToCqe) -> Pair {
    let access = everything() | Access::REMOTE_ATOMIC;
    let mut pair = Pair::new(256);
    let Pair { card, pdn, .. } = &pair;
    let make = || TestQp::with(card, *pdn, &SIZES, |config| config.scatter = scatter);
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
            let mut pair = pair(scatter);
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
    let mut pair = pair(BOTH);
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
    let mut pair = pair(BOTH);
    pair.right.post_recv(&[pair.target.data(0..4)]);
    pair.left.post(Opcode::Send, &[pair.source.data(0..8).as_bytes()]);
    pair.run();
    assert_eq!(error(pair.right.cq.poll()).1, Syndrome::LocalLength);
}

#[test]
fn results_are_in_the_entries_that_are_written() {
    for (scatter, is_inside) in [(BOTH, true), (ScatterToCqe { requests: false, ..BOTH }, false)] {
        let mut pair = pair(scatter);
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
    let mut pair = pair(BOTH);
    pair.target.fill(5);
    let (remote, data) = (pair.target.remote(0), pair.source.data(0..24));
    let wqe =
        pair.left.wqe(Opcode::RdmaRead, &[remote.as_bytes(), data.as_bytes()], CtrlFlags::empty(), [0; 4]);
    pair.left.post_wqe(&wqe);
    pair.run();
    assert!(pair.left.cq.poll().is_none());
    assert_eq!(pair.source.bytes()[..24], pair.target.bytes()[..24]);
}

fn long_cq(card: &Card) -> (u32, *mut u8) {
    let (ring, dbrec) = (memory(16 * 128), memory(8).cast());
    let config = CqConfig { ring, entries: 16, stride: 128, dbrec, ignore_overrun: false, collapsed: false };
    // SAFETY: the memory is never freed.
    (unsafe { card.create_cq(&config) }.unwrap(), ring)
}

/// Returns an entry of 128 bytes: its data, if any, and its second half.
fn long_entry(ring: *mut u8, index: usize) -> (Option<Vec<u8>>, Cqe64) {
    let (data, cqe) = bytes(ring, 16 * 128)[index * 128..][..128].split_at(64);
    let cqe = Cqe64::read_from_bytes(cqe).unwrap();
    (cqe.has_data_before().then(|| data[..cqe.byte_count() as usize].to_vec()), cqe)
}

#[test]
fn entries_of_128_bytes_have_up_to_64_in_their_first_half() {
    for scatter in [BOTH, ScatterToCqe::default()] {
        let mut pair = pair(BOTH);
        let Pair { card, pdn, .. } = &pair;
        let (cqn, ring) = long_cq(card);
        let make = || {
            TestQp::with(card, *pdn, &SIZES, |config| {
                (config.scatter, config.recv_cq, config.send_cq) = (scatter, Some(cqn), Some(cqn));
            })
        };
        let (left, right) = (make(), make());
        left.connect(card, right.qpn, card.lid(), QpChange::default());
        right.connect(card, left.qpn, card.lid(), QpChange::default());
        (pair.left, pair.right) = (left, right);
        let mut index = 0;
        for length in [1, 32, 33, 64, 65] {
            let is_inside = scatter.receives && length <= 64;
            pair.target.bytes().fill(0);
            pair.right.post_recv(&[pair.target.data(0..128)]);
            pair.left.post(Opcode::Send, &[pair.source.data(0..length).as_bytes()]);
            pair.run();
            let entries = [long_entry(ring, index), long_entry(ring, index + 1)];
            let (data, cqe) =
                entries.iter().find(|(_, cqe)| cqe.opcode() == Ok(CqeOpcode::RespSend)).unwrap();
            assert_eq!(
                data.as_deref(),
                is_inside.then_some(&pair.source.bytes()[..length]),
                "{length} bytes"
            );
            assert_eq!((cqe.byte_count() as usize, cqe.data()), (length, None));
            assert_eq!(pair.target.bytes()[..length] == pair.source.bytes()[..length], !is_inside);
            index += 2;
        }
        let (remote, place) = (pair.target.remote(64), pair.source.data(0..48));
        pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), place.as_bytes()]);
        pair.target.fill(7);
        pair.run();
        let (data, cqe) = long_entry(ring, index);
        assert_eq!(cqe.opcode(), Ok(CqeOpcode::Requester));
        assert_eq!(data.as_deref(), scatter.requests.then_some(&pair.target.bytes()[64..112]));
        assert_eq!(pair.source.bytes()[..48] == pair.target.bytes()[64..112], !scatter.requests);
    }
}

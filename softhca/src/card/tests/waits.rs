//! Work requests that wait, and SEND_EN.

use super::*;
use gdsync_sys::prm::wait::{IndexSeg, WaitAction, WaitDataSeg, WaitKind, WaitOperation, word as number};

mod data;
mod enables;
mod errors;
mod luck;
mod queues;
mod registers;

/// Writes a WQE at the head of a queue without announcing it.
fn push(qp: &mut TestQp, opcode: Opcode, segments: &[&[u8]]) {
    let wqe = qp.wqe(opcode, segments, CtrlFlags::CQ_UPDATE, [0; 4]);
    qp.head += qp.write(&wqe);
}

/// Writes a WAIT or SEND_EN without announcing it.
fn push_wait(qp: &mut TestQp, kind: WaitKind, segment: &[u8], flags: CtrlFlags) {
    let mut wqe = kind.control(qp.head as u16, qp.qpn, flags).as_bytes().to_vec();
    wqe.extend_from_slice(segment);
    qp.head += qp.write(&wqe);
}

fn push_data(qp: &mut TestQp, segment: &WaitDataSeg) {
    push_wait(qp, WaitKind::Data, segment.as_bytes(), CtrlFlags::empty());
}

fn push_completions(qp: &mut TestQp, cqn: u32, index: u32) {
    push_wait(qp, WaitKind::Completions, IndexSeg::new(index, cqn).as_bytes(), CtrlFlags::empty());
}

/// Announces all written WQEs, and rings.
fn ring(qp: &TestQp) {
    qp.ring(qp.head - 1);
}

/// Stores to the word at the start of a region, for which WAITs wait.
fn set(region: &Region, value: u64) {
    // SAFETY: aligned, of 8 bytes, and never freed; the card looks at it as a shared word.
    unsafe { AtomicU64::from_ptr(region.at.cast()) }.store(number(value), Ordering::Release);
}

fn reached(region: &Region, ticket: u64) -> WaitDataSeg {
    WaitDataSeg::reached(region.key, region.at as u64, ticket)
}

fn push_write(pair: &mut Pair, n: usize) {
    let (remote, source) = (pair.target.remote(n * 8), pair.source.data(n * 8..n * 8 + 8));
    push(&mut pair.left, Opcode::RdmaWrite, &[remote.as_bytes(), source.as_bytes()]);
}

/// Returns the places of 8 bytes of the target that a write has reached.
fn written(pair: &Pair) -> Vec<usize> {
    let places = pair.target.bytes().chunks(8).enumerate();
    places.filter(|(_, place)| place.iter().any(|byte| *byte != 0)).map(|(n, _)| n).collect()
}

fn pair() -> Pair {
    let pair = Pair::new(64);
    pair.source.bytes().fill(7);
    pair
}

fn word_region(pair: &Pair) -> Region {
    Region::new(&pair.card, pair.pdn, 8, Access::empty())
}

fn move_to(card: &Card, qp: &TestQp, state: QpState) {
    card.modify_qp(qp.qpn, &QpChange { state: Some(state), ..QpChange::default() }).unwrap();
}

//! Times when work requests are fetched, and when doorbells are polled.

use super::*;
use gdsync_sys::prm::wait::{WaitDataSeg, WaitKind, word as number};

/// Posts a WAIT for the word at the start of a region to reach 1, followed by a write of 8 bytes. `patch` may change
/// the write's data segment before or after the doorbell.
fn released_write(bed: &mut Bed, patches_after_doorbell: bool) -> bool {
    let word = Region::new(&bed.pair.card, bed.pair.pdn, 8, Access::empty());
    let segment = WaitDataSeg::reached(word.key, word.at as u64, 1);
    let left = &mut bed.pair.left;
    let mut wait = WaitKind::Data.control(left.head as u16, left.qpn, CtrlFlags::empty()).as_bytes().to_vec();
    wait.extend_from_slice(segment.as_bytes());
    left.head += left.write(&wait);
    let (remote, old) = (bed.pair.target.remote(64), bed.pair.source.data(0..8));
    let write = |data: &DataSeg, qp: &TestQp| {
        qp.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()], CtrlFlags::CQ_UPDATE, [0; 4])
    };
    let first = left.head;
    let patched = write(&bed.pair.source.data(64..72), left);
    left.write(&if patches_after_doorbell { write(&old, left) } else { patched.clone() });
    left.head += 1;
    left.ring(first);
    bed.step();
    if patches_after_doorbell {
        bed.pair.left.head = first;
        bed.pair.left.write(&patched);
        bed.pair.left.head += 1;
    }
    bed.step();
    // SAFETY: aligned, of 8 bytes, and never freed; the card looks at it as a shared word.
    unsafe { AtomicU64::from_ptr(word.at.cast()) }.store(number(1), Ordering::Release);
    bed.completion();
    bed.has_arrived(64..72)
}

#[test]
fn a_request_that_is_changed_behind_its_doorbell_goes_as_it_was() {
    luck_ends(LibertyKinds::FETCH, |bed| released_write(bed, true), |bed| released_write(bed, false));
}

/// Posts a write, and reuses its place in the ring after a step or two, or after its completion.
fn reused_entry(bed: &mut Bed, waits: bool) -> bool {
    bed.write(0..8, bed.pair.target);
    bed.step();
    bed.step();
    if waits {
        bed.completion();
    }
    bed.pair.left.head = 0;
    bed.pair.left.write(&[0xee; 64]);
    bed.settle();
    bed.pair.state(&bed.pair.left) == QpState::Rts && bed.has_arrived(0..8)
}

#[test]
fn a_place_in_the_ring_that_is_reused_before_the_completion_spoils_the_request() {
    luck_ends(LibertyKinds::FETCH, |bed| reused_entry(bed, false), |bed| reused_entry(bed, true));
}

/// Posts three writes. The last one's record comes before the WQE, or after it.
fn announced(bed: &mut Bed, record_first: bool) -> bool {
    for at in [0, 8] {
        bed.write(at..at + 8, bed.pair.target);
        bed.step();
    }
    let (remote, data) = (bed.pair.target.remote(16), bed.pair.source.data(16..24));
    let left = &mut bed.pair.left;
    let wqe =
        left.wqe(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()], CtrlFlags::CQ_UPDATE, [0; 4]);
    if record_first {
        word(left.dbrec, doorbell::DBR_SEND).store(doorbell::record(left.head + 1), Ordering::Release);
        (0..30).for_each(|_| bed.step());
    }
    bed.pair.left.post_wqe(&wqe);
    bed.settle();
    bed.pair.state(&bed.pair.left) == QpState::Rts && bed.has_arrived(0..24)
}

#[test]
fn a_record_that_is_ahead_of_its_entry_meets_an_earlier_doorbell() {
    luck_ends(LibertyKinds::DOORBELLS, |bed| announced(bed, true), |bed| announced(bed, false));
}

#[test]
fn one_look_serves_several_doorbells() {
    // Without the WQEs of the later doorbells, polls could not be distinguished: the record grows between the
    // doorbells, and the card takes all at once.
    let looks = |liberties| {
        let mut bed = Bed::new(liberties, 512);
        let mut looks = Vec::new();
        for at in 0..6 {
            bed.write(at * 8..at * 8 + 8, bed.pair.target);
            bed.step();
            looks.push((0..6).filter(|n| bed.has_arrived(n * 8..n * 8 + 8)).count());
        }
        bed.settle();
        assert!(bed.has_arrived(0..48));
        looks
    };
    assert_eq!(looks(None), [1, 2, 3, 4, 5, 6]);
    let merged = (0..SEEDS).map(|seed| looks(Some(Liberties { seed, kinds: LibertyKinds::DOORBELLS })));
    let jumps = |looks: Vec<usize>| looks.windows(2).any(|pair| pair[1] > pair[0] + 1);
    assert!(merged.filter(|looks| jumps(looks.clone())).count() > 0);
}

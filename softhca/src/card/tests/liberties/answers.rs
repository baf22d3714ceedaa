//! Times when answers and completions arrive.

use super::*;
use crate::card::{Counter, Counters};
use gdsync_sys::prm::wqe::AtomicSeg;

/// Posts a request and its reply, which complete in different queues of the left side. When the reply has arrived, the
/// completion of the request is taken for granted, or waited for.
fn request_and_reply(bed: &mut Bed, waits: bool) -> bool {
    let Pair { card, pdn, .. } = &bed.pair;
    let mut replies = TestCq::new(card, 16);
    let left = TestQp::with(card, *pdn, &SIZES, |config| config.recv_cq = Some(replies.cqn));
    let right = TestQp::new(card, *pdn, &SIZES);
    left.connect(card, right.qpn, card.lid(), QpChange::default());
    right.connect(card, left.qpn, card.lid(), QpChange::default());
    let pair = &mut bed.pair;
    (pair.left, pair.right) = (left, right);
    pair.left.post_recv(&[pair.source.data(0..8)]);
    pair.right.post_recv(&[pair.target.data(0..8)]);
    pair.left.post(Opcode::Send, &[&inline(&[1; 8])]);
    bed.wait("the request", |pair| pair.right.cq.poll());
    bed.pair.right.post(Opcode::Send, &[&inline(&[2; 8])]);
    bed.wait("the reply", |_| replies.poll());
    if waits {
        bed.completion();
        return true;
    }
    bed.pair.left.cq.poll().is_some()
}

#[test]
fn a_reply_does_not_say_that_the_request_has_completed() {
    let (lucky, right) =
        (|bed: &mut Bed| request_and_reply(bed, false), |bed: &mut Bed| request_and_reply(bed, true));
    luck_ends(LibertyKinds::COMPLETIONS, lucky, right);
}

/// Posts an atomic, then a write of another queue pair. The result is read when the write has completed, or when the
/// atomic has.
fn result(bed: &mut Bed, waits: bool) -> bool {
    let pair = &mut bed.pair;
    let target = Region::new(&pair.card, pair.pdn, 8, everything() | Access::REMOTE_ATOMIC);
    target.bytes()[0] = 7;
    let (remote, one, place) = (target.remote(0), AtomicSeg::new(1, 0), pair.source.data(0..8));
    pair.source.bytes().fill(0xff);
    pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), one.as_bytes(), place.as_bytes()]);
    bed.step();
    if waits {
        bed.completion();
    } else {
        let remote = bed.pair.target.remote(0);
        bed.pair.right.post(Opcode::RdmaWrite, &[remote.as_bytes(), &inline(&[1; 8])]);
        bed.wait("the write", |pair| pair.right.cq.poll());
    }
    bed.pair.source.bytes()[..8] == [7, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn an_atomic_has_its_result_when_it_has_completed() {
    luck_ends(LibertyKinds::ATOMICS, |bed| result(bed, false), |bed| result(bed, true));
}

/// Writes to a ring of 16 entries, one every two steps. Only the correct program waits for the completions.
fn paced(bed: &mut Bed, waits: bool) -> bool {
    for _ in 0..40 {
        let (remote, data) = (bed.pair.target.remote(0), bed.pair.source.data(0..8));
        for _ in 0..2 {
            bed.pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
        }
        bed.step();
        if waits {
            (0..2).for_each(|_| _ = bed.completion());
        } else {
            // Takes the available completions, and assumes that they are all.
            while bed.pair.left.cq.poll().is_some() {}
        }
    }
    bed.settle();
    bed.pair.state(&bed.pair.left) == QpState::Rts
}

#[test]
fn a_sender_that_does_not_wait_for_completions_overruns_its_ring() {
    luck_ends(LibertyKinds::ACKNOWLEDGEMENTS, |bed| paced(bed, false), |bed| paced(bed, true));
}

#[test]
fn one_acknowledgement_serves_several_messages() {
    let folder = std::env::temp_dir().join(format!("softhca-answers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let answers = |name: &str, liberties| {
        let mut bed = Bed::new(liberties, 512);
        let counters = Arc::new(Counters::in_file(&folder.join(name)).unwrap());
        bed.pair.card.attach_counters(counters.clone());
        for at in 0..8 {
            bed.write(at * 8..at * 8 + 8, bed.pair.target);
            bed.step();
        }
        (0..8).for_each(|n| assert_eq!(bed.completion().wqe_counter(), n));
        counters.get(Counter::XmitPackets) - 8
    };
    assert_eq!(answers("none", None), 8);
    let kinds = LibertyKinds::ACKNOWLEDGEMENTS;
    let fewest = (0..SEEDS).map(|seed| answers(&seed.to_string(), Some(Liberties { seed, kinds }))).min();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(fewest < Some(8), "{fewest:?}");
}

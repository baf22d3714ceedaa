//! Lost answers that a later answer reveals.

use super::faults::{injected, plan, run_until};
use super::*;
use gdsync_sys::prm::wqe::AtomicSeg;

/// Returns a pair with room for 64 requests. It has no time-out, so only later answers reveal a lost one.
fn without_timeout(len: usize) -> Pair {
    let access = everything() | Access::REMOTE_ATOMIC;
    let change = QpChange { access: Some(access), timeout: Some(0), ..QpChange::default() };
    let mut pair = Pair::with(&Sizes { blocks: 64, ..SIZES }, len, change);
    pair.target = Region::new(&pair.card, pair.pdn, len, access);
    pair
}

#[test]
fn a_lost_result_is_asked_for_before_others_go_on() {
    // More than the peer keeps.
    const COUNT: usize = 40;
    for lost in [1, 2, 7, COUNT - 1] {
        let mut pair = without_timeout(8 * COUNT);
        let faults =
            format!("drop nth={lost} kind=atomic-response; drop nth={} kind=atomic-response", lost + 9);
        pair.card.set_faults(Some(&plan(&faults)));
        for at in (0..8 * COUNT).step_by(8) {
            let (remote, result) = (pair.target.remote(0), pair.source.data(at..at + 8));
            let add = AtomicSeg::new(1, 0);
            pair.left.post(Opcode::AtomicFa, &[remote.as_bytes(), add.as_bytes(), result.as_bytes()]);
        }
        let mut done = 0;
        run_until(&pair.card, "every atomic", || {
            while let Some(cqe) = pair.left.cq.poll() {
                success(Some(cqe));
                done += 1;
            }
            done == COUNT
        });
        let results =
            pair.source.bytes().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        assert!(results.eq(0..COUNT as u64), "each once, in order");
        assert_eq!(pair.target.bytes()[0], COUNT as u8);
        assert_eq!(injected(&pair.card)[0], 1);
        assert!(pair.card.diagnostics().is_empty(), "{:?}", pair.card.diagnostics());
    }
}

#[test]
fn a_lost_part_of_a_read_is_asked_for_when_the_next_comes() {
    let len = 3 * crate::fabric::MAX_PAYLOAD;
    // Nothing follows the last answer.
    for lost in 1..6 {
        let mut pair = without_timeout(2 * len);
        pair.card.set_faults(Some(&plan(&format!("drop nth={lost} kind=read-response"))));
        pair.target.fill(lost);
        for at in [0, len] {
            let into = pair.source.data(at..at + len);
            pair.left.post(Opcode::RdmaRead, &[pair.target.remote(at).as_bytes(), into.as_bytes()]);
        }
        run_until(&pair.card, "both reads", || pair.left.cq.peek().is_some());
        success(pair.left.cq.poll());
        run_until(&pair.card, "both reads", || pair.left.cq.peek().is_some());
        success(pair.left.cq.poll());
        assert!(pair.source.bytes() == pair.target.bytes());
        assert_eq!(injected(&pair.card), [1]);
    }
}

//! Liberties: programs that rely on luck pass on a card without them and fail on a card with them, and correct programs
//! pass on both. The tests control the time, so a seed determines everything.

use super::*;
use crate::liberties::{Liberties, LibertyKinds};

mod answers;
mod fetches;
mod payloads;

/// Time between two steps of the card.
const TICK: Duration = Duration::from_micros(5);
/// Number of seeds; each kind of liberty affects a program for some of them.
const SEEDS: u64 = 40;

/// A pair on a card whose time the test controls.
struct Bed {
    pair: Pair,
    now: Instant,
}

impl Bed {
    fn new(liberties: Option<Liberties>, len: usize) -> Self {
        Bed::with(liberties, len, QpChange::default())
    }

    fn with(liberties: Option<Liberties>, len: usize, change: QpChange) -> Self {
        let access = everything() | Access::REMOTE_ATOMIC;
        let change = QpChange { access: Some(access), ..change };
        let pair = Pair::with(&SIZES, len, change);
        pair.card.set_liberties(liberties);
        pair.source.fill(1);
        pair.target.bytes().fill(0);
        Bed { pair, now: Instant::now() }
    }

    fn step(&mut self) {
        self.now += TICK;
        self.pair.card.shared.engine.lock().step(self.now);
    }

    /// Steps for longer than any liberty lasts.
    fn settle(&mut self) {
        (0..200).for_each(|_| self.step());
    }

    /// Steps until `found` returns something.
    fn wait<R>(&mut self, what: &str, mut found: impl FnMut(&mut Pair) -> Option<R>) -> R {
        for _ in 0..1000 {
            if let Some(found) = found(&mut self.pair) {
                return found;
            }
            self.step();
        }
        panic!("{what} did not happen: {:?}", self.pair.card.diagnostics());
    }

    /// Waits for a successful completion of the left side.
    fn completion(&mut self) -> Cqe64 {
        let cqe = self.wait("a completion", |pair| pair.left.cq.poll());
        assert_eq!(cqe.opcode(), Ok(CqeOpcode::Requester), "{cqe}");
        cqe
    }

    /// Posts an RDMA write of a range of the source to the same place of a target.
    fn write(&mut self, range: std::ops::Range<usize>, target: Region) {
        let (remote, data) = (target.remote(range.start), self.pair.source.data(range));
        self.pair.left.post(Opcode::RdmaWrite, &[remote.as_bytes(), data.as_bytes()]);
    }

    /// Returns whether a range of the target equals the source's.
    fn has_arrived(&self, range: std::ops::Range<usize>) -> bool {
        self.pair.target.bytes()[range.clone()] == self.pair.source.bytes()[range]
    }
}

/// Checks that a program that relies on luck passes without liberties and fails with some, and that a correct one
/// passes with all.
fn luck_ends(kinds: LibertyKinds, lucky: impl Fn(&mut Bed) -> bool, right: impl Fn(&mut Bed) -> bool) {
    let run = |liberties, program: &dyn Fn(&mut Bed) -> bool| program(&mut Bed::new(liberties, 512));
    assert!(run(None, &lucky) && run(None, &right));
    let failed = |kinds, program: &dyn Fn(&mut Bed) -> bool| -> Vec<u64> {
        (0..SEEDS).filter(|&seed| !run(Some(Liberties { seed, kinds }), program)).collect()
    };
    let of_luck = failed(kinds, &lucky);
    assert!(!of_luck.is_empty(), "{kinds:?}: luck holds with every seed");
    assert_eq!(failed(kinds, &lucky), of_luck, "{kinds:?}: a seed decides");
    assert_eq!(failed(LibertyKinds::USUAL, &right), [0u64; 0], "a right program fails");
}

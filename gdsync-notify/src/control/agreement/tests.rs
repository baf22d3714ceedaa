//! Survivors that agree while messages are slow and ranks die.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Ranks, and the proposals in flight between each two.
struct World {
    ranks: Vec<Agreement>,
    ended: Vec<bool>,
    /// `found[a][b]`: rank `a` has found rank `b` dead.
    found: Vec<RankSet>,
    outcomes: Vec<Option<Outcome>>,
    wires: Vec<Vec<VecDeque<Proposal>>>,
}

impl World {
    fn new(size: u32) -> Self {
        let n = size as usize;
        World {
            ranks: (0..size).map(|own| Agreement::new(own, size, 0)).collect(),
            ended: vec![false; n],
            found: vec![RankSet::default(); n],
            outcomes: vec![None; n],
            wires: vec![vec![VecDeque::new(); n]; n],
        }
    }

    /// The rank ends. `keep` decides how many of its proposals to each other rank still arrive.
    fn kill(&mut self, rank: usize, mut keep: impl FnMut() -> usize) {
        self.ended[rank] = true;
        for wire in &mut self.wires[rank] {
            wire.truncate(keep() % (wire.len() + 1));
        }
    }

    fn deliver(&mut self, from: usize, to: usize) -> bool {
        let said = self.wires[from][to].pop_front();
        let is_some = said.is_some();
        if let Some(said) = said.filter(|_| !self.ended[to] && !self.found[to].contains(&(from as u32))) {
            self.ranks[to].hear(from as u32, said);
        }
        is_some
    }

    /// `at` cuts `rank` off, after it has read all arrived messages.
    fn find(&mut self, at: usize, rank: usize) -> bool {
        if self.found[at].contains(&(rank as u32)) {
            return false;
        }
        while self.deliver(rank, at) {}
        self.found[at].insert(rank as u32);
        true
    }

    fn step(&mut self, at: usize) -> bool {
        if self.ended[at] || self.outcomes[at].is_some() {
            return false;
        }
        let mut moved = false;
        while let Some((rank, _)) =
            self.ranks[at].reported(|rank| self.ended[rank as usize] && !self.found[at].contains(&rank))
        {
            moved |= self.find(at, rank as usize);
        }
        let found = self.found[at].clone();
        let (said, outcome) = self.ranks[at].step(&found);
        moved |= said.is_some() || outcome.is_some();
        if let Some(said) = said {
            for to in (0..self.ranks.len()).filter(|to| *to != at && !said.dead.contains(&(*to as u32))) {
                self.wires[at][to].push_back(said.clone());
            }
        }
        self.outcomes[at] = outcome;
        moved
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn all_survivors_decide_the_same_and_only_the_dead_are_dropped(
        size in 2u32..6,
        moves in prop::collection::vec((0u32..100, 0usize..6, 0usize..6, any::<usize>()), 0..200),
    ) {
        let n = size as usize;
        let mut world = World::new(size);
        for (kind, a, b, seed) in moves {
            let (a, b) = (a % n, b % n);
            match kind {
                0..4 if world.ended.iter().filter(|ended| !**ended).count() > 1 => {
                    let mut seed = seed;
                    world.kill(a, || { seed = seed.rotate_left(7).wrapping_mul(31); seed });
                }
                0..50 if a != b => _ = world.deliver(a, b),
                50..65 if a != b && world.ended[b] && !world.ended[a] && world.outcomes[a].is_none() => _ = world.find(a, b),
                _ => _ = world.step(a),
            }
        }
        // From now on no rank ends, every death is found, and every message arrives.
        loop {
            let mut moved = false;
            for a in 0..n {
                for b in 0..n {
                    moved |= world.deliver(a, b);
                    if a != b && world.ended[b] && !world.ended[a] && world.outcomes[a].is_none() {
                        moved |= world.find(a, b);
                    }
                }
                moved |= world.step(a);
            }
            if !moved {
                break;
            }
        }
        let mut decided: Option<&RankSet> = None;
        for rank in (0..n).filter(|rank| !world.ended[*rank]) {
            let Some(Outcome::Drop(set)) = &world.outcomes[rank] else {
                panic!("rank {rank} ends with {:?}", world.outcomes[rank]);
            };
            prop_assert!(set.iter().all(|one| world.ended[*one as usize]), "{:?} of {:?}", set, world.ended);
            prop_assert_eq!(*decided.get_or_insert(set), set);
        }
    }
}

#[test]
fn what_was_said_early_counts_in_the_next_epoch() {
    let (mut one, mut other) = (Agreement::new(0, 2, 0), Agreement::new(1, 2, 0));
    let none = RankSet::default();
    let (first, _) = one.step(&none);
    other.hear(0, first.unwrap());
    let (decision, outcome) = other.step(&none);
    assert_eq!(outcome, Some(Outcome::Drop(none.clone())));
    // The second agreement begins before the first rank has ended the first one.
    let (early, _) = other.step(&none);
    one.hear(1, decision.unwrap());
    one.hear(1, early.unwrap());
    assert_eq!(one.step(&none).1, Some(Outcome::Drop(none.clone())));
    assert_eq!((one.epoch(), one.silent(&none)), (1, vec![]));
    assert_eq!(one.step(&none).1, Some(Outcome::Drop(none)));
}

#[test]
fn a_rank_that_another_has_found_dead_is_told() {
    let mut one = Agreement::new(0, 3, 0);
    one.hear(2, Proposal { epoch: 0, is_decided: false, dead: [0, 1].into_iter().collect() });
    assert_eq!(one.reported(|_| true), Some((1, 2)));
    assert_eq!(one.step(&RankSet::default()), (None, Some(Outcome::Expelled { by: 2 })));
}

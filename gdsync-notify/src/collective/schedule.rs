//! Schedules of collectives: the messages that each rank sends in a round, and the words for which it waits.
//!
//! A message copies blocks into another rank's memory and then sets a word there.
//!
//! # Why rounds may follow each other
//! Rounds alternate between two sets of memory and words. A round overwrites what the last but one has used. No rank
//! confirms that it may, because the waits of the round between imply it.
//!
//! - All but [`Algorithm::BinomialTree`]: a rank that has passed round `r` has heard, perhaps through others, from
//!   every rank in that round. So every rank has begun round `r`; because streams keep their order, it has passed round
//!   `r - 1`, and has read its output if its stream does that before the next round. All messages of round `r - 1` have
//!   thus arrived: their sources are free, and the words that they set have been seen. In round `r + 1` a rank writes
//!   only to the set of round `r - 1`.
//! - [`Algorithm::BinomialTree`]: information flows only away from the root, so a rank confirms each round to its parent
//!   behind its wait for the data. Before a rank sends in round `r + 1`, it waits for its children's confirmations of round
//!   `r`, and then confirms `r + 1` to its own parent. A confirmation of round `r` means that round `r` has arrived at the
//!   child; that the child's stream has begun round `r`, and so has read the output of round `r - 1`; and that all that the
//!   child forwarded in round `r - 1` has arrived, because it has waited for these confirmations. So the memory of round `r
//!   - 1` is free there, and the parent's source of round `r` is free behind its round `r + 1`.
//!
//! The tests simulate this in random order, with messages that are read and arrive as late as allowed.

use super::all_reduce;
use super::step::{Area, Copy, Program, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// Dissemination barrier: in step `k` each rank sets a word at the rank `2^k` behind it.
    Dissemination,
    /// Each rank writes its block to all others.
    DirectGather,
    /// Bruck's all-gather: in step `k` each rank writes its blocks, up to `2^k`, to the rank `2^k` before it.
    BruckGather,
    /// Each rank writes a block to each.
    DirectExchange,
    /// Bruck's all-to-all: a block for the rank at distance `d` takes a step of `2^k` for each bit `k` of `d`, the
    /// lowest first.
    BruckExchange,
    /// As [`Algorithm::DirectExchange`]; arrived blocks are reduced with this rank's behind the last step.
    DirectReduce,
    /// As [`Algorithm::BruckExchange`], with that reduction.
    BruckReduce,
    BinomialTree,
    /// By doubling or round a ring, whose blocks are the numbers ([`super::all_reduce`]).
    AllReduce {
        numbers: usize,
        /// The bytes of a number.
        each: u32,
    },
}

/// Returns the number of steps by powers of two that reach all ranks.
fn steps(ranks: u32) -> u32 {
    ranks.next_power_of_two().trailing_zeros()
}

impl Algorithm {
    /// The words of a rank per round.
    pub(crate) fn words(self, ranks: u32) -> u32 {
        match self {
            _ if ranks == 0 => 0,
            Algorithm::Dissemination | Algorithm::BruckGather => steps(ranks),
            // One per rank.
            Algorithm::DirectGather | Algorithm::DirectExchange | Algorithm::DirectReduce => ranks,
            // And one for this rank's block.
            Algorithm::BruckExchange | Algorithm::BruckReduce => steps(ranks) + 1,
            // The parent's, and one per child.
            Algorithm::BinomialTree => 1 + steps(ranks),
            Algorithm::AllReduce { numbers, each } => all_reduce::words(numbers, each, ranks),
        }
    }

    pub(crate) fn blocks(self, area: Area, ranks: u32) -> usize {
        let all = ranks as usize;
        match (self, area) {
            _ if ranks == 0 => 0,
            (Algorithm::DirectGather | Algorithm::BruckGather, Area::Output) => all,
            (Algorithm::DirectExchange | Algorithm::BruckExchange, Area::Input | Area::Output) => all,
            (Algorithm::DirectReduce | Algorithm::BruckReduce, Area::Input | Area::Arrived) => all,
            (Algorithm::BruckExchange | Algorithm::BruckReduce, Area::Transit) => transits(ranks).count(),
            (Algorithm::BinomialTree | Algorithm::DirectReduce | Algorithm::BruckReduce, Area::Output) => 1,
            (Algorithm::AllReduce { numbers, .. }, Area::Output) => numbers,
            (Algorithm::AllReduce { numbers, each }, Area::Arrived) => {
                all_reduce::arrivals(numbers, each, ranks)
            }
            _ => 0,
        }
    }
}

pub(crate) fn program(algorithm: Algorithm, ranks: u32, own: u32, root: u32) -> Program {
    match algorithm {
        Algorithm::Dissemination => barrier(ranks, own),
        Algorithm::DirectGather => gather(ranks, own),
        Algorithm::BruckGather => bruck_gather(ranks, own),
        Algorithm::DirectExchange => exchange(ranks, own, Area::Output),
        Algorithm::BruckExchange => bruck_exchange(ranks, own, Area::Output),
        Algorithm::DirectReduce => exchange(ranks, own, Area::Arrived),
        Algorithm::BruckReduce => bruck_exchange(ranks, own, Area::Arrived),
        Algorithm::BinomialTree => tree(ranks, own, root),
        Algorithm::AllReduce { numbers, each } => all_reduce::program(numbers, each, ranks, own),
    }
}

/// Returns the other ranks, starting with the next, so that not all send to the same one first.
fn others(ranks: u32, own: u32) -> impl Iterator<Item = u32> + Clone {
    (1..ranks).map(move |distance| (own + distance) % ranks)
}

fn barrier(ranks: u32, own: u32) -> Program {
    let step = |k: u32| {
        let to = (own + (1u32 << k)) % ranks;
        [Step::Send { to, copies: Vec::new(), word: k }, Step::Wait { word: k }]
    };
    (0..steps(ranks)).flat_map(step).collect()
}

fn gather(ranks: u32, own: u32) -> Program {
    let block = (Area::Output, own);
    let copies = vec![Copy { from: block, to: block, blocks: 1 }];
    let sends = others(ranks, own).map(|to| Step::Send { to, copies: copies.clone(), word: own });
    let waits = others(ranks, own).map(|word| Step::Wait { word });
    sends.chain(waits).collect()
}

fn bruck_gather(ranks: u32, own: u32) -> Program {
    let step = |k: u32| {
        let there = 1u32 << k;
        let count = there.min(ranks - there);
        let copy = |block| Copy { from: (Area::Output, block), to: (Area::Output, block), blocks: 1 };
        let copies = in_rows((own..own + count).map(|block| copy(block % ranks)));
        [Step::Send { to: (own + ranks - there) % ranks, copies, word: k }, Step::Wait { word: k }]
    };
    (0..steps(ranks)).flat_map(step).collect()
}

/// Returns this rank if its block is copied, too; reductions read it from the input.
fn stays(own: u32, into: Area) -> Option<u32> {
    (into == Area::Output).then_some(own)
}

fn exchange(ranks: u32, own: u32, into: Area) -> Program {
    let all = || others(ranks, own).chain(stays(own, into));
    let copy = |to| Copy { from: (Area::Input, to), to: (into, own), blocks: 1 };
    let sends = all().map(|to| Step::Send { to, copies: vec![copy(to)], word: own });
    sends.chain(all().map(|word| Step::Wait { word })).collect()
}

/// Returns the forwarded blocks: the step in which each arrives, and its distance.
fn transits(ranks: u32) -> impl Iterator<Item = (u32, u32)> {
    let of_step =
        move |k: u32| (1..ranks).filter(move |distance| distance >> k & 1 != 0 && distance >> (k + 1) != 0);
    (0..steps(ranks)).flat_map(move |k| of_step(k).map(move |distance| (k, distance)))
}

fn bruck_exchange(ranks: u32, own: u32, into: Area) -> Program {
    let slots: Vec<_> = transits(ranks).collect();
    let slot = |k: u32, distance: u32| {
        // Ascending order, as from `transits`.
        slots.binary_search(&(k, distance)).map_or(0, |slot| slot as u32)
    };
    let step = |k: u32| {
        let to = (own + (1u32 << k)) % ranks;
        let copy = |distance: u32| {
            let before = distance & ((1 << k) - 1);
            let from = match before.checked_ilog2() {
                None => (Area::Input, (own + distance) % ranks),
                Some(last) => (Area::Transit, slot(last, distance)),
            };
            let to = match distance >> (k + 1) {
                0 => (into, (to + ranks - distance) % ranks),
                _ => (Area::Transit, slot(k, distance)),
            };
            Copy { from, to, blocks: 1 }
        };
        let copies = in_rows((1..ranks).filter(|distance| distance >> k & 1 != 0).map(copy));
        [Step::Send { to, copies, word: k }, Step::Wait { word: k }]
    };
    let word = steps(ranks);
    let stays = stays(own, into).map(|own| {
        let copies = vec![Copy { from: (Area::Input, own), to: (into, own), blocks: 1 }];
        [Step::Send { to: own, copies, word }, Step::Wait { word }]
    });
    stays.into_iter().flatten().chain((0..word).flat_map(step)).collect()
}

fn tree(ranks: u32, own: u32, root: u32) -> Program {
    // Ranks counted from the root. The parent's number lacks the lowest set bit.
    let number = (own + ranks - root) % ranks;
    let rank = |number: u32| (number + root) % ranks;
    let depth = if number == 0 { steps(ranks) } else { number.trailing_zeros() };
    // The largest subtree first.
    let children = || (0..depth).rev().filter(move |bit| number + (1 << bit) < ranks);
    let data = Copy { from: (Area::Output, 0), to: (Area::Output, 0), blocks: 1 };
    let confirmed = children().map(|bit| Step::WaitForLast { word: 1 + bit });
    let sends =
        children().map(|bit| Step::Send { to: rank(number + (1 << bit)), copies: vec![data], word: 0 });
    let is_root = number == 0;
    let arrival = (!is_root).then_some(Step::Wait { word: 0 });
    let confirmation = (!is_root).then(|| Step::Send {
        to: rank(number & (number - 1)),
        copies: Vec::new(),
        word: 1 + number.trailing_zeros(),
    });
    arrival.into_iter().chain(confirmed).chain(sends).chain(confirmation).collect()
}

/// Joins copies of consecutive blocks.
fn in_rows(copies: impl Iterator<Item = Copy>) -> Vec<Copy> {
    let mut rows: Vec<Copy> = Vec::new();
    for copy in copies {
        match rows.last_mut() {
            Some(row) if follows(row.from, row.blocks, copy.from) && follows(row.to, row.blocks, copy.to) => {
                row.blocks += copy.blocks;
            }
            _ => rows.push(copy),
        }
    }
    rows
}

fn follows((area, first): (Area, u32), blocks: u32, next: (Area, u32)) -> bool {
    next == (area, first + blocks)
}

//! Simulates schedules: streams of all ranks step in random order, and messages are read from their source and arrive
//! as late as the order of a connection allows. A block's content is its source, its destination and its round.

use super::schedule::{Algorithm, program};
use super::step::{Area, Program, Step};
use proptest::prelude::*;
use std::collections::VecDeque;

/// The sources, one bit each, of a number, or the source of another block; its destination; its round.
type Content = Option<(u64, u32, u64)>;

const DOUBLING: Algorithm = Algorithm::AllReduce { numbers: 5, each: 1 };
const RING: Algorithm = Algorithm::AllReduce { numbers: 5, each: 8192 };
const ALGORITHMS: [Algorithm; 10] = [
    Algorithm::Dissemination,
    Algorithm::DirectGather,
    Algorithm::BruckGather,
    Algorithm::DirectExchange,
    Algorithm::BruckExchange,
    Algorithm::DirectReduce,
    Algorithm::BruckReduce,
    Algorithm::BinomialTree,
    DOUBLING,
    RING,
];

enum Parcel {
    Block { from: (Area, u64, u32), to: (Area, u64, u32) },
    Word { word: u32, round: u64 },
}

struct Rank {
    program: Program,
    /// By area and set.
    memory: [[Vec<Content>; 2]; Area::COUNT],
    /// By set and word, the newest round that has set it.
    words: [Vec<Option<u64>>; 2],
    round: u64,
    at: usize,
    /// The rank's relative speed.
    weight: u64,
}

struct Model {
    algorithm: Algorithm,
    root: u32,
    rounds: u64,
    /// Sets of memory: 2, except where a test shows that fewer do not suffice.
    sets: u64,
    ranks: Vec<Rank>,
    /// By source and destination rank.
    wires: Vec<VecDeque<Parcel>>,
    random: u64,
}

impl Model {
    fn new(algorithm: Algorithm, count: u32, root: u32, rounds: u64, sets: u64, seed: u64) -> Model {
        let mut model =
            Model { algorithm, root, rounds, sets, ranks: Vec::new(), wires: Vec::new(), random: seed | 1 };
        for own in 0..count {
            let area = |area: Area| vec![None; algorithm.blocks(area, count)];
            let words = vec![None; algorithm.words(count) as usize];
            let weight = 1 << (model.next() % 6);
            model.ranks.push(Rank {
                program: program(algorithm, count, own, root),
                memory: Area::ALL.map(|one| [area(one), area(one)]),
                words: [words.clone(), words],
                round: 0,
                at: 0,
                weight,
            });
        }
        model.wires.resize_with((count * count) as usize, VecDeque::new);
        model
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    /// Runs to the end, or to an error.
    fn run(mut self) -> Result<(), String> {
        let count = self.ranks.len();
        (0..count).for_each(|rank| self.fill(rank));
        let mut idle = 0;
        // Connections with messages.
        let mut busy: Vec<usize> = Vec::new();
        while self.ranks.iter().any(|rank| rank.round < self.rounds) || !busy.is_empty() {
            let chosen = self.next() as usize % (count + busy.len());
            let owner = chosen.checked_sub(count).map_or(chosen, |at| busy[at] / count);
            if self.next() % 32 >= self.ranks[owner].weight {
                continue;
            }
            let moved = match chosen.checked_sub(count) {
                None => self.step(chosen, &mut busy)?,
                Some(at) => {
                    self.deliver(busy[at]);
                    if self.wires[busy[at]].is_empty() {
                        busy.swap_remove(at);
                    }
                    true
                }
            };
            idle = if moved { 0 } else { idle + 1 };
            if idle > 1000 * count {
                return Err("nothing moves any more".to_owned());
            }
        }
        Ok(())
    }

    fn fill(&mut self, own: usize) {
        let (algorithm, sets, ranks) = (self.algorithm, self.sets, self.ranks.len());
        let rank = &mut self.ranks[own];
        let (round, set) = (rank.round, (rank.round % sets) as usize);
        let mut put = |area: Area, block: usize, to: u32| {
            rank.memory[area as usize][set][block] = Some((own as u64, to, round));
        };
        match algorithm {
            Algorithm::DirectGather | Algorithm::BruckGather => put(Area::Output, own, 0),
            Algorithm::DirectExchange
            | Algorithm::BruckExchange
            | Algorithm::DirectReduce
            | Algorithm::BruckReduce => {
                (0..ranks).for_each(|to| put(Area::Input, to, to as u32));
            }
            Algorithm::BinomialTree if own as u32 == self.root => put(Area::Output, 0, 0),
            Algorithm::AllReduce { .. } => {
                for (number, place) in (0..).zip(&mut rank.memory[Area::Output as usize][set]) {
                    *place = Some((1 << own, number, round));
                }
            }
            Algorithm::Dissemination | Algorithm::BinomialTree => {}
        }
    }

    /// Checks the output of the round that a rank has passed.
    fn check(&self, own: usize) -> Result<(), String> {
        let rank = &self.ranks[own];
        let (round, set) = (rank.round, (rank.round % self.sets) as usize);
        let is_reduced = matches!(self.algorithm, Algorithm::DirectReduce | Algorithm::BruckReduce);
        let area = if is_reduced { Area::Arrived } else { Area::Output };
        let blocks = (0..).zip(&rank.memory[area as usize][set]);
        // This rank's block is reduced from the input.
        for (block, content) in blocks.filter(|(block, _)| !is_reduced || *block != own as u32) {
            let expected = match self.algorithm {
                Algorithm::DirectExchange
                | Algorithm::BruckExchange
                | Algorithm::DirectReduce
                | Algorithm::BruckReduce => (u64::from(block), own as u32, round),
                Algorithm::BinomialTree => (u64::from(self.root), 0, round),
                Algorithm::AllReduce { .. } => ((1 << self.ranks.len()) - 1, block, round),
                _ => (u64::from(block), 0, round),
            };
            if *content != Some(expected) {
                return Err(format!("rank {own}, round {round}, block {block}: {content:?}"));
            }
        }
        // No rank passes a barrier that another has not reached.
        let behind = self.ranks.iter().position(|other| other.round < round);
        match behind {
            Some(other) if self.algorithm != Algorithm::BinomialTree => {
                Err(format!("rank {own} has passed round {round}, which rank {other} has not begun"))
            }
            _ => Ok(()),
        }
    }

    /// Takes the next step of a rank's stream; false if it must wait.
    fn step(&mut self, own: usize, busy: &mut Vec<usize>) -> Result<bool, String> {
        let (sets, count) = (self.sets, self.ranks.len());
        let rank = &mut self.ranks[own];
        if rank.round == self.rounds {
            return Ok(false);
        }
        let (round, set) = (rank.round, rank.round % sets);
        match rank.program.get(rank.at).cloned() {
            Some(Step::Send { to, copies, word }) => {
                let number = own * count + to as usize;
                let wire = &mut self.wires[number];
                if wire.is_empty() {
                    busy.push(number);
                }
                for (copy, at) in copies.iter().flat_map(|copy| (0..copy.blocks).map(move |at| (copy, at))) {
                    let place = |(area, first): (Area, u32)| (area, set, first + at);
                    wire.push_back(Parcel::Block { from: place(copy.from), to: place(copy.to) });
                }
                wire.push_back(Parcel::Word { word, round });
            }
            Some(Step::Wait { word }) if !rank.has_seen(word, round) => return Ok(false),
            Some(Step::WaitForLast { word }) if round > 0 && !rank.has_seen(word, round - 1) => {
                return Ok(false);
            }
            Some(Step::WaitSent { to }) if !self.wires[own * count + to as usize].is_empty() => {
                return Ok(false);
            }
            Some(Step::Reduce { into, from, count }) => {
                for at in 0..count {
                    let arrived = rank.memory[Area::Arrived as usize][set as usize][(from + at) as usize];
                    let number = &mut rank.memory[Area::Output as usize][set as usize][(into + at) as usize];
                    *number = match (*number, arrived) {
                        (Some((some, number, one)), Some((others, of, other)))
                            if some & others == 0 && (number, one) == (of, other) && one == round =>
                        {
                            Some((some | others, number, one))
                        }
                        wrong => return Err(format!("rank {own} reduces {wrong:?} in round {round}")),
                    };
                }
            }
            Some(_) => {}
            None => {
                // The stream reads the output and then writes the next input.
                self.check(own)?;
                let rank = &mut self.ranks[own];
                (rank.round, rank.at) = (round + 1, 0);
                self.fill(own);
                return Ok(true);
            }
        }
        self.ranks[own].at += 1;
        Ok(true)
    }

    fn deliver(&mut self, wire: usize) {
        let (from, to) = (wire / self.ranks.len(), wire % self.ranks.len());
        match self.wires[wire].pop_front() {
            Some(Parcel::Block { from: (area, set, block), to: (into, to_set, place) }) => {
                let content = self.ranks[from].memory[area as usize][set as usize][block as usize];
                self.ranks[to].memory[into as usize][to_set as usize][place as usize] = content;
            }
            Some(Parcel::Word { word, round }) => {
                self.ranks[to].words[(round % 2) as usize][word as usize] = Some(round);
            }
            None => {}
        }
    }
}

impl Rank {
    /// As a wait for a phase: the word has the value of exactly that round or of one four rounds away.
    fn has_seen(&self, word: u32, round: u64) -> bool {
        let found = self.words[(round % 2) as usize][word as usize];
        found.is_some_and(|newest| newest / 2 % 2 == round / 2 % 2)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_block_ends_where_it_must(algorithm in prop::sample::select(&ALGORITHMS[..]), ranks in 1u32..=33, root: u32, seed: u64) {
        let outcome = Model::new(algorithm, ranks, root % ranks, 7, 2, seed).run();
        prop_assert!(outcome.is_ok(), "{:?} of {}: {}", algorithm, ranks, outcome.unwrap_err());
    }
}

#[test]
fn one_set_of_memory_is_not_enough() {
    for algorithm in ALGORITHMS.into_iter().filter(|algorithm| *algorithm != Algorithm::Dissemination) {
        let fails =
            |seed: u64| Model::new(algorithm, 5, 1, 7, 1, seed * 0x9e37_79b9_7f4a_7c15).run().is_err();
        assert!(
            (1..200).any(fails),
            "{algorithm:?}: the model would not see a block that is overwritten too early"
        );
    }
}

#[test]
fn a_tree_needs_its_confirmations() {
    let fails = |seed: u64| {
        let mut model = Model::new(Algorithm::BinomialTree, 5, 1, 7, 2, seed * 0x9e37_79b9_7f4a_7c15);
        for rank in &mut model.ranks {
            rank.program.retain(|step| !matches!(step, Step::WaitForLast { .. }));
        }
        model.run().is_err()
    };
    assert!((1..200).any(fails), "the model would not see that a root is too far ahead");
}

#[test]
fn doubling_waits_until_its_sends_have_been_read() {
    let fails = |seed: u64| {
        let mut model = Model::new(DOUBLING, 5, 1, 7, 2, seed * 0x9e37_79b9_7f4a_7c15);
        for rank in &mut model.ranks {
            rank.program.retain(|step| !matches!(step, Step::WaitSent { .. }));
        }
        model.run().is_err()
    };
    assert!((1..200).any(fails), "the model would not see that a number is reduced before it is sent");
}

#[test]
fn messages_are_as_few_as_promised() {
    for ranks in 1..=33u32 {
        let steps = ranks.next_power_of_two().trailing_zeros() as usize;
        for own in 0..ranks {
            let count = |algorithm| {
                let steps = program(algorithm, ranks, own, 0);
                let sends = steps.iter().filter(|step| matches!(step, Step::Send { .. })).count();
                (sends, steps.len() - sends)
            };
            let others = ranks as usize - 1;
            assert_eq!(count(Algorithm::Dissemination), (steps, steps));
            assert_eq!(count(Algorithm::DirectGather), (others, others));
            assert_eq!(count(Algorithm::BruckGather), (steps, steps));
            // This rank's block is copied, too.
            assert_eq!(count(Algorithm::DirectExchange), (others + 1, others + 1));
            assert_eq!(count(Algorithm::BruckExchange), (steps + 1, steps + 1));
            assert_eq!(count(Algorithm::DirectReduce), (others, others));
            assert_eq!(count(Algorithm::BruckReduce), (steps, steps));
            let sends = |algorithm| count(algorithm).0;
            assert!(sends(DOUBLING) <= steps + 1);
            assert_eq!(sends(RING), 2 * others);
            let (sends, waits) = count(Algorithm::BinomialTree);
            assert!(sends <= steps + 1 && waits <= steps + 1, "{ranks} {own}: {sends} {waits}");
        }
    }
}

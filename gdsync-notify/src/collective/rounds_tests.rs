//! Runs schedules without a card. A message takes the output's values when it arrives, which may be at any time between the start and
//! the end of its round.

use crate::collective::rounds::{Round, Schedule, Target, barrier, chunk, doubling, ring};
use std::collections::{BTreeMap, BTreeSet};

/// The elements of a buffer, one byte each.
const NUMBERS: usize = 5;
/// Starts. A rank may begin one before another rank has ended the one before it.
const STARTS: usize = 2;

/// A reduction of two values, as the text `(a b)`. Its operands are sorted, as a reduction gives the same bits in either order.
fn reduced(one: &str, other: &str) -> String {
    let (first, second) = if one <= other { (one, other) } else { (other, one) };
    format!("({first} {second})")
}

/// The value of a rank in a start.
fn own(start: usize, rank: usize) -> String {
    format!("{start}:{rank}")
}

#[derive(Default)]
struct Rank {
    output: Vec<String>,
    arrivals: Vec<String>,
    start: usize,
    round: usize,
    /// True once the round has started its messages.
    has_begun: bool,
    results: Vec<Vec<String>>,
}

/// The messages and receives of a queue pair.
#[derive(Default)]
struct Link {
    /// For each message, the start and end of its bytes.
    messages: Vec<(usize, usize)>,
    /// For each receive, its start, its bytes, and its target.
    posted: Vec<(usize, usize, Target)>,
    arrived: usize,
}

struct Paper {
    schedules: Vec<Schedule>,
    ranks: Vec<Rank>,
    links: BTreeMap<(usize, usize), Link>,
    random: u64,
}

impl Paper {
    fn new(schedules: Vec<Schedule>, seed: u64) -> Self {
        let rank = |(rank, schedule): (usize, &Schedule)| Rank {
            output: vec![own(0, rank); NUMBERS],
            arrivals: vec![String::new(); schedule.arrivals()],
            ..Rank::default()
        };
        let ranks = schedules.iter().enumerate().map(rank).collect();
        Paper { ranks, links: BTreeMap::new(), random: seed, schedules }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % end
    }

    /// Delivers a message of a link, if one is in flight and a receive is posted. Returns whether it did.
    fn deliver(&mut self, (from, to): (usize, usize)) -> bool {
        let link = self.links.get_mut(&(from, to)).unwrap();
        let number = link.arrived;
        let (Some((start, end)), Some((at, len, into))) =
            (link.messages.get(number).copied(), link.posted.get(number).copied())
        else {
            return false;
        };
        link.arrived += 1;
        assert_eq!(end - start, len, "the message of {from} fits the receive of {to}");
        let message = self.ranks[from].output[start..end].to_vec();
        let rank = &mut self.ranks[to];
        match into {
            Target::Output => rank.output[at..at + len].clone_from_slice(&message),
            Target::Arrivals(place) => rank.arrivals[place..place + len].clone_from_slice(&message),
        }
        true
    }

    /// Starts the round of a rank, or ends it if its messages have completed.
    fn step(&mut self, number: usize) -> bool {
        let (rank, schedule) = (&mut self.ranks[number], &self.schedules[number]);
        if rank.start == STARTS {
            return false;
        }
        let Some(round) = schedule.rounds.get(rank.round) else {
            rank.results.push(rank.output.clone());
            rank.start += 1;
            rank.round = 0;
            rank.output = vec![own(rank.start, number); NUMBERS];
            return true;
        };
        if !rank.has_begun {
            let first = if rank.round == 0 { 0 } else { schedule.started(rank.round - 1) };
            let receives = schedule.rounds.iter().filter_map(|round| round.receive.as_ref());
            for receive in receives.take(schedule.started(rank.round)).skip(first) {
                let link = self.links.entry((receive.peer as usize, number)).or_default();
                link.posted.push((receive.bytes.start, receive.bytes.len(), receive.into));
            }
            if let Some(send) = &round.send {
                let link = self.links.entry((number, send.peer as usize)).or_default();
                link.messages.push((send.bytes.start, send.bytes.end));
            }
            rank.has_begun = true;
            return true;
        }
        // The number of messages that this start has on a link up to this round.
        let count = |is: &dyn Fn(&Round) -> bool| {
            let all = schedule.rounds.iter().filter(|round| is(round)).count();
            rank.start * all + schedule.rounds[..=rank.round].iter().filter(|round| is(round)).count()
        };
        let has_arrived =
            |link: (usize, usize), count| self.links.get(&link).is_some_and(|link| link.arrived >= count);
        let is_sent = round.send.as_ref().is_none_or(|send| {
            let to = send.peer;
            let of = count(&|round| round.send.as_ref().is_some_and(|send| send.peer == to));
            has_arrived((number, to as usize), of)
        });
        let is_received = round.receive.as_ref().is_none_or(|receive| {
            let from = receive.peer;
            let of = count(&|round| round.receive.as_ref().is_some_and(|receive| receive.peer == from));
            has_arrived((from as usize, number), of)
        });
        if !is_sent || !is_received {
            return false;
        }
        if let Some(receive) = &round.receive
            && let Target::Arrivals(from) = receive.into
        {
            for (at, place) in receive.bytes.clone().zip(from..) {
                rank.output[at] = reduced(&rank.output[at], &rank.arrivals[place]);
            }
        }
        rank.round += 1;
        rank.has_begun = false;
        true
    }

    /// Runs the schedules in random order. Returns the results of all starts, by rank.
    fn run(mut self) -> Vec<Vec<Vec<String>>> {
        let size = self.ranks.len();
        while self.ranks.iter().any(|rank| rank.start < STARTS) {
            let links: Vec<_> = self.links.keys().copied().collect();
            let all = size + links.len();
            let first = self.below(all);
            let act = |paper: &mut Self, choice: usize| match choice.checked_sub(size) {
                None => paper.step(choice),
                Some(link) => paper.deliver(links[link]),
            };
            assert!((0..all).any(|next| act(&mut self, (first + next) % all)), "{size} ranks stand still");
        }
        self.ranks.into_iter().map(|rank| rank.results).collect()
    }
}

#[test]
fn every_rank_has_every_number_once_and_in_the_same_way() {
    type Made = fn(u32, u32) -> Schedule;
    let kinds: [Made; 2] =
        [|rank, size| doubling(rank, size, NUMBERS), |rank, size| ring(rank, size, NUMBERS, 1)];
    for size in (1..=17).chain([31, 32, 33]) {
        for (kind, made) in kinds.into_iter().enumerate() {
            for seed in 0..4 {
                let schedules = (0..size).map(|rank| made(rank, size)).collect();
                let results = Paper::new(schedules, seed * 1000 + u64::from(size)).run();
                for start in 0..STARTS {
                    for (rank, found) in results.iter().enumerate() {
                        assert_eq!(found[start], results[0][start], "kind {kind}, rank {rank} of {size}");
                    }
                    for number in &results[0][start] {
                        let mut parts: Vec<_> =
                            number.split(['(', ')', ' ']).filter(|part| !part.is_empty()).collect();
                        let mut expected: Vec<_> = (0..size as usize).map(|rank| own(start, rank)).collect();
                        parts.sort_unstable();
                        expected.sort_unstable();
                        assert_eq!(parts, expected, "kind {kind} of {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_barrier_hears_of_every_rank() {
    for size in 1..40u32 {
        let schedules: Vec<_> = (0..size).map(|rank| barrier(rank, size)).collect();
        // For each rank, the ranks whose arrival it knows.
        let mut known: Vec<BTreeSet<u32>> = (0..size).map(|rank| BTreeSet::from([rank])).collect();
        for round in 0..schedules[0].rounds.len() {
            let before = known.clone();
            for (known, schedule) in known.iter_mut().zip(&schedules) {
                let from = schedule.rounds[round].receive.as_ref().unwrap().peer;
                known.extend(&before[from as usize]);
            }
        }
        assert!(known.iter().all(|ranks| ranks.len() == size as usize), "{size}");
    }
}

#[test]
fn no_ranks_have_no_rounds() {
    for size in [0, 1] {
        for schedule in
            [barrier(0, size), doubling(0, size, 64), ring(0, size, 64, 4), ring(0, size, usize::MAX, 4)]
        {
            assert!(schedule.rounds.is_empty() && schedule.arrivals() == 0, "{size}: {schedule:?}");
        }
    }
}

#[test]
fn chunks_cover_the_buffer() {
    for (size, elements) in [(1, 5), (3, 10), (4, 2), (7, 0)] {
        let mut end = 0;
        for number in 0..size {
            let range = chunk(number, size, elements * 8, 8);
            assert_eq!(range.start, end);
            end = range.end;
        }
        assert_eq!(end, elements * 8);
    }
}

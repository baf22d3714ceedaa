//! Schedules of all-reduces, run on paper: messages take what the output has when they arrive, and arrive at any time
//! between the start and the end of their rounds.

use crate::collective::doubling::doubling;
use crate::collective::ring::ring;
use crate::collective::schedule::{Round, Schedule, Target};
use std::collections::BTreeMap;

/// Numbers of a buffer, one byte each.
const NUMBERS: usize = 5;
/// Starts, each of which may begin on a rank before another rank has ended the one before it.
const STARTS: usize = 2;

/// What a number is made of: `(a b)` is a reduction, whose operands stand in the order of their texts, as a reduction gives
/// the same for either order.
fn reduced(one: &str, other: &str) -> String {
    let (first, second) = if one <= other { (one, other) } else { (other, one) };
    format!("({first} {second})")
}

/// The number of a rank in a start.
fn own(start: usize, rank: usize) -> String {
    format!("{start}:{rank}")
}

#[derive(Default)]
struct Rank {
    output: Vec<String>,
    arrivals: Vec<String>,
    start: usize,
    round: usize,
    /// The round has started its messages.
    has_begun: bool,
    results: Vec<Vec<String>>,
}

/// A queue pair, with all messages that were ever sent.
#[derive(Default)]
struct Leg {
    /// By message: start and end of its bytes.
    messages: Vec<(usize, usize)>,
    /// By receive: its start, its bytes, and where it takes them.
    posted: Vec<(usize, usize, Target)>,
    arrived: usize,
}

struct Paper {
    schedules: Vec<Schedule>,
    ranks: Vec<Rank>,
    /// By sender and receiver.
    legs: BTreeMap<(usize, usize), Leg>,
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
        Paper { ranks, legs: BTreeMap::new(), random: seed, schedules }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) as usize % end
    }

    /// A message of a leg arrives, if one is under way and a receive is posted.
    fn deliver(&mut self, (from, to): (usize, usize)) -> bool {
        let leg = self.legs.get_mut(&(from, to)).unwrap();
        let number = leg.arrived;
        let (Some((start, end)), Some((at, len, into))) =
            (leg.messages.get(number).copied(), leg.posted.get(number).copied())
        else {
            return false;
        };
        leg.arrived += 1;
        assert_eq!(end - start, len, "the message of {from} fits the receive of {to}");
        let message = self.ranks[from].output[start..end].to_vec();
        let rank = &mut self.ranks[to];
        match into {
            Target::Output => rank.output[at..at + len].clone_from_slice(&message),
            Target::Arrivals(place) => rank.arrivals[place..place + len].clone_from_slice(&message),
        }
        true
    }

    /// A rank starts its round, or ends it if its messages have completed.
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
                let leg = self.legs.entry((receive.peer as usize, number)).or_default();
                leg.posted.push((receive.bytes.start, receive.bytes.len(), receive.into));
            }
            if let Some(send) = &round.send {
                let leg = self.legs.entry((number, send.peer as usize)).or_default();
                leg.messages.push((send.bytes.start, send.bytes.end));
            }
            rank.has_begun = true;
            return true;
        }
        // Of a leg, this start has as many messages up to this round.
        let count = |is: &dyn Fn(&Round) -> bool| {
            let all = schedule.rounds.iter().filter(|round| is(round)).count();
            rank.start * all + schedule.rounds[..=rank.round].iter().filter(|round| is(round)).count()
        };
        let has_arrived =
            |leg: (usize, usize), count| self.legs.get(&leg).is_some_and(|leg| leg.arrived >= count);
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

    /// Runs it in an order by chance. Returns the results of all starts, by rank.
    fn run(mut self) -> Vec<Vec<Vec<String>>> {
        let size = self.ranks.len();
        while self.ranks.iter().any(|rank| rank.start < STARTS) {
            let legs: Vec<_> = self.legs.keys().copied().collect();
            let all = size + legs.len();
            let first = self.below(all);
            let act = |paper: &mut Self, choice: usize| match choice.checked_sub(size) {
                None => paper.step(choice),
                Some(leg) => paper.deliver(legs[leg]),
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
    for size in 1..=40 {
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

//! The steps of an all-reduce: those of [`rounds`], by notified writes.
//!
//! A sender knows where its message arrives, because it computes the receiver's schedule too. Nothing gates messages, as posted receives
//! do in the MPI library, so each must find its memory free:
//! - Each arrival of a round has its own memory, and its own word.
//! - A message to the output replaces numbers that the receiver has sent on: the message contains them, so they have arrived.
//! - A reduction changes the output behind a send of the same numbers, so it waits until the send has read them.
//! - Every rank hears from all others in each call, so calls may follow each other as in [`super::schedule`].

use super::rounds::{self, Receive, Schedule, Send, Target};
use super::step::{Area, Copy, Program, Step};
use std::ops::Range;

/// The words of a rank for each call: one for each message.
pub(crate) fn words(numbers: usize, each: u32, ranks: u32) -> u32 {
    // No rank receives more messages than the first.
    receives(&schedule(numbers, each, ranks, 0)).count() as u32
}

/// Returns how many numbers the memory for arrivals holds.
pub(crate) fn arrivals(numbers: usize, each: u32, ranks: u32) -> usize {
    let by_first = schedule(numbers, each, ranks, 0).arrivals() / each as usize;
    // In a ring, the chunks that arrive depend on the rank.
    if ranks < 2 { 0 } else { numbers.max(by_first) }
}

pub(crate) fn program(numbers: usize, each: u32, ranks: u32, own: u32) -> Program {
    let (mine, each_bytes) = (schedule(numbers, each, ranks, own), each as usize);
    let units = |bytes: &Range<usize>| ((bytes.start / each_bytes) as u32, (bytes.len() / each_bytes) as u32);
    // The receives of peers for this rank's messages, each with its word.
    let mut of_peers: Vec<(u32, std::vec::IntoIter<(u32, Receive)>)> = Vec::new();
    let mut received = 0..;
    let mut steps = Program::new();
    for round in &mine.rounds {
        if let Some(Send { peer, bytes }) = &round.send {
            let place = of_peers.iter().position(|(known, _)| known == peer).unwrap_or_else(|| {
                let theirs = schedule(numbers, each, ranks, *peer);
                let own = (0..).zip(receives(&theirs).cloned()).filter(|(_, receive)| receive.peer == own);
                of_peers.push((*peer, own.collect::<Vec<_>>().into_iter()));
                of_peers.len() - 1
            });
            if let Some((word, receive)) = of_peers[place].1.next() {
                let (first, blocks) = units(bytes);
                let to = match receive.into {
                    Target::Output => (Area::Output, first),
                    Target::Arrivals(at) => (Area::Arrived, (at / each_bytes) as u32),
                };
                let copy = (blocks > 0).then_some(Copy { from: (Area::Output, first), to, blocks });
                steps.push(Step::Send { to: *peer, copies: copy.into_iter().collect(), word });
            }
        }
        if let Some(Receive { bytes, into, .. }) = &round.receive {
            steps.extend(received.next().map(|word| Step::Wait { word }));
            let (first, count) = units(bytes);
            if let Target::Arrivals(at) = into
                && count > 0
            {
                let overlapping = round.send.as_ref().filter(|send| send.bytes == *bytes);
                steps.extend(overlapping.map(|send| Step::WaitSent { to: send.peer }));
                steps.push(Step::Reduce { into: first, from: (at / each_bytes) as u32, count });
            }
        }
    }
    steps
}

fn schedule(numbers: usize, each: u32, ranks: u32, rank: u32) -> Schedule {
    rounds::all_reduce(rank, ranks, numbers * each as usize, each as usize)
}

fn receives(schedule: &Schedule) -> impl Iterator<Item = &Receive> {
    schedule.rounds.iter().filter_map(|round| round.receive.as_ref())
}

//! The barrier, by dissemination: in round *i*, to the rank 2^*i* ahead, and from the rank as far behind.

use crate::collective::schedule::{Round, Schedule};

/// Messages have no bytes. Each has a queue pair of its own: all receives are started with the first round.
pub(crate) fn barrier(rank: u32, size: u32) -> Schedule {
    let distances = (0..u32::BITS).map(|round| 1u64 << round).take_while(|distance| *distance < size.into());
    let place = |distance: u64| ((u64::from(rank) + distance) % u64::from(size)) as u32;
    let round = |distance: u64| Round::moves(place(distance), 0..0, place(u64::from(size) - distance), 0..0);
    Schedule { rounds: distances.map(round).collect(), ahead: usize::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_barrier_hears_of_every_rank() {
        for size in 1..40u32 {
            let schedules: Vec<_> = (0..size).map(|rank| barrier(rank, size)).collect();
            // By rank: which ranks' arrival it knows of.
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
}

//! A row of episodes on several threads. Its result is that of one thread.

use super::attempt;
use super::episode::Episode;
use super::totals::Totals;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

/// The end of a row of episodes.
pub(super) struct Outcome {
    /// Those of the episodes before the first failure, in the order of the row.
    pub(super) totals: Totals,
    pub(super) failure: Option<(Episode, String)>,
}

struct Row<E> {
    /// Those that no thread has begun.
    episodes: E,
    begun: u64,
    /// Results that wait for those of earlier episodes.
    ended: BTreeMap<u64, Result<Totals, (Episode, String)>>,
    added: u64,
    outcome: Outcome,
}

/// Performs episodes, up to the first that fails, on so many threads, or on those that the system gives.
pub(super) fn perform_all(episodes: impl Iterator<Item = Episode> + Send, jobs: usize) -> Outcome {
    let outcome = Outcome { totals: Totals::default(), failure: None };
    let row = Mutex::new(Row { episodes, begun: 0, ended: BTreeMap::new(), added: 0, outcome });
    let work = || while perform_next(&row) {};
    thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).is_ok();
        let _fewer = (1..jobs).all(spawn);
        work();
    });
    row.into_inner().unwrap_or_else(PoisonError::into_inner).outcome
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Performs the next episode of a row. Returns false if there is none to perform.
fn perform_next(row: &Mutex<Row<impl Iterator<Item = Episode>>>) -> bool {
    let mut state = lock(row);
    let next = if state.outcome.failure.is_none() { state.episodes.next() } else { None };
    let Some(episode) = next else { return false };
    let number = state.begun;
    state.begun += 1;
    drop(state);
    let result = attempt(&episode).map_err(|error| (episode, error));
    let mut state = lock(row);
    state.ended.insert(number, result);
    state.add_up();
    true
}

impl<E> Row<E> {
    /// Adds the results that come next in the row.
    fn add_up(&mut self) {
        while self.outcome.failure.is_none()
            && let Some(result) = self.ended.remove(&self.added)
        {
            self.added += 1;
            match result {
                Ok(totals) => self.outcome.totals.add(&totals),
                Err(failure) => self.outcome.failure = Some(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::episode::Wishes;

    fn row(wishes: &Wishes, seeds: std::ops::Range<u64>) -> impl Iterator<Item = Episode> + Send {
        seeds.map(|seed| Episode::new(seed, wishes).unwrap())
    }

    #[test]
    fn the_result_is_that_of_one_thread() {
        let wishes = Wishes::default();
        let one = perform_all(row(&wishes, 1..25), 1);
        let three = perform_all(row(&wishes, 1..25), 3);
        assert!(one.failure.is_none() && three.failure.is_none());
        assert_eq!(three.totals, one.totals);
    }

    #[test]
    fn the_first_failure_of_the_row_is_told_though_a_later_one_comes_sooner() {
        let wishes = Wishes::default();
        let spoilt = |mut episode: Episode| {
            // The second is short.
            let fails = episode.seed >= 7;
            if episode.seed == 8 {
                episode.steps.clear();
            }
            if fails {
                episode.cards = 0;
            }
            episode
        };
        let outcome = perform_all(row(&wishes, 1..12).map(spoilt), 3);
        assert_eq!(outcome.failure.map(|(episode, _)| episode.seed), Some(7));
        assert_eq!(outcome.totals, perform_all(row(&wishes, 1..7), 1).totals);
    }
}

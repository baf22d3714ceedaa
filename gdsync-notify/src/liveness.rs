//! The state of a team's ranks.
//!
//! A rank is alive, dead (its connection has failed, and the team has not agreed on that yet), or dropped
//! ([`Team::shrink`](crate::Team::shrink)). Only [`Team::replace`](crate::Team::replace) makes a rank alive again.

use crate::error::{DeathCause, NotifyError, Result};
use gdsync::queue::FailureCause;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub(crate) type RankSet = BTreeSet<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankState {
    Alive,
    Dead(DeathCause),
    Dropped(DeathCause),
}

/// The states of all ranks. Lock order: last; no other lock is taken while this one is held.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    states: Mutex<RankStates>,
    /// The number of dead ranks, so that intact teams pay one load.
    dead: AtomicU32,
    /// True once any rank was dropped, so that other teams pay one load.
    has_dropped: AtomicBool,
    /// Signaled when the monitor has work before its next poll.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RankStates {
    ranks: Vec<RankState>,
    /// Living ranks that have withdrawn: see [`Liveness::set_withdrawn`].
    withdrawn: RankSet,
    is_due: bool,
    is_closed: bool,
}

impl Liveness {
    pub(crate) fn new(size: u32) -> Self {
        let ranks = vec![RankState::Alive; size as usize];
        Liveness { states: Mutex::new(RankStates { ranks, ..RankStates::default() }), ..Liveness::default() }
    }

    pub(crate) fn state(&self, rank: u32) -> RankState {
        self.states.lock().ranks[rank as usize]
    }

    pub(crate) fn is_alive(&self, rank: u32) -> bool {
        self.state(rank) == RankState::Alive
    }

    pub(crate) fn check_alive(&self, rank: u32) -> Result<()> {
        // `has_dropped` is set before the rank leaves the count of dead ranks.
        if self.dead.load(Ordering::Acquire) == 0 && !self.has_dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.state(rank) {
            RankState::Alive => Ok(()),
            RankState::Dead(cause) | RankState::Dropped(cause) => Err(NotifyError::PeerDead { rank, cause }),
        }
    }

    /// Converts a queue pair's failure. A dead rank's queue pair may have been aborted, so death takes precedence.
    pub(crate) fn failure_error(&self, rank: u32, cause: FailureCause) -> NotifyError {
        match self.check_alive(rank) {
            Err(dead) => dead,
            Ok(()) => {
                // The monitor checks whether the rank is dead.
                self.wake_monitor();
                NotifyError::from_failure(rank, cause)
            }
        }
    }

    /// Returns an error for the first rank that is dead and not dropped.
    pub(crate) fn check_none_dead(&self) -> Result<()> {
        match self.first_dead() {
            Some((rank, cause)) => Err(NotifyError::PeerDead { rank, cause }),
            None => Ok(()),
        }
    }

    pub(crate) fn first_dead(&self) -> Option<(u32, DeathCause)> {
        if self.dead.load(Ordering::Acquire) == 0 {
            return None;
        }
        let states = self.states.lock();
        (0..).zip(&states.ranks).find_map(|(rank, state)| match state {
            RankState::Dead(cause) => Some((rank, *cause)),
            _ => None,
        })
    }

    /// Returns, for each rank, the rank whose death ends waits for its notifications: itself, or, if it has withdrawn,
    /// the first rank that is dead and not dropped.
    pub(crate) fn wait_enders(&self) -> Vec<Option<(u32, RankState)>> {
        let states = self.states.lock();
        let all = || (0..).zip(states.ranks.iter().copied());
        let first = all().find(|(_, state)| matches!(state, RankState::Dead(_)));
        let of = |(rank, state)| match state {
            RankState::Alive => first.filter(|_| states.withdrawn.contains(&rank)),
            state => Some((rank, state)),
        };
        all().map(of).collect()
    }

    /// Sets the ranks that have seen a death and are in, or about to call, [`Team::shrink`](crate::Team::shrink):
    /// nothing that they had not sent before arrives.
    pub(crate) fn set_withdrawn(&self, ranks: RankSet) {
        let mut states = self.states.lock();
        if states.withdrawn != ranks {
            (states.withdrawn, states.is_due) = (ranks, true);
            self.changed.notify_all();
        }
    }

    pub(crate) fn ranks_in(&self, is_one: impl Fn(RankState) -> bool) -> RankSet {
        let states = self.states.lock();
        (0..).zip(&states.ranks).filter(|(_, state)| is_one(**state)).map(|(rank, _)| rank).collect()
    }

    pub(crate) fn dropped(&self) -> RankSet {
        match self.has_dropped.load(Ordering::Acquire) {
            true => self.ranks_in(|state| matches!(state, RankState::Dropped(_))),
            false => RankSet::default(),
        }
    }

    pub(crate) fn members(&self) -> Vec<u32> {
        self.ranks_in(|state| !matches!(state, RankState::Dropped(_))).into_iter().collect()
    }

    pub(crate) fn not_alive(&self) -> RankSet {
        self.ranks_in(|state| state != RankState::Alive)
    }

    /// Marks a living rank dead. Returns false if it was not alive.
    pub(crate) fn mark_dead(&self, rank: u32, cause: DeathCause) -> bool {
        let mut states = self.states.lock();
        let state = &mut states.ranks[rank as usize];
        if *state != RankState::Alive {
            return false;
        }
        *state = RankState::Dead(cause);
        self.dead.fetch_add(1, Ordering::Release);
        states.is_due = true;
        drop(states);
        tracing::warn!(rank, %cause, "a rank of the team is dead");
        self.changed.notify_all();
        true
    }

    /// Drops dead ranks. Returns those that were not dropped before.
    pub(crate) fn drop_ranks(&self, ranks: &RankSet) -> Vec<u32> {
        let mut states = self.states.lock();
        let mut dropped = Vec::new();
        for &rank in ranks {
            let state = &mut states.ranks[rank as usize];
            if let RankState::Dead(cause) = *state {
                *state = RankState::Dropped(cause);
                self.has_dropped.store(true, Ordering::Release);
                self.dead.fetch_sub(1, Ordering::Release);
                dropped.push(rank);
            }
        }
        states.is_due = true;
        drop(states);
        self.changed.notify_all();
        dropped
    }

    /// Marks dropped ranks alive again, after new processes have taken their places.
    pub(crate) fn revive(&self, ranks: &RankSet) {
        let mut states = self.states.lock();
        for &rank in ranks {
            let state = &mut states.ranks[rank as usize];
            if matches!(state, RankState::Dropped(_)) {
                *state = RankState::Alive;
            }
        }
    }

    pub(crate) fn wake_monitor(&self) {
        self.states.lock().is_due = true;
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        self.states.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Called by the monitor: waits for work for up to `period`. Returns false once the team is closed.
    pub(crate) fn wait_for_work(&self, period: Duration) -> bool {
        let mut states = self.states.lock();
        if !states.is_due && !states.is_closed {
            self.changed.wait_for(&mut states, period);
        }
        states.is_due = false;
        !states.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_has_withdrawn_ends_waits_by_the_death_that_it_has_seen() {
        let (liveness, cause) = (Liveness::new(3), DeathCause::Reported { by: 0 });
        liveness.set_withdrawn([0].into_iter().collect());
        assert_eq!(liveness.wait_enders(), [None; 3]);
        liveness.mark_dead(2, cause);
        let dead = Some((2, RankState::Dead(cause)));
        assert_eq!(liveness.wait_enders(), [dead, None, dead]);
        liveness.drop_ranks(&[2].into_iter().collect());
        assert_eq!(liveness.wait_enders(), [None, None, Some((2, RankState::Dropped(cause)))]);
    }

    #[test]
    fn a_rank_dies_once_and_is_dropped_once() {
        let (liveness, cause) = (Liveness::new(3), DeathCause::Reported { by: 0 });
        assert!(liveness.check_none_dead().is_ok() && liveness.is_alive(2));
        assert!(liveness.mark_dead(2, cause) && !liveness.mark_dead(2, DeathCause::Reported { by: 1 }));
        assert_eq!(liveness.first_dead(), Some((2, cause)));
        let error = liveness.check_alive(2).unwrap_err();
        assert!(
            matches!(error, NotifyError::PeerDead { rank: 2, cause: found } if found == cause),
            "{error}"
        );
        // Only ranks that were found dead are dropped.
        assert_eq!(liveness.drop_ranks(&[1, 2].into_iter().collect()), [2]);
        assert!(
            liveness.check_none_dead().is_ok()
                && liveness.check_alive(2).is_err()
                && liveness.check_alive(1).is_ok()
        );
        assert_eq!(liveness.drop_ranks(&[2].into_iter().collect()), [0; 0]);
        assert_eq!(liveness.not_alive(), [2].into());
        liveness.revive(&[2].into_iter().collect());
        assert!(liveness.is_alive(2) && liveness.not_alive() == RankSet::default());
        liveness.close();
        assert!(!liveness.wait_for_work(Duration::from_secs(60)));
    }
}

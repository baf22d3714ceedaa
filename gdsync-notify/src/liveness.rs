//! The state of a team's ranks.
//!
//! A rank is alive, dead (its connection has failed, and the team has not agreed on that yet), or dropped
//! ([`Team::shrink`](crate::Team::shrink)). Only [`Team::replace`](crate::Team::replace) makes a rank alive again.

use crate::error::{DeathCause, NotifyError, Result};
use gdsync::queue::FailureCause;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

pub(crate) type RankSet = BTreeSet<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankState {
    Alive,
    Dead(DeathCause),
    Dropped(DeathCause),
}

/// The ranks whose state ends waits for notifications: of any rank, of all ranks, and of each. A rank that is named as
/// alive is cut off, or this rank's team has ended ([`Liveness::check_released`]).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaitEnders {
    /// A dead rank, or, once nothing can arrive from any rank, the first that is cut off.
    pub(crate) any: Option<(u32, RankState)>,
    /// A dead rank, or one that is cut off.
    pub(crate) all: Option<(u32, RankState)>,
    /// For each rank itself, or, if it has withdrawn, the first rank that is dead and not dropped.
    pub(crate) of_rank: Vec<Option<(u32, RankState)>>,
}

/// The states of all ranks. Lock order: last; no other lock is taken while this one is held.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    states: Mutex<RankStates>,
    /// The number of dead ranks, so that intact teams pay one load.
    dead: AtomicU32,
    /// True once any rank was dropped, so that other teams pay one load.
    has_dropped: AtomicBool,
    /// Set once the team's connections have ended: the rank of this process.
    ended: OnceLock<u32>,
    /// True once waits of streams that outlive the team have been released.
    has_released: AtomicBool,
    /// For each rank, the numbers of this rank's queue pairs that lead to it alone.
    queue_pairs: OnceLock<Vec<Vec<u32>>>,
    /// Signaled when the monitor has work before its next poll.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RankStates {
    ranks: Vec<RankState>,
    /// Living ranks that have withdrawn: see [`Liveness::set_withdrawn`].
    withdrawn: RankSet,
    /// Dead ranks that end no waits before [`Liveness::set_told`].
    untold: RankSet,
    /// Ranks of `cut` that end no waits before that.
    untold_cut: RankSet,
    /// Living ranks, and those in `untold`, that cannot write here: see [`Liveness::set_cut`].
    cut: BTreeMap<u32, FailureCause>,
    is_due: bool,
}

impl Liveness {
    pub(crate) fn new(size: u32) -> Self {
        let ranks = vec![RankState::Alive; size as usize];
        Liveness { states: Mutex::new(RankStates { ranks, ..RankStates::default() }), ..Liveness::default() }
    }

    pub(crate) fn set_queue_pairs(&self, of_ranks: Vec<Vec<u32>>) {
        self.queue_pairs.get_or_init(|| of_ranks);
    }

    /// Returns, for each rank, the numbers of the queue pairs that lead to it alone; with dynamic connections, none.
    pub(crate) fn queue_pairs(&self) -> &[Vec<u32>] {
        self.queue_pairs.get().map_or(&[], Vec::as_slice)
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
        self.first_dead().map_or(Ok(()), |(rank, cause)| Err(NotifyError::PeerDead { rank, cause }))
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

    /// Returns why a wait was released that the status of its notification blames on this rank.
    pub(crate) fn check_released(&self, rank: u32) -> Result<()> {
        self.check_alive(rank)?;
        match self.states.lock().cut.get(&rank) {
            Some(&cause) => Err(NotifyError::from_failure(rank, cause)),
            None => self.check_not_ended(),
        }
    }

    pub(crate) fn check_not_ended(&self) -> Result<()> {
        if self.ended.get().is_some() { Err(NotifyError::Ended) } else { Ok(()) }
    }

    /// Returns the ranks that end waits for notifications: see [`WaitEnders`].
    pub(crate) fn wait_enders(&self) -> WaitEnders {
        let states = self.states.lock();
        let all = || {
            (0..).zip(states.ranks.iter().copied()).map(|(rank, state)| match states.untold.contains(&rank) {
                true => (rank, RankState::Alive),
                false => (rank, state),
            })
        };
        let first_dead = all().find(|(_, state)| matches!(state, RankState::Dead(_)));
        let ends = |rank: &u32| states.cut.contains_key(rank) && !states.untold_cut.contains(rank);
        let first_cut = states.cut.keys().find(|rank| ends(rank)).map(|rank| (*rank, RankState::Alive));
        let end = self.ended.get().map(|own| (*own, RankState::Alive));
        let of = |(rank, state)| match state {
            RankState::Alive if ends(&rank) => Some((rank, state)),
            RankState::Alive => first_dead.filter(|_| states.withdrawn.contains(&rank)).or(end),
            state => Some((rank, state)),
        };
        let of_rank: Vec<_> = all().map(of).collect();
        let is_cut_off = of_rank.iter().all(Option::is_some);
        let any = first_dead.or(first_cut.filter(|_| is_cut_off)).or(end);
        WaitEnders { any, all: first_dead.or(first_cut).or(end), of_rank }
    }

    /// Sets the living ranks, of which this may be one, to which all of the team's connections have failed: no
    /// notification arrives from them. New ones end waits after [`Self::set_told`]. Returns the new ones, and whether waits may have to be released, or released ones
    /// to wait again.
    pub(crate) fn set_cut(&self, mut cut: BTreeMap<u32, FailureCause>) -> (RankSet, bool) {
        let mut states = self.states.lock();
        cut.retain(|rank, _| match states.ranks[*rank as usize] {
            RankState::Alive => true,
            // Its released waits stay released.
            _ => states.untold.contains(rank) && states.cut.contains_key(rank),
        });
        let new: RankSet = cut.keys().copied().filter(|rank| !states.cut.contains_key(rank)).collect();
        states.untold_cut.retain(|rank| cut.contains_key(rank));
        states.untold_cut.extend(&new);
        let is_due = states.cut != cut || !cut.is_empty();
        states.cut = cut;
        (new, is_due)
    }

    /// Returns the living ranks to which all connections have failed.
    pub(crate) fn cut(&self) -> BTreeMap<u32, FailureCause> {
        self.states.lock().cut.clone()
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

    /// Marks a living rank dead. Returns false if it was not alive. It ends waits after [`Self::set_told`].
    pub(crate) fn mark_dead(&self, rank: u32, cause: DeathCause) -> bool {
        let mut states = self.states.lock();
        let state = &mut states.ranks[rank as usize];
        if *state != RankState::Alive {
            return false;
        }
        *state = RankState::Dead(cause);
        states.untold.insert(rank);
        self.dead.fetch_add(1, Ordering::Release);
        states.is_due = true;
        drop(states);
        tracing::warn!(rank, %cause, "a rank of the team is dead");
        self.changed.notify_all();
        true
    }

    /// Returns true if all ranks that are marked dead or cut off end waits.
    pub(crate) fn is_told(&self) -> bool {
        let states = self.states.lock();
        states.untold.is_empty() && states.untold_cut.is_empty()
    }

    /// Lets the ranks that are marked dead or cut off end waits: the others have been told of them.
    pub(crate) fn set_told(&self) {
        let states = &mut *self.states.lock();
        states.untold_cut.clear();
        std::mem::take(&mut states.untold).iter().for_each(|rank| _ = states.cut.remove(rank));
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

    /// Ends the team of this rank, whose connections have ended.
    pub(crate) fn end(&self, own: u32) {
        // Locked, so that the monitor does not miss it.
        let states = self.states.lock();
        self.ended.get_or_init(|| own);
        drop(states);
        self.changed.notify_all();
    }

    pub(crate) fn set_released(&self) {
        self.has_released.store(true, Ordering::Release);
    }

    pub(crate) fn has_released(&self) -> bool {
        self.has_released.load(Ordering::Acquire)
    }

    /// Called by the monitor: waits for work for up to `period`. Returns false once the team has ended.
    pub(crate) fn wait_for_work(&self, period: Duration) -> bool {
        let mut states = self.states.lock();
        if !states.is_due && self.ended.get().is_none() {
            self.changed.wait_for(&mut states, period);
        }
        states.is_due = false;
        self.ended.get().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_has_withdrawn_ends_waits_by_the_death_that_it_has_seen() {
        let (liveness, cause) = (Liveness::new(3), DeathCause::Reported { by: 0 });
        liveness.set_withdrawn([0].into_iter().collect());
        assert_eq!(liveness.wait_enders().of_rank, [None; 3]);
        liveness.mark_dead(2, cause);
        assert_eq!(liveness.wait_enders().of_rank, [None; 3], "the others have not been told");
        liveness.set_told();
        let dead = Some((2, RankState::Dead(cause)));
        assert_eq!(
            liveness.wait_enders(),
            WaitEnders { any: dead, all: dead, of_rank: vec![dead, None, dead] }
        );
        liveness.drop_ranks(&[2].into_iter().collect());
        assert_eq!(liveness.wait_enders().of_rank, [None, None, Some((2, RankState::Dropped(cause)))]);
    }

    #[test]
    fn waits_for_any_rank_end_when_all_are_cut_off_and_all_waits_end_with_the_team() {
        let (liveness, cut) = (Liveness::new(2), |rank| Some((rank, RankState::Alive)));
        assert_eq!(liveness.set_cut(BTreeMap::new()), ([].into(), false));
        let aborted = |ranks: &[u32]| ranks.iter().map(|rank| (*rank, FailureCause::Aborted)).collect();
        assert_eq!(liveness.set_cut(aborted(&[1])), ([1].into(), true));
        let none = WaitEnders { any: None, all: None, of_rank: vec![None; 2] };
        assert!(liveness.wait_enders() == none && !liveness.is_told(), "the others have not been told");
        liveness.set_told();
        let enders = WaitEnders { any: None, all: cut(1), of_rank: vec![None, cut(1)] };
        assert_eq!(liveness.wait_enders(), enders);
        assert!(matches!(liveness.check_released(1), Err(NotifyError::Failed { rank: 1, .. })));
        assert_eq!(liveness.set_cut(aborted(&[0, 1])), ([0].into(), true));
        assert_eq!(liveness.wait_enders(), enders);
        liveness.set_told();
        let enders = WaitEnders { any: cut(0), all: cut(0), of_rank: vec![cut(0), cut(1)] };
        assert_eq!(liveness.wait_enders(), enders);
        // Connected again.
        assert_eq!(liveness.set_cut(BTreeMap::new()), ([].into(), true));
        assert!(liveness.check_released(1).is_ok());
        assert_eq!(liveness.wait_enders(), none);
        liveness.end(1);
        assert_eq!(liveness.wait_enders(), WaitEnders { any: cut(1), all: cut(1), of_rank: vec![cut(1); 2] });
        assert!(matches!(liveness.check_released(1), Err(NotifyError::Ended)));
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
        liveness.end(0);
        assert!(!liveness.wait_for_work(Duration::from_secs(60)));
    }
}

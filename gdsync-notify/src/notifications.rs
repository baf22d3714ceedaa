//! The notifications of this rank's part of a segment, and the release of waits for notifications that do not come: of
//! dead ranks, of ranks to which all connections have failed, and of all once the team has ended.
//!
//! A stream can wait for one word only, so a value in the word ends the wait. The value [`RELEASED`] is no notification
//! while the notification's status is not 0; readers that find the value check the status. The status is written before
//! the word is released, and cleared after the word is.
//!
//! A stream that stops at deaths ([`StreamOptions::stop_at_death`](gdsync::stream::StreamOptions)) *holds* the notifications that
//! it waits for: their words are not released, and only the status shows that they do not come.

use crate::error::{NotifyError, Result};
use crate::liveness::{Liveness, RankState, WaitEnders};
use crate::word::NotificationWords;
use gdsync::PinnedMemory;
use gdsync::memop::Word32;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// The value of a released word: `GDSYNC_NOTIFY_RELEASED`.
pub(crate) const RELEASED: u32 = 0x9d5d_ead1;
/// Status bit: nothing arrives from the rank in the low bits, which is dead or cut off, or this one, whose team has
/// ended. `GDSYNC_NOTIFY_PEER_DEAD`.
pub(crate) const PEER_DEAD: u32 = 1 << 31;
/// Status bit: the team has dropped the rank. `GDSYNC_NOTIFY_DROPPED`.
pub(crate) const DROPPED: u32 = 1 << 30;
const RANK: u32 = DROPPED - 1;
/// The sender of a notification that any rank may set.
pub(crate) const ANY: u32 = u32::MAX;
/// The sender of a collective's notification, which what ends waits for any rank releases for good, whatever its value.
pub(crate) const ALL: u32 = u32::MAX - 1;
/// The values of collectives' notifications, used in turn. A stream waits for the bit, and [`RELEASED`] has both bits.
pub(crate) const PHASES: [u32; 2] = [1, 1 << 4];
const _: () = assert!(RELEASED & PHASES[0] != 0 && RELEASED & PHASES[1] != 0 && PHASES[0] & PHASES[1] == 0);

/// The notifications of this rank's part of a segment, their senders and their statuses.
#[derive(Debug)]
pub(crate) struct Notifications {
    words: NotificationWords,
    senders: Vec<AtomicU32>,
    statuses: PinnedMemory,
    /// The lock orders releases.
    releases: Mutex<Releases>,
}

#[derive(Debug, Default)]
struct Releases {
    /// True once all are released for good.
    is_over: bool,
    /// The streams that hold notifications: each as long as it is alive and true.
    holds: BTreeMap<u32, Vec<Weak<AtomicBool>>>,
}

impl Releases {
    fn is_held(&self, id: u32) -> bool {
        self.holds.get(&id).is_some_and(|holds| holds.iter().any(holds_on))
    }
}

fn holds_on(hold: &Weak<AtomicBool>) -> bool {
    hold.upgrade().is_some_and(|hold| hold.load(Ordering::Acquire))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The lowest notification that is set.
    Set(u32),
    /// None is set, and a release names this rank, which might have set one.
    Released(u32),
    None,
}

impl Notifications {
    pub(crate) fn new(words: NotificationWords, count: u32) -> Result<Self> {
        let bytes = (count as usize * size_of::<u32>()).max(size_of::<u32>());
        Ok(Notifications {
            words,
            senders: (0..count).map(|_| AtomicU32::new(ANY)).collect(),
            statuses: PinnedMemory::allocate(bytes).map_err(NotifyError::Memory)?,
            releases: Mutex::default(),
        })
    }

    pub(crate) fn statuses(&self) -> &PinnedMemory {
        &self.statuses
    }

    pub(crate) fn status_word(&self, id: u32) -> Result<Word32> {
        Ok(Word32::new(&self.statuses, id as usize * size_of::<u32>())?)
    }

    /// Returns the rank of a released notification's status, and whether the team has dropped it.
    pub(crate) fn status(&self, id: u32) -> Option<(u32, bool)> {
        // Acquire: pairs with `update`, as loads of the words do.
        let status = self.statuses.words32()[id as usize].load(Ordering::Acquire);
        (status != 0).then_some((status & RANK, status & DROPPED != 0))
    }

    pub(crate) fn sender(&self, id: u32) -> Option<u32> {
        Some(self.sender_or_any(id)).filter(|sender| *sender < ALL)
    }

    /// Returns the sender: a rank, [`ANY`] or [`ALL`].
    pub(crate) fn sender_or_any(&self, id: u32) -> u32 {
        self.senders[id as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn is_collective(&self, id: u32) -> bool {
        self.sender_or_any(id) == ALL
    }

    /// Sets the rank that sets these notifications, or [`ANY`] or [`ALL`].
    pub(crate) fn set_sender(&self, ids: Range<u32>, sender: u32) {
        for id in ids {
            self.senders[id as usize].store(sender, Ordering::Relaxed);
        }
    }

    /// Releases the notifications of ranks from which none arrives ([`WaitEnders`]). Reverts the release of all others
    /// except collectives'. Returns true if some are released.
    pub(crate) fn update(&self, liveness: &Liveness) -> bool {
        self.update_with(|| liveness.wait_enders())
    }

    /// Asks for the enders under the lock: older ones would release again what a later call has reverted.
    fn update_with(&self, enders: impl FnOnce() -> WaitEnders) -> bool {
        let releases = self.releases.lock();
        !releases.is_over && self.apply(&enders(), &releases)
    }

    /// Keeps a notification's word from being released while `hold` is alive and true, and reverts its release.
    pub(crate) fn hold(&self, id: u32, hold: &Arc<AtomicBool>) {
        let mut releases = self.releases.lock();
        let holds = releases.holds.entry(id).or_default();
        if holds.iter().any(|known| ptr::eq(known.as_ptr(), Arc::as_ptr(hold))) {
            return;
        }
        holds.retain(holds_on);
        holds.push(Arc::downgrade(hold));
        if self.status(id).is_some()
            && let Err(error) = self.words.exchange(&[id], RELEASED, 0)
        {
            tracing::error!(%error, "a wait for a notification that does not come could not be held");
        }
    }

    /// Releases all notifications of a part whose last handle is dropped, for good.
    pub(crate) fn release_all(&self, own: u32) {
        let own = Some((own, RankState::Alive));
        let mut releases = self.releases.lock();
        // After this, nothing could release the words of streams that go on.
        *releases = Releases { is_over: true, holds: BTreeMap::new() };
        self.apply(&WaitEnders { any: own, all: own, of_rank: Vec::new() }, &releases);
    }

    /// The caller holds the lock.
    fn apply(&self, enders: &WaitEnders, releases: &Releases) -> bool {
        let status_of = |ended: &Option<(u32, RankState)>| match ended {
            None => 0,
            Some((rank, RankState::Dropped(_))) => PEER_DEAD | DROPPED | rank,
            Some((rank, _)) => PEER_DEAD | rank,
        };
        let (any, all) = (status_of(&enders.any), status_of(&enders.all));
        let of_senders: Vec<u32> = enders.of_rank.iter().map(status_of).collect();
        let (mut released, mut restored, mut of_all) = (Vec::new(), Vec::new(), Vec::new());
        let mut is_any = false;
        for ((id, status), sender) in (0..).zip(self.statuses.words32()).zip(&self.senders) {
            let sender = sender.load(Ordering::Relaxed);
            let wanted = match (sender, status.load(Ordering::Relaxed)) {
                (ALL, before) if before != 0 => before,
                (ALL, _) => all,
                // `ANY` is above all ranks.
                _ => of_senders.get(sender as usize).copied().unwrap_or(any),
            };
            if wanted != 0 {
                // Release: a reader that sees the word sees the status.
                status.store(wanted, Ordering::Release);
                is_any = true;
                if releases.is_held(id) {
                    continue;
                }
                released.push(id);
                if sender == ALL {
                    of_all.push(id);
                }
            } else if status.load(Ordering::Relaxed) != 0 {
                restored.push(id);
            }
        }
        let changed = self.words.exchange(&released, 0, RELEASED);
        let changed = PHASES.iter().fold(changed, |so_far, phase| {
            so_far.and_then(|()| self.words.exchange(&of_all, *phase, RELEASED))
        });
        let changed = changed.and(self.words.exchange(&restored, RELEASED, 0));
        if let Err(error) = changed {
            tracing::error!(%error, "waits for notifications that do not come could not be released");
        }
        for id in restored {
            self.statuses.words32()[id as usize].store(0, Ordering::Release);
        }
        is_any
    }

    /// Returns true if a value taken from a notification is a release.
    pub(crate) fn is_release(&self, id: u32, value: u32) -> bool {
        value == RELEASED && self.status(id).is_some()
    }

    /// Evaluates a range of notifications by their values.
    pub(crate) fn lookup(&self, ids: Range<u32>, value: impl Fn(u32) -> u32) -> Lookup {
        let (mut dead, mut dropped, count) = (None, None, ids.len());
        let mut of_dropped = 0;
        for id in ids {
            match value(id) {
                // A word that is held shows no release.
                found @ (0 | RELEASED) => match self.status(id) {
                    Some((rank, false)) => dead = dead.or(Some(rank)),
                    Some((rank, true)) => {
                        dropped = dropped.or(Some(rank));
                        of_dropped += 1;
                    }
                    // The release may have been reverted between the two loads.
                    None if found == RELEASED && value(id) == RELEASED => return Lookup::Set(id),
                    None => {}
                },
                _ => return Lookup::Set(id),
            }
        }
        // Others of the range may still arrive unless all senders were dropped.
        match dead.or(dropped.filter(|_| of_dropped == count)) {
            Some(rank) => Lookup::Released(rank),
            None => Lookup::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DeathCause;
    use std::time::Duration;

    #[test]
    fn a_slow_update_does_not_release_again_what_a_faster_one_has_reverted() {
        let words = NotificationWords::Host { memory: PinnedMemory::allocate(64).unwrap(), first: 0 };
        let notifications = Notifications::new(words, 1).unwrap();
        let liveness = Liveness::new(2);
        liveness.mark_dead(1, DeathCause::Reported { by: 0 });
        liveness.set_told();
        std::thread::scope(|scope| {
            let (asked, is_asked) = std::sync::mpsc::channel();
            let (liveness, notifications) = (&liveness, &notifications);
            let slow = move || {
                notifications.update_with(|| {
                    let enders = liveness.wait_enders();
                    asked.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(20));
                    enders
                })
            };
            scope.spawn(slow);
            is_asked.recv().unwrap();
            liveness.drop_ranks(&[1].into_iter().collect());
            assert!(!notifications.update(liveness));
        });
        assert_eq!(notifications.status(0), None);
        notifications.release_all(0);
        notifications.update(&liveness);
        assert_eq!(notifications.status(0), Some((0, false)));
    }
}

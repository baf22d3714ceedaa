//! Completion queues of the card.
//!
//! To arm a queue, a program writes its arm record and then rings the register at 0x20. All queues of a program share
//! that register, so a second doorbell may overwrite the first before the card polls it. Therefore the card takes the
//! *records* of all queues when the register rings. It replaces each record by a value that no arm has: so it sees
//! every arm once, even one that repeats the former.
//!
//! Hence a doorbell may find its record taken: because of another queue's doorbell, or of an earlier doorbell of this
//! queue, if the program had already written its next record. Then the record taken last belongs to this arm or to a
//! later one. A still later doorbell counts without a record: another thread has overwritten its record.

use crate::card::config::{CqAttributes, CqModeration};
use crate::card::memory::ring::{CqRing, Entry, Record};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::prm::doorbell::{self, CqArm};
use std::time::{Duration, Instant};

/// The queue was full: the program has not consumed its entries in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun {
    /// True for the first overrun, the only one that raises an event.
    pub(crate) first: bool,
}

/// Fill level of a queue, for WAITs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) produced: u32,
    /// Index of the first error entry.
    pub(crate) first_error: Option<u32>,
    pub(crate) overrun: bool,
}

/// True if the card raises a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Fires(pub(crate) bool);

/// Value of an arm record that the card has taken. No arm has it: an arm's sequence number uses only 2 of the highest 4
/// bits.
const TAKEN: u32 = u32::MAX;

/// An event that moderation holds back.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Number of further entries after which it is raised.
    left: u16,
    /// When it is raised at the latest.
    due: Instant,
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) ring: CqRing,
    consumer: Record,
    arm_record: Record,
    armed: Option<CqArm>,
    /// The arm that was last taken from the record.
    taken: Option<CqArm>,
    produced: u32,
    /// Producer index at the last event. The program polls the entries before it anyway, so the next arm concerns later
    /// ones. (The field `last_notified_index` of mlx5's completion queue context suggests this; its use by hardware is
    /// not published.)
    notified: u32,
    /// Index of the last solicited or error entry.
    last_solicited: Option<u32>,
    /// Index of the first error entry.
    first_error: Option<u32>,
    ignores_overrun: bool,
    overrun: bool,
    moderation: CqModeration,
    held: Option<Held>,
    pub(crate) users: u32,
}

impl Cq {
    pub(crate) fn new(ring: CqRing, consumer: Record, arm_record: Record, ignores_overrun: bool) -> Self {
        arm_record.exchange(TAKEN);
        Cq {
            ring,
            consumer,
            arm_record,
            armed: None,
            taken: None,
            produced: 0,
            notified: 0,
            last_solicited: None,
            first_error: None,
            ignores_overrun,
            overrun: false,
            moderation: CqModeration::default(),
            held: None,
            users: 0,
        }
    }

    pub(crate) fn attributes(&self) -> CqAttributes {
        CqAttributes {
            entries: self.ring.entries,
            stride: self.ring.stride,
            produced: self.produced & 0xff_ffff,
            consumed: doorbell::ci_value(self.consumer.load()),
            armed: self.armed.map(|arm| arm.is_solicited_only()),
            overrun: self.overrun,
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { produced: self.produced, first_error: self.first_error, overrun: self.overrun }
    }

    fn unconsumed(&self) -> u32 {
        self.produced.wrapping_sub(doorbell::ci_value(self.consumer.load())) & 0xff_ffff
    }

    fn is_full(&self) -> bool {
        self.unconsumed() >= self.ring.entries
    }

    /// Returns whether the program has unconsumed entries. False for queues whose program need not update its
    /// consumer index: one that may overrun, or that has one place for all entries.
    pub(crate) fn has_unconsumed(&self) -> bool {
        !self.ignores_overrun && !self.ring.collapsed && self.unconsumed() > 0
    }

    pub(crate) fn write(&mut self, entry: impl Into<Entry>) -> Result<Fires, Overrun> {
        if self.overrun || !self.ignores_overrun && self.is_full() {
            let first = !self.overrun;
            self.overrun = true;
            return Err(Overrun { first });
        }
        let entry = entry.into();
        let cqe = &entry.cqe;
        let solicited = cqe.is_solicited() || cqe.is_error();
        if solicited {
            self.last_solicited = Some(self.produced);
        }
        if cqe.is_error() {
            self.first_error.get_or_insert(self.produced);
        }
        self.put(entry);
        let fires = self.armed.take_if(|arm| solicited || !arm.is_solicited_only()).is_some();
        if fires {
            self.notified = self.produced;
        }
        Ok(Fires(fires))
    }

    /// Writes the next entry, and moderates its event.
    pub(crate) fn complete(&mut self, entry: impl Into<Entry>, now: Instant) -> Result<Fires, Overrun> {
        let fires = self.write(entry)?;
        let Some(held) = &mut self.held else { return Ok(self.moderate(fires, now)) };
        held.left = held.left.saturating_sub(1);
        Ok(Fires(held.left == 0 && self.release()))
    }

    /// Holds an event back according to the moderation.
    pub(crate) fn moderate(&mut self, fires: Fires, now: Instant) -> Fires {
        let CqModeration { count, period } = self.moderation;
        if !fires.0 || count <= 1 || period == 0 {
            return fires;
        }
        let due = now + Duration::from_micros(period.into());
        self.held.get_or_insert(Held { left: count - 1, due });
        Fires(false)
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.map(|held| held.due)
    }

    /// Releases the event that is held back. It covers all entries so far.
    pub(crate) fn release(&mut self) -> bool {
        let is_held = self.held.take().is_some();
        if is_held {
            self.notified = self.produced;
        }
        is_held
    }

    pub(crate) fn set_moderation(&mut self, moderation: CqModeration) {
        self.moderation = moderation;
    }

    /// Moves to another ring. The last entry in the old ring announces that; the next one is written to the new ring.
    /// The program copies unconsumed entries from place `i` of the old ring to place `i + 1` of the new one. Returns
    /// false if one of the rings has no room, or if the queue has overrun.
    pub(crate) fn resize(&mut self, ring: CqRing) -> bool {
        let unconsumed = self.unconsumed();
        if self.overrun || unconsumed >= self.ring.entries || unconsumed + 1 >= ring.entries {
            return false;
        }
        self.put(Cqe64::resize().into());
        self.ring = ring;
        // Every entry has moved by one.
        self.notified = self.notified.wrapping_add(1);
        for index in [&mut self.last_solicited, &mut self.first_error].into_iter().flatten() {
            *index = index.wrapping_add(1);
        }
        true
    }

    fn put(&mut self, entry: Entry) {
        let owner = (self.produced >> self.ring.entries.trailing_zeros()) & 1 == 1;
        self.ring.write(self.produced, &entry.map(|cqe| cqe.with_owner(owner)));
        self.produced = self.produced.wrapping_add(1);
    }

    /// Handles the doorbell of this queue. The doorbell's own words count if no record has them or later ones.
    pub(crate) fn rung(&mut self, arm: CqArm) -> Fires {
        match self.arm_record.exchange(TAKEN) {
            TAKEN if self.taken.is_some_and(|taken| !is_after(arm, taken)) => Fires(false),
            TAKEN => self.arm(arm),
            record => self.take(record),
        }
    }

    /// Returns whether its arm record was ever written; a program that rings without that is wrong. Nothing stronger
    /// holds: threads that arm the queue concurrently may write their records in one order and ring in another.
    pub(crate) fn has_record(&self) -> bool {
        self.taken.is_some()
    }

    /// Polls the arm record, as another queue's doorbell may have overwritten this queue's.
    pub(crate) fn poll_arm_record(&mut self) -> Fires {
        match self.arm_record.exchange(TAKEN) {
            TAKEN => Fires(false),
            record => self.take(record),
        }
    }

    fn take(&mut self, record: u32) -> Fires {
        let arm = CqArm::from_record(record);
        self.taken = Some(arm);
        self.arm(arm)
    }

    /// Arms the queue. It fires at once if it has a matching entry that no event has covered and that the program has
    /// not consumed.
    ///
    /// A program that arms the queue and then empties it, as ibv_get_cq_event(3) asks, misses no entry. If the entry
    /// was written after the card took the arm, the arm fires. If it was written before, it is not consumed. Either no
    /// event has covered it, and the arm fires at once; or an event was raised after it. If the program read that event
    /// before it armed the queue, it saw the entry when it emptied the queue; if not, that event wakes it.
    ///
    /// A queue that is armed for every entry stays so when it is armed for solicited entries (IB specification,
    /// 11.4.2.2).
    pub(crate) fn arm(&mut self, arm: CqArm) -> Fires {
        let unconsumed = self.produced.wrapping_sub(arm.consumer_index()) & 0xff_ffff;
        let unseen = unconsumed.min(self.produced.wrapping_sub(self.notified));
        // More than the ring holds means an impossible index: more than a lap old, or ahead of the card.
        let has_entry = 0 < unseen && unconsumed <= self.ring.entries;
        let matches = if arm.is_solicited_only() {
            self.last_solicited.is_some_and(|last| self.produced.wrapping_sub(last) <= unseen)
        } else {
            true
        };
        let fires = has_entry && matches;
        if fires {
            self.armed = None;
            self.notified = self.produced;
        } else if self.armed.is_none_or(|earlier| earlier.is_solicited_only()) {
            self.armed = Some(arm);
        }
        Fires(fires)
    }
}

/// Returns whether a program arms so after `earlier`: because it got the next event, or consumed more entries.
fn is_after(arm: CqArm, earlier: CqArm) -> bool {
    match arm.sequence().wrapping_sub(earlier.sequence()) & 3 {
        0 => {
            (1..1 << 23).contains(&(arm.consumer_index().wrapping_sub(earlier.consumer_index()) & 0xff_ffff))
        }
        1 => true,
        // Before it, not after it: the card cannot be two events behind.
        _ => false,
    }
}

#[cfg(test)]
mod tests;

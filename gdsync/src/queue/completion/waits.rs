//! Ending waits that nothing satisfies: for sends for which the card was not rung, of failed queue pairs. Receives
//! of shared queues, which may complete in any of several completion queues: each has room for all of them.
//! Attaching a completion queue to a device.

use crate::memory::{HostAddr, Timeline};
use crate::queue::completion::{CompletionState, RawCompletion, Slot};
use crate::queue::shared::Credits;
use crate::queue::{ENTRY_WORDS, QueueError};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, LAST_DWORD, Syndrome};
use gdsync_sys::prm::doorbell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl CompletionState {
    /// Returns whether entry `index` waits for unposted sends, if only one queue pair's sends complete here,
    /// `unposted` of them not posted.
    pub(crate) fn is_of_unposted(&self, index: u32, unposted: u32) -> bool {
        unposted > 0 && index.wrapping_sub(self.first_of_unposted(unposted)) <= i32::MAX as u32
    }

    fn first_of_unposted(&self, unposted: u32) -> u32 {
        self.polled.wrapping_add(self.expected.saturating_sub(unposted))
    }

    /// Returns the first such entry that a stream waits for: the stream of that timeline, or any stream.
    pub(crate) fn awaited_of_unposted(&self, unposted: u32, timeline: Option<&Arc<Timeline>>) -> Option<u32> {
        if unposted == 0 {
            return None;
        }
        let first = self.first_of_unposted(unposted);
        let slots = self.slots.iter().skip(first.wrapping_sub(self.recycled) as usize);
        let waits = slots.map(|slot| match slot {
            Slot::Posted(on, point) => {
                timeline.is_none_or(|timeline| Arc::ptr_eq(on, timeline)) && !on.has_passed(*point)
            }
            Slot::Free | Slot::Left | Slot::Prepared => false,
        });
        (0..).zip(waits).find_map(|(position, waits)| waits.then(|| first.wrapping_add(position)))
    }

    /// Ends waits for sends for which the card was not rung. All queue pairs that complete here are in the error
    /// state, and a stream has not rung for some sends. `rung` has each queue pair's number, and for how many of
    /// its signaled sends the card was rung; it was not for `unrung` signaled sends. Ends that many waits, behind
    /// the completions of rung sends: the stream may be at one of them, or behind another stream that is.
    ///
    /// Also ends all waits for receives of shared queues, from which the queue pairs `sharing` take no more.
    ///
    /// The entries get the owner bit that streams wait for, and stay invalid: polling does not skip them, and the
    /// card writes them when the stream has rung.
    pub(crate) fn end_waits(&self, rung: &[(u32, u32)], unrung: u32, sharing: &[u32]) {
        // Without an atomic exchange, which GPU memory does not have, the CPU could overwrite an entry that the
        // card writes at the same moment.
        if self.attached.is_some() || self.ring.combined {
            return;
        }
        let mut index = self.polled;
        let (mut written, mut shared) = (vec![0; rung.len()], 0);
        while let Some(entry) = self.read(index) {
            shared += u32::from(self.is_receive_of(sharing, &entry));
            for ((qpn, _), written) in rung.iter().zip(&mut written) {
                *written += u32::from(self.is_send_of(*qpn, &entry));
            }
            index = index.wrapping_add(1);
        }
        // The card is still working on rung sends, or on receives. The next attempt finds them flushed.
        let is_behind = rung.iter().zip(&written).any(|((_, rung), written)| written < rung);
        if is_behind || index.wrapping_sub(self.polled) + unrung < self.expected + shared {
            return;
        }
        // Any further waits are for receives of shared queues.
        let waits = self.waits_ahead().saturating_sub(index.wrapping_sub(self.polled));
        let ended = if sharing.is_empty() { unrung } else { waits };
        for index in (0..ended).map(|position| index.wrapping_add(position)) {
            let slot = self.slots.get(index.wrapping_sub(self.recycled) as usize);
            // A collector may wait for an entry that is left.
            if slot.is_some_and(|slot| slot.is_standing() || matches!(slot, Slot::Left)) {
                self.end_wait(index);
            }
        }
    }

    /// Returns whether streams wait for unwritten entries, and their waits were not ended.
    pub(crate) fn has_waits_to_end(&self) -> bool {
        let ahead = self.slots.iter().zip(0..).skip(self.unrecycled() as usize);
        let mut waits = ahead.filter(|(slot, _)| slot.is_standing());
        waits.any(|(_, position)| !self.has_come(self.recycled.wrapping_add(position)))
    }

    fn is_send_of(&self, qpn: u32, entry: &RawCompletion) -> bool {
        let opcode = entry.cqe.opcode();
        matches!(opcode, Ok(CqeOpcode::Requester | CqeOpcode::RequesterError))
            && entry.cqe.qpn() == qpn
            && !self.orphaned.contains(&entry.index)
    }

    fn end_wait(&self, index: u32) {
        let word = self.ring.word(index, LAST_DWORD);
        let before = word.load(Ordering::Relaxed);
        let [low, high, signature, op_own] = before.to_ne_bytes();
        if !self.has_owner(index, op_own) {
            let released = (CqeOpcode::Invalid as u8) << 4 | u8::from(self.owner_of(index));
            let after = u32::from_ne_bytes([low, high, signature, released]);
            // If the card writes the entry first, its entry stays, and ends the wait.
            let _ = word.compare_exchange(before, after, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Returns whether [`Self::end_waits`] has ended the waits for an entry that the card has not written.
    pub(crate) fn is_wait_ended(&self, index: u32) -> bool {
        let [.., op_own] = self.ring.word(index, LAST_DWORD).load(Ordering::Acquire).to_ne_bytes();
        self.has_owner(index, op_own) && op_own >> 4 == CqeOpcode::Invalid as u8
    }

    /// Handles the loss of the queue: the card has reported that it writes nothing here any more. The CPU writes
    /// the entries that streams wait for, now and for later waits, so that the streams continue. Polling does not
    /// return these entries.
    pub(crate) fn lose(&mut self) {
        if self.lost_from.is_some() {
            return;
        }
        let mut first = self.polled;
        while self.is_written(first) && first.wrapping_sub(self.polled) < self.entries() {
            first = first.wrapping_add(1);
        }
        self.lost_from = Some(first);
        for position in 0..self.slots.len() {
            if matches!(self.slots[position], Slot::Posted(..)) {
                self.wake_lost(self.recycled.wrapping_add(position as u32));
            }
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost_from.is_some()
    }

    /// Returns whether the card may count no more entries for WAITs: on some cards, none after an error entry.
    pub(crate) fn may_hold_waits(&self) -> bool {
        self.is_lost() || self.has_errors
    }

    /// Returns true for entries that the card has not written and never will.
    pub(super) fn is_beyond(&self, index: u32) -> bool {
        self.lost_from.is_some_and(|first| index.wrapping_sub(first) <= i32::MAX as u32)
    }

    pub(super) fn wake_lost(&mut self, index: u32) {
        if self.is_beyond(index) {
            let cqe = Cqe64::error(CqeOpcode::RequesterError, 0, 0, 0, Syndrome::WrFlush, 0);
            let cqe = cqe.with_owner(self.owner_of(index));
            // The last word last, as a stream may be reading it.
            for (i, word) in cqe.as_bytes().chunks_exact(4).enumerate() {
                if i == ENTRY_WORDS - 1 {
                    self.ring.drain();
                }
                let word = word.try_into().map_or(0, u32::from_ne_bytes);
                self.ring.word(index, i * 4).store(word, Ordering::Release);
            }
            self.ring.drain();
        }
    }
}

/// The receives of a shared queue, and the queue pairs that take them and complete here.
#[derive(Debug)]
pub(super) struct Shared {
    credits: Arc<Credits>,
    queue_pairs: u32,
}

impl CompletionState {
    /// Adds a queue pair that takes from a shared queue. Returns false if there is no room for the posted receives.
    pub(crate) fn add_credits(&mut self, credits: &Arc<Credits>) -> bool {
        match self.shared.iter_mut().find(|known| Arc::ptr_eq(&known.credits, credits)) {
            Some(known) => known.queue_pairs += 1,
            None => self.shared.push(Shared { credits: credits.clone(), queue_pairs: 1 }),
        }
        self.sure_room = 0;
        self.reopen_ended_waits();
        self.check_not_overbooked().is_ok()
    }

    pub(crate) fn remove_credits(&mut self, credits: &Arc<Credits>) {
        if let Some(known) = self.shared.iter_mut().find(|known| Arc::ptr_eq(&known.credits, credits)) {
            known.queue_pairs -= 1;
        }
        self.shared.retain(|known| known.queue_pairs > 0);
        if self.shared.is_empty() {
            self.sure_room = self.entries();
        }
    }

    /// Returns the number of shared queues' receives that may complete here.
    pub(super) fn shared_receives(&self) -> u32 {
        self.shared.iter().map(|shared| shared.credits.posted()).sum()
    }

    /// Checks that everything that may complete here has room, including a receive that was just counted.
    pub(crate) fn check_not_overbooked(&mut self) -> Result<(), QueueError> {
        if self.taken() > self.entries() { self.make_room(0) } else { Ok(()) }
    }

    /// Returns the number of unpolled entries of a queue pair.
    pub(crate) fn unpolled_of(&self, qpn: u32) -> u32 {
        let written = (0..self.entries()).map_while(|i| self.read(self.polled.wrapping_add(i)));
        written.filter(|entry| self.is_live_of(entry, qpn)).count() as u32
    }

    pub(super) fn is_live_of(&self, entry: &RawCompletion, qpn: u32) -> bool {
        entry.cqe.qpn() == qpn && !self.orphaned.contains(&entry.index)
    }

    pub(super) fn is_receive_of(&self, queue_pairs: &[u32], entry: &RawCompletion) -> bool {
        let is_send = matches!(entry.cqe.opcode(), Ok(CqeOpcode::Requester | CqeOpcode::RequesterError));
        !is_send && queue_pairs.iter().any(|qpn| self.is_live_of(entry, *qpn))
    }

    /// Returns whether streams have not passed some of the newest waits, which were ended as all queue pairs had failed.
    pub(crate) fn has_ended_waits_to_pass(&self) -> bool {
        let newest = (0..self.waits_ahead()).zip(self.slots.iter().rev());
        let mut ended =
            newest.take_while(|(back, _)| self.is_wait_ended(self.next_wait().wrapping_sub(back + 1)));
        ended.any(|(_, slot)| slot.is_standing())
    }

    /// Reopens such waits for a new queue pair: the newest entries that streams have passed and the card has not
    /// written can be waited for again.
    pub(crate) fn reopen_ended_waits(&mut self) {
        while self.waits_ahead() > 0 {
            let last = self.next_wait().wrapping_sub(1);
            if !self.is_wait_ended(last) || self.slots.back().is_some_and(Slot::is_standing) {
                return;
            }
            let word = self.ring.word(last, LAST_DWORD);
            let before = word.load(Ordering::Relaxed);
            let [low, high, signature, op_own] = before.to_ne_bytes();
            let after = u32::from_ne_bytes([low, high, signature, op_own ^ 1]);
            if word.compare_exchange(before, after, Ordering::Release, Ordering::Relaxed).is_err() {
                // The card has just written it.
                return;
            }
            self.slots.pop_back();
            self.reopened = self.reopened.wrapping_add(1);
        }
    }
}

/// Addresses of a completion queue, and its next entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedCompletions {
    pub(crate) ring: HostAddr,
    pub(crate) entries: u32,
    pub(crate) record: HostAddr,
    pub(crate) next: u32,
}

/// Why a completion queue cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Completions that are expected, or were not polled.
    Completions(u32),
    /// Waits that streams have not passed, or that are only prepared.
    Waits(u32),
}

impl CompletionState {
    /// Attaches the queue to kernels that post to queue pair `qpn`: until [`Self::detach`], only they take entries,
    /// and no other queue pair can complete here.
    pub(crate) fn attach(&mut self, qpn: u32) -> Result<BorrowedCompletions, Unread> {
        self.recycle();
        if self.reserved > 0 {
            return Err(Unread::Completions(self.reserved));
        }
        if self.unrecycled() > 0 || !self.slots.is_empty() {
            return Err(Unread::Waits(self.slots.len() as u32));
        }
        self.attached = Some(qpn);
        // With all places taken, a caller that reserves one gets an error with the reason.
        self.reserved = self.entries();
        self.ring.drain();
        Ok(BorrowedCompletions {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            entries: self.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            next: self.polled,
        })
    }

    /// Returns the entry `index` of an attached queue, if the card has written it.
    pub(crate) fn read_attached(&self, index: u32) -> Option<RawCompletion> {
        if self.is_beyond(index) { None } else { self.read(index) }
    }

    pub(crate) fn recycle_attached(&self, index: u32) {
        self.ring.publish(doorbell::ci_record(index));
    }

    /// Detaches the queue. Entry `next` is the first that was not read.
    pub(crate) fn detach(&mut self, next: u32) {
        (self.polled, self.recycled, self.reserved, self.attached) = (next, next, 0, None);
    }
}

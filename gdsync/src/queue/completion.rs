//! The state of a completion queue: entries, the CPU's position, and the slots that streams have not read yet.

mod waits;

pub(crate) use waits::{BorrowedCompletions, Unread};

use self::waits::Shared;

use crate::memory::{HostAddr, Timeline, TimelinePoint};
use crate::queue::outcome::outcome;
use crate::queue::{
    Completion, ENTRY_WORDS, OrderError, PeerOp, PollError, QueueError, QueueFull, Ring, StateError,
};
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode, LAST_DWORD, OP_OWN_INVALID, OWNER_MASK_DWORD, Syndrome};
use gdsync_sys::prm::doorbell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::FromBytes;

/// An entry as read from the ring, not matched with its work request yet.
#[derive(Debug)]
pub(crate) struct RawCompletion {
    pub(crate) index: u32,
    pub(crate) cqe: Cqe64,
}

/// The reader of an entry besides the CPU.
#[derive(Debug)]
pub(crate) enum Slot {
    Free,
    /// Not for a wait: the CPU or a collector takes the entry.
    Left,
    Prepared,
    Posted(Arc<Timeline>, TimelinePoint),
}

impl Slot {
    /// Returns true for a posted wait that its stream has not passed.
    #[inline]
    fn is_standing(&self) -> bool {
        matches!(self, Slot::Posted(timeline, point) if !timeline.has_passed(*point))
    }
}

/// The state of one completion queue, under its lock.
///
/// Entries are counted from 0 on, modulo 2^32; entry `n` is in ring slot `n % entries`. `recycled <= polled <=
/// next_wait`, except that `next_wait` lags behind `polled` if no wait is prepared.
#[derive(Debug)]
pub(crate) struct CompletionState {
    ring: Ring,
    /// The next entry that the CPU reads.
    polled: u32,
    /// Entries before this one have returned to the card.
    recycled: u32,
    slots: VecDeque<Slot>,
    /// Completions that will certainly come: signaled sends, or receives, not retired yet.
    expected: u32,
    /// Work requests that may complete here, not retired yet, including unsignaled sends, which complete on an error.
    reserved: u32,
    /// Entries of destroyed queue pairs, not polled yet: polling skips them.
    orphaned: VecDeque<u32>,
    /// Shared receive queues of queue pairs that complete here.
    shared: Vec<Shared>,
    /// A post that finds fewer entries taken, without shared receives, has room. All entries, or 0 with shared
    /// receives.
    sure_room: u32,
    /// The first entry that the card has not written, set once it writes nothing here any more.
    lost_from: Option<u32>,
    /// True after an error entry.
    pub(crate) has_errors: bool,
    /// Number of ended waits that were opened again. Entries that were awaited before and are not written never come.
    pub(crate) reopened: u32,
    /// The queue pair for which a kernel reads the queue.
    pub(crate) attached: Option<u32>,
    /// Completions read for persistent requests, which the next poll returns.
    pub(crate) set_aside: VecDeque<Result<Completion, PollError>>,
}

impl CompletionState {
    /// Takes over a ring that the card has not written yet, and makes every entry invalid with owner bit 1. libmlx5
    /// leaves owner 0, which a stream waiting for owner 0 would take for a completion.
    pub(crate) fn new(ring: Ring) -> Self {
        // The word is not read before: in GPU memory, that takes two microseconds.
        let invalid = u32::from_ne_bytes([0, 0, 0, OP_OWN_INVALID]);
        for index in 0..ring.entries() {
            ring.word(index, LAST_DWORD).store(invalid, Ordering::Release);
        }
        ring.drain();
        CompletionState {
            sure_room: ring.entries(),
            ring,
            polled: 0,
            recycled: 0,
            slots: VecDeque::new(),
            expected: 0,
            reserved: 0,
            orphaned: VecDeque::new(),
            shared: Vec::new(),
            lost_from: None,
            has_errors: false,
            reopened: 0,
            attached: None,
            set_aside: VecDeque::new(),
        }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Reserves an entry for one more work request, so that the ring cannot overrun.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, signaled: bool) -> Result<(), QueueError> {
        if self.taken_alone() >= self.sure_room {
            self.make_room(1)?;
        }
        self.reserved += 1;
        self.expected += u32::from(signaled);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, requests: u32) -> Result<(), QueueError> {
        self.check_not_attached()?;
        self.recycle();
        if self.has_room(requests) {
            return Ok(());
        }
        Err(match self.slots.front() {
            Some(Slot::Posted(timeline, point)) if self.unrecycled() > 0 => {
                QueueError::Full(QueueFull::Stream(timeline.blocked_on(*point)))
            }
            Some(Slot::Prepared) if self.unrecycled() > 0 => QueueError::Full(QueueFull::PreparedWait),
            _ => QueueError::Full(QueueFull::CompletionQueue { entries: self.entries() }),
        })
    }

    pub(crate) fn next_to_poll(&self) -> Result<u32, StateError> {
        self.check_not_attached().map(|()| self.polled)
    }

    fn check_not_attached(&self) -> Result<(), StateError> {
        self.attached.map_or(Ok(()), |qpn| Err(StateError::DeviceAttached { qpn }))
    }

    /// Unreserves an entry: its work request retired, or was never given to the card.
    pub(crate) fn unreserve(&mut self, signaled: bool) {
        self.reserved = self.reserved.saturating_sub(1);
        self.expected = self.expected.saturating_sub(signaled.into());
    }

    /// Removes a destroyed queue pair: the card writes no more of its entries, and its number may be reused.
    /// Entries in the ring keep their places, for streams that wait for them, and [`Self::take_orphaned`] skips
    /// them. Returns the counters of its receives among them.
    pub(crate) fn forget(&mut self, qpn: u32) -> Vec<u16> {
        self.drop_set_aside(qpn);
        self.orphan_entries(qpn)
    }

    pub(crate) fn drop_set_aside(&mut self, qpn: u32) {
        self.set_aside.retain(|taken| !matches!(taken, Ok(completion) if completion.qp_num == qpn));
    }

    /// Orphans the unpolled entries of a destroyed queue pair. Returns the counters of its receives among them.
    pub(crate) fn orphan_entries(&mut self, qpn: u32) -> Vec<u16> {
        let mut receives = Vec::new();
        let mut index = self.polled;
        while let Some(entry) = self.read(index) {
            if self.is_live_of(&entry, qpn) {
                if self.is_receive_of(&[qpn], &entry) {
                    receives.push(entry.cqe.wqe_counter());
                }
                self.has_errors |= outcome(&entry.cqe).is_err();
                self.orphaned.push_back(index);
                self.reserved += 1;
                self.expected += 1;
            }
            index = index.wrapping_add(1);
        }
        receives
    }

    /// Returns whether the entry at `index` is orphaned, and forgets that.
    pub(crate) fn take_orphaned(&mut self, index: u32) -> bool {
        let Some(position) = self.orphaned.iter().position(|known| *known == index) else { return false };
        self.orphaned.remove(position);
        self.unreserve(true);
        true
    }

    /// Returns the entries that are not available to other work requests.
    fn taken(&self) -> u32 {
        self.taken_alone() + self.shared_receives()
    }

    /// Returns the same without shared receives. Set-aside completions count: a program that does not poll is
    /// refused as if there were no persistent requests.
    #[inline(always)]
    fn taken_alone(&self) -> u32 {
        self.unrecycled() + self.reserved + self.set_aside.len() as u32
    }

    pub(crate) fn has_room(&self, requests: u32) -> bool {
        self.taken().saturating_add(requests) <= self.entries()
    }

    fn unrecycled(&self) -> u32 {
        self.polled.wrapping_sub(self.recycled)
    }

    fn next_wait(&self) -> u32 {
        let after_slots = self.recycled.wrapping_add(self.slots.len() as u32);
        if (self.slots.len() as u32) < self.unrecycled() { self.polled } else { after_slots }
    }

    pub(crate) fn waits_ahead(&self) -> u32 {
        self.next_wait().wrapping_sub(self.polled)
    }

    /// Returns whether a wait needs the completion of the newest signaled work request, not counting the last
    /// `removed`.
    pub(crate) fn newest_is_awaited(&self, removed: u32) -> bool {
        self.waits_ahead() + removed >= self.expected
    }

    /// Makes the card find the queue full.
    #[cfg(test)]
    pub(crate) fn spoil_consumer_index(&self) {
        self.ring.publish(doorbell::ci_record(self.recycled.wrapping_add(1)));
    }

    /// Returns the entry of the last reserved work request, if all complete in order and are signaled.
    pub(crate) fn newest_booked(&self) -> u32 {
        self.polled.wrapping_add(self.expected).wrapping_sub(1)
    }

    /// Takes an unpolled entry for a wait, if neither it nor a later one has a wait. `skips` gets the first entry
    /// without a wait, and must agree that none is needed from there to `index`.
    pub(crate) fn prepare_wait_for(&mut self, index: u32, skips: impl FnOnce(u32) -> bool) -> bool {
        let next = self.next_wait();
        let is_ahead = index.wrapping_sub(next) <= i32::MAX as u32;
        let is_booked = index.wrapping_sub(self.polled) < self.expected;
        if self.attached.is_some() || !is_ahead || !is_booked || !skips(next) {
            return false;
        }
        self.take_slot(index);
        true
    }

    /// Takes the next entry without a wait.
    pub(crate) fn prepare_wait(&mut self) -> Result<u32, QueueError> {
        self.check_not_attached()?;
        if self.waits_ahead() >= self.expected + self.shared_receives() {
            return Err(QueueError::Order(OrderError::NothingToWaitFor { waits: self.waits_ahead() }));
        }
        let index = self.next_wait();
        self.take_slot(index);
        Ok(index)
    }

    fn take_slot(&mut self, index: u32) {
        while self.recycled.wrapping_add(self.slots.len() as u32) != index {
            self.slots.push_back(Slot::Free);
        }
        self.slots.push_back(Slot::Prepared);
    }

    /// Undoes [`Self::prepare_wait`] for a wait that was not posted. The newest entry can be waited for again; no
    /// stream reads another.
    pub(crate) fn cancel_wait(&mut self, index: u32) {
        self.set_slot(index, Slot::Free);
        while self.waits_ahead() > 0 && matches!(self.slots.back(), Some(Slot::Free)) {
            self.slots.pop_back();
        }
        self.recycle();
    }

    /// Records that the wait for `index` was posted on a stream.
    pub(crate) fn post_wait(&mut self, index: u32, timeline: &Arc<Timeline>, point: TimelinePoint) {
        self.set_slot(index, Slot::Posted(timeline.clone(), point));
        if self.is_lost() {
            self.wake_lost(index);
        }
    }

    pub(crate) fn set_slot(&mut self, index: u32, slot: Slot) {
        if let Some(place) = self.slots.get_mut(index.wrapping_sub(self.recycled) as usize) {
            *place = slot;
        }
    }

    /// Returns whether streams have not passed posted waits.
    pub(crate) fn has_posted_waits(&self) -> bool {
        self.slots.iter().any(Slot::is_standing)
    }

    /// Returns the unwritten entries that streams wait for, oldest first, with the waits' points.
    pub(crate) fn open_waits(&self) -> impl Iterator<Item = (u32, &Timeline, TimelinePoint)> {
        self.slots.iter().zip(0..).filter_map(|(slot, place)| {
            let Slot::Posted(timeline, point) = slot else { return None };
            let index = self.recycled.wrapping_add(place);
            let is_open = !timeline.has_passed(*point) && !self.has_come(index);
            is_open.then_some((index, &**timeline, *point))
        })
    }

    /// Returns the operation by which a stream waits for entry `index`.
    ///
    /// It is never "greater or equal" on the dword, as in libgdsync: error opcodes have the top bit set and would
    /// not satisfy it, and a stale entry of an earlier lap would.
    pub(crate) fn wait_op(&self, index: u32) -> PeerOp {
        let word = self.ring.word(index, LAST_DWORD);
        let addr = HostAddr(word.as_ptr() as u64);
        let mask = OWNER_MASK_DWORD;
        if self.owner_of(index) {
            PeerOp::PollAnd { addr, value: mask }
        } else {
            PeerOp::PollNor { addr, value: !mask }
        }
    }

    fn owner_of(&self, index: u32) -> bool {
        (index >> self.entries().trailing_zeros()) & 1 == 1
    }

    /// Returns whether an entry that has not returned to the card holds a completion.
    fn is_written(&self, index: u32) -> bool {
        let [.., op_own] = self.ring.word(index, LAST_DWORD).load(Ordering::Acquire).to_ne_bytes();
        self.has_owner(index, op_own) && op_own >> 4 != CqeOpcode::Invalid as u8
    }

    /// Returns whether `op_own` has the owner bit that streams wait for in entry `index`.
    fn has_owner(&self, index: u32, op_own: u8) -> bool {
        (op_own & 1 == 1) == self.owner_of(index)
    }

    /// Returns whether an entry was polled and has returned to the card.
    pub(crate) fn is_recycled(&self, index: u32) -> bool {
        index.wrapping_sub(self.recycled) > i32::MAX as u32
    }

    /// Returns whether a stream passes a wait for an entry: it was written, perhaps also polled and returned to the
    /// card, or the wait was ended.
    pub(crate) fn has_come(&self, index: u32) -> bool {
        self.is_recycled(index) || self.is_written(index) || self.is_wait_ended(index)
    }

    /// Reads the next entry, if the card has written it. Does not move past it.
    pub(crate) fn peek(&self) -> Option<RawCompletion> {
        if self.is_lost() && self.is_beyond(self.polled) {
            return None;
        }
        self.read(self.polled)
    }

    /// Reads an entry that has not returned to the card, if it was written.
    pub(crate) fn read(&self, index: u32) -> Option<RawCompletion> {
        if !self.is_written(index) {
            return None;
        }
        // 64 bytes for a type of 64 bytes without alignment: cannot fail.
        let cqe = Cqe64::read_from_bytes(&self.bytes(index)).ok()?;
        Some(RawCompletion { index, cqe })
    }

    /// Returns the bytes that the ring holds at an index.
    pub(crate) fn bytes(&self, index: u32) -> [u8; ENTRY_WORDS * 4] {
        let mut bytes = [0u8; ENTRY_WORDS * 4];
        for (to, word) in bytes.chunks_exact_mut(4).zip(self.ring.entry(index)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the first unpolled entry in which a queue pair's own work failed, rather than being flushed.
    pub(crate) fn first_failure(&self, qpn: u32) -> Option<Cqe64> {
        if self.attached.is_some() {
            // The kernel reads the queue, and reports its errors.
            return None;
        }
        let indices = (0..self.entries()).map(|i| self.polled.wrapping_add(i));
        let written = indices
            .map_while(|index| if self.is_lost() && self.is_beyond(index) { None } else { self.read(index) })
            .filter(|entry| !self.orphaned.contains(&entry.index));
        let mut failures = written.map(|entry| entry.cqe).filter(|cqe| {
            let failed = matches!(cqe.opcode(), Ok(CqeOpcode::RequesterError | CqeOpcode::ResponderError));
            failed && cqe.qpn() == qpn && cqe.raw_syndrome() != Syndrome::WrFlush as u8
        });
        failures.next()
    }

    /// Returns true for polled and orphaned entries, which do not show the present state of their queue pair.
    pub(crate) fn is_history(&self, index: u32) -> bool {
        let passed = self.polled.wrapping_sub(index);
        (passed != 0 && passed <= i32::MAX as u32) || self.orphaned.contains(&index)
    }

    /// Returns whether a stream has not read the next entry to be polled, or a wait for it is prepared.
    pub(crate) fn is_awaited(&self) -> bool {
        match self.slots.get(self.unrecycled() as usize) {
            Some(Slot::Prepared) => true,
            Some(Slot::Posted(timeline, point)) => !timeline.has_passed(*point),
            _ => false,
        }
    }

    /// Gives a prepared wait up, and leaves its entry to the CPU: unlike [`Self::cancel_wait`], the next wait is
    /// not for it.
    pub(crate) fn leave_completion_to_cpu(&mut self, index: u32) {
        self.set_slot(index, Slot::Left);
        self.recycle();
    }

    /// Moves past the entry that [`Self::peek`] returned.
    pub(crate) fn advance(&mut self) {
        self.polled = self.polled.wrapping_add(1);
        self.recycle();
    }

    /// Returns polled entries to the card, up to the first that a stream has not read.
    fn recycle(&mut self) {
        let before = self.recycled;
        while self.recycled != self.polled {
            match self.slots.front() {
                Some(Slot::Prepared) => break,
                Some(slot) if slot.is_standing() => break,
                _ => {
                    self.slots.pop_front();
                    self.recycled = self.recycled.wrapping_add(1);
                }
            }
        }
        if self.recycled != before {
            self.ring.publish(doorbell::ci_record(self.recycled));
        }
    }
}

#[cfg(test)]
mod tests;

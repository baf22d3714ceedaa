//! Sends that are dropped before they are posted, or flushed by a card after a failure, and the restart
//! of their queue; and a send queue that is attached to a device.

use crate::memory::HostAddr;
use crate::queue::send::{Entry, Handover, Removed, SendState, State};
use crate::queue::{Doorbell, ResetBlocker};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode, SEGMENT};
use std::sync::atomic::Ordering;

impl SendState {
    /// Takes a prepared send back: out of the ring where it is the newest, a NOP in its place
    /// otherwise.
    ///
    /// A wait that was prepared for its completion must still be satisfied: then it stays as a NOP,
    /// too (`awaited`); and so does a send that the card has already. Returns what was taken out of
    /// the ring.
    pub(crate) fn cancel(&mut self, serial: u64, awaited: impl Fn(u32) -> bool) -> Removed {
        let mut removed = Removed::default();
        let Some(position) = self.position(serial) else { return removed };
        if self.entries[position].state != State::Prepared {
            return removed;
        }
        self.entries[position].state = State::Hidden;
        self.claims.forget(serial);
        // What the card has stays.
        while self.handover == Handover::Doorbells
            && let Some(newest) = self.entries.back()
        {
            if newest.state != State::Hidden || (newest.signaled && awaited(removed.signaled)) {
                break;
            }
            removed.entries += 1;
            removed.signaled += u32::from(newest.signaled);
            self.head = newest.first;
            self.entries.pop_back();
        }
        if let Some(position) = self.position(serial) {
            self.write_nop(position);
            // So are the WAITs in front of it that a stream would have rung for: what follows does not wait in its place.
            // (Further ones are of sends that were dropped, and NOPs already.)
            if self.handover == Handover::Doorbells {
                let hidden = |before: &usize| self.entries[*before].state == State::Hidden;
                let first = (0..position).rev().take_while(hidden).last().unwrap_or(position);
                (first..position).for_each(|before| self.write_nop(before));
            }
        }
        // A serial number that went with its entry comes again.
        self.next_to_post = self.next_to_post.min(self.first_serial + self.entries.len() as u64);
        self.skip_unprepared();
        removed
    }

    /// Turns an entry into a NOP where it stands: only opcode and opmod change, so that size and
    /// completion stay (libmlx5's `mlx5dv_qp_cancel_posted_send_wrs` does the same).
    fn write_nop(&mut self, position: usize) {
        let first = self.entries[position].first;
        let ctrl = CtrlSeg::new(Opcode::Nop, first as u16, 0, 0, CtrlFlags::empty(), [0; 4]);
        let [word, ..]: [u32; SEGMENT / 4] = zerocopy::transmute!(ctrl);
        // In one piece: the card may have been rung for it, and may be looking.
        self.ring.word(first, 0).store(word, Ordering::Release);
        self.ring.drain();
    }

    /// Everything was handed to the card after the queue pair failed: nothing older may follow.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// In the error state: hands everything prepared to the card, which flushes it, so that no wait
    /// stays unsatisfied.
    ///
    /// Returns the doorbell to ring, or none where streams still have earlier sends to post (theirs
    /// would then run backwards), or nothing is left to hand over.
    pub(crate) fn flush(&mut self) -> Option<Doorbell> {
        let is_released = self.handover == Handover::Master;
        // No stream rings for what a master releases.
        if self.has_unpassed_posts() && !is_released {
            return None;
        }
        let newest = self.doorbell_of(self.entries.back()?);
        // A stream that failed may not have rung what it was given. A master may have failed itself,
        // and a card that has its SEND_EN may not flush for it.
        let perhaps_not_rung = is_released || self.unsettled().is_some_and(|last| last.timeline.is_dead());
        let all_posted = self.entries.iter().all(|entry| entry.state == State::Posted);
        if self.flushed || (all_posted && !perhaps_not_rung) {
            return None;
        }
        (self.flushed, self.guarded) = (true, true);
        for entry in &mut self.entries {
            if entry.state == State::Prepared {
                entry.state = State::Withheld;
            }
        }
        self.skip_unprepared();
        Some(newest)
    }

    /// What prevents a restart of the queue.
    ///
    /// `failed`: the card takes no more work, and completes what it has. Waiting is then useless
    /// for sends that asked for no completion, if that is all there is: it was done before the
    /// failure. Completions of WAITs and of dropped sends matter only where a wait may be for them
    /// (`awaited`): the program does not see them, and cannot know when they have come.
    pub(crate) fn blocker(&self, failed: bool, awaited: bool) -> Option<ResetBlocker> {
        if self.attached {
            return Some(ResetBlocker::Kernel);
        }
        match self.unsettled() {
            Some(last) if !last.timeline.has_passed(last.point) => {
                return Some(ResetBlocker::Stream(last.timeline.blocked_on(last.point)));
            }
            _ if self.proxied > 0 => return Some(ResetBlocker::Doorbells(self.proxied)),
            _ => {}
        }
        let is_silent = |entry: &Entry| match entry.state {
            State::Prepared => false,
            State::Posted | State::Withheld => failed && !entry.signaled,
            State::Hidden => failed && !(entry.signaled && awaited),
        };
        let is_drained = self.entries.iter().all(is_silent);
        (!is_drained).then_some(ResetBlocker::Sends(self.entries.len() as u32))
    }

    /// Restarts the queue after the card was reset: block 0 is next. Serial numbers continue, so
    /// that a send prepared before is known as such.
    pub(crate) fn reset(&mut self) {
        self.first_serial += self.entries.len() as u64;
        let kept = self.entries.drain(..).filter(Entry::is_kept).count();
        self.next_to_post = self.next_to_post.max(self.first_serial);
        (self.head, self.tail) = (0, 0);
        self.keeper.retire(kept as u64);
        self.last_post = None;
        (self.flushed, self.guarded, self.is_released) = (false, false, false);
        self.ring.publish(0);
    }
}

/// The addresses of a send queue, and its next block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedSends {
    pub(crate) ring: HostAddr,
    /// 64-byte blocks of the ring.
    pub(crate) blocks: u32,
    pub(crate) record: HostAddr,
    pub(crate) register: HostAddr,
    /// The next block.
    pub(crate) head: u32,
}

impl SendState {
    /// Attaches the queue: until [`Self::detach`], only kernels post to it.
    ///
    /// # Errors
    /// How many sends are prepared or have not completed.
    pub(crate) fn attach(&mut self) -> Result<BorrowedSends, u32> {
        // If all have completed, all doorbells for them have rung.
        if !self.entries.is_empty() {
            return Err(self.entries.len() as u32);
        }
        self.attached = true;
        // The blocks of withdrawn sends must not reach memory after what the kernel writes.
        self.ring.drain();
        Ok(BorrowedSends {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            blocks: self.ring.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            register: self.register,
            head: self.head,
        })
    }

    /// Detaches the queue, in which everything has completed: block `head` is next.
    pub(crate) fn detach(&mut self, head: u32) {
        (self.head, self.tail, self.attached) = (head, head, false);
    }

    /// The doorbell for the blocks before `end` that a kernel has written, each of them a request;
    /// `None` if the queue is not attached.
    pub(crate) fn attached_doorbell(&self, end: u32) -> Option<Doorbell> {
        let value = self.ring.first_bytes(end.wrapping_sub(1));
        self.attached.then(|| self.doorbell(doorbell::record(end), value))
    }
}

//! From prepared to posted: sends are posted in the order of their preparation, and those of one queue on one
//! stream at a time. Dropped sends, the flush after a failure, the restart, and the queue's loan to kernels.

use crate::memory::{HostAddr, Timeline, TimelinePoint};
use crate::queue::send::{Entry, EntryState, Handover, Removed, SendState};
use crate::queue::{Doorbell, OrderError, QueueError, ResetBlocker};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode, SEGMENT};
use std::cmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the newest posted sends of a queue are.
#[derive(Debug)]
pub(crate) struct LastPost {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) point: TimelinePoint,
    /// The stream is known to have passed it, because the card has completed all that was posted,
    /// or the CPU has posted since.
    pub(super) settled: bool,
}

impl LastPost {
    #[inline]
    fn replace(&mut self, point: TimelinePoint) -> PreviousPoint {
        let replaced = PreviousPoint { point: self.point, settled: self.settled };
        (self.point, self.settled) = (point, false);
        replaced
    }

    /// Says in `last` that the newest post is on that timeline now, at `point`.
    #[inline]
    pub(crate) fn renew(
        last: &mut Option<LastPost>,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> PreviousPost {
        match last {
            Some(last) if Arc::ptr_eq(&last.timeline, timeline) => {
                PreviousPost::SameTimeline(last.replace(point))
            }
            other => PreviousPost::Other(other.replace(LastPost {
                timeline: timeline.clone(),
                point,
                settled: false,
            })),
        }
    }

    /// Undoes [`Self::renew`].
    pub(crate) fn restore(last: &mut Option<LastPost>, before: PreviousPost) {
        match (before, last) {
            (PreviousPost::SameTimeline(PreviousPoint { point, settled }), Some(last)) => {
                (last.point, last.settled) = (point, settled)
            }
            (PreviousPost::SameTimeline(_), None) => {}
            (PreviousPost::Other(before), now) => *now = before,
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn other_stream_error(&self, qpn: u32) -> QueueError {
        QueueError::Order(OrderError::OtherStream { qpn, blocked: self.timeline.blocked_on(self.point) })
    }
}

/// An earlier point of a timeline, and whether it was settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousPoint {
    pub(super) point: TimelinePoint,
    pub(super) settled: bool,
}

/// What posting a send has replaced, to undo it.
#[derive(Debug)]
pub(crate) enum PreviousPost {
    /// An earlier point of the same timeline.
    SameTimeline(PreviousPoint),
    /// Another timeline, or none.
    Other(Option<LastPost>),
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
    /// Marks a send as handed to a stream at `point`, after checking that it is the next to be
    /// posted.
    ///
    /// Returns what that has replaced, for [`Self::undo_post`].
    #[inline]
    pub(crate) fn post(
        &mut self,
        serial: u64,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<PreviousPost, QueueError> {
        self.check_next(serial)?;
        let qpn = self.qpn;
        let same = self.last_post.as_ref().is_some_and(|last| Arc::ptr_eq(&last.timeline, timeline));
        if let Some(last) = self.last_post.as_ref().filter(|last| !same && !last.settled)
            && (!last.timeline.has_passed(last.point) || self.proxied > 0)
        {
            return Err(last.other_stream_error(qpn));
        }
        self.mark_posted(serial);
        Ok(LastPost::renew(&mut self.last_post, timeline, point))
    }

    /// Refuses a send in front of which others are prepared, and one from before a reset.
    #[inline]
    pub(super) fn check_next(&self, serial: u64) -> Result<(), QueueError> {
        let (qpn, expected) = (self.qpn, self.next_to_post);
        match serial.cmp(&expected) {
            cmp::Ordering::Greater => {
                Err(QueueError::Order(OrderError::OutOfOrder { qpn, serial, expected }))
            }
            cmp::Ordering::Less => self.check_not_stale(serial),
            cmp::Ordering::Equal => Ok(()),
        }
    }

    /// Refuses a post of the CPU behind sends that are prepared and not posted, and as [`Self::settle`].
    pub(crate) fn check_turn_of_cpu(&mut self) -> Result<(), QueueError> {
        self.check_next(self.next_serial())?;
        self.settle()
    }

    /// Refuses a post of the CPU while a stream has still to ring for sends: its doorbell would announce those, too.
    #[inline(always)]
    pub(super) fn settle(&mut self) -> Result<(), QueueError> {
        if let Some(last) = self.last_post.as_mut().filter(|last| !last.settled) {
            if !last.timeline.has_passed(last.point) || self.proxied > 0 {
                return Err(last.other_stream_error(self.qpn));
            }
            last.settled = true;
        }
        Ok(())
    }

    /// Marks a send as posted by the program itself, in a way that the library does not see.
    pub(crate) fn mark_posted(&mut self, serial: u64) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = EntryState::Posted;
            self.skip_unprepared();
        }
    }

    /// Refuses a send from before a reset.
    pub(crate) fn check_not_stale(&self, serial: u64) -> Result<(), QueueError> {
        if serial < self.first_serial {
            return Err(QueueError::Order(OrderError::Stale { qpn: self.qpn, serial }));
        }
        Ok(())
    }

    /// As [`Self::post`], for the common case alone: the next send, on the timeline of the last
    /// one. Otherwise changes nothing.
    #[inline(always)]
    pub(crate) fn post_next(
        &mut self,
        serial: u64,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Option<PreviousPoint> {
        let position = serial.wrapping_sub(self.first_serial) as usize;
        let last = self.last_post.as_mut().filter(|last| Arc::ptr_eq(&last.timeline, timeline))?;
        if serial != self.next_to_post || self.guarded {
            return None;
        }
        let entry = self.entries.get_mut(position)?;
        entry.state = EntryState::Posted;
        let replaced = last.replace(point);
        self.next_to_post = serial + 1;
        if self.entries.get(position + 1).is_some_and(|next| next.state != EntryState::Prepared) {
            self.skip_unprepared();
        }
        Some(replaced)
    }

    /// Moves on to the next send that is prepared.
    #[inline]
    pub(super) fn skip_unprepared(&mut self) {
        self.next_to_post = self.next_to_post.max(self.first_serial);
        while let Some(position) = self.position(self.next_to_post) {
            if self.entries[position].state == EntryState::Prepared {
                return;
            }
            self.next_to_post += 1;
        }
    }

    /// The stream refused the batch: the send is only prepared again. A group is undone newest
    /// first.
    pub(crate) fn undo_post(&mut self, serial: u64, before: PreviousPost) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = EntryState::Prepared;
            self.next_to_post = self.next_to_post.min(serial);
            // A stream may wait for it.
            self.guarded = true;
        }
        LastPost::restore(&mut self.last_post, before);
    }

    /// A stream has still to ring for sends, or perhaps has.
    pub(crate) fn has_unpassed_posts(&self) -> bool {
        self.unsettled().is_some_and(|last| !last.timeline.has_passed(last.point))
    }

    /// Where the newest posted sends are, unless a stream is known to have passed them.
    pub(super) fn unsettled(&self) -> Option<&LastPost> {
        self.last_post.as_ref().filter(|last| !last.settled)
    }

    /// Sends that are to complete, and that no post has handed to a stream or to the card. They are
    /// behind all others.
    #[inline]
    pub(crate) fn unposted(&self) -> u32 {
        let behind = self.entries.iter().rev().take_while(|entry| !entry.state.is_given());
        behind.filter(|entry| entry.signaled).count() as u32
    }

    /// Whether posts have to look for waits that they must not follow.
    pub(crate) fn guard(&mut self, guarded: bool) {
        self.guarded = guarded || self.flushed;
    }

    /// A stream has still to ring for sends that are to complete.
    pub(crate) fn is_rung_later(&self) -> bool {
        self.has_unpassed_posts() && self.rung().1 > 0
    }

    /// Sends that are to complete: those for which the card was rung, as the record says, and those
    /// for which it was not.
    pub(crate) fn rung(&self) -> (u32, u32) {
        let record = doorbell::record_value(self.ring.record().load(Ordering::Acquire));
        let blocks = |end: u16| end.wrapping_sub(self.tail as u16);
        let signaled = self.entries.iter().filter(|entry| entry.signaled);
        let (rung, unrung): (Vec<_>, Vec<_>) =
            // For these, the CPU rings at once.
            signaled.partition(|entry| entry.is_kept() || blocks(entry.end() as u16) <= blocks(record));
        (rung.len() as u32, unrung.len() as u32)
    }

    /// Takes a prepared send back: out of the ring where it is the newest, a NOP in its place
    /// otherwise.
    ///
    /// A wait that was prepared for its completion must still be satisfied: then it stays as a NOP,
    /// too (`awaited`); and so does a send that the card has already. Returns what was taken out of
    /// the ring.
    pub(crate) fn cancel(&mut self, serial: u64, awaited: impl Fn(u32) -> bool) -> Removed {
        let mut removed = Removed::default();
        let Some(position) = self.position(serial) else { return removed };
        if self.entries[position].state != EntryState::Prepared {
            return removed;
        }
        self.entries[position].state = EntryState::Hidden;
        self.claims.forget(serial);
        // What the card has stays.
        while self.handover == Handover::Doorbells
            && let Some(newest) = self.entries.back()
        {
            if newest.state != EntryState::Hidden || (newest.signaled && awaited(removed.signaled)) {
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
                let hidden = |before: &usize| self.entries[*before].state == EntryState::Hidden;
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
        let all_posted = self.entries.iter().all(|entry| entry.state == EntryState::Posted);
        if self.flushed || (all_posted && !perhaps_not_rung) {
            return None;
        }
        (self.flushed, self.guarded) = (true, true);
        for entry in &mut self.entries {
            if entry.state == EntryState::Prepared {
                entry.state = EntryState::FlushedUnposted;
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
            EntryState::Prepared => false,
            EntryState::Posted | EntryState::FlushedUnposted => failed && !entry.signaled,
            EntryState::Hidden => failed && !(entry.signaled && awaited),
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
        (self.flushed, self.guarded, self.is_masters) = (false, false, false);
        self.ring.publish(0);
    }

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

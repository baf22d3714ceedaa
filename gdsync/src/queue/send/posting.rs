//! From prepared to posted: sends are posted in the order of their preparation, and those of one queue on one stream at
//! a time. Also dropped sends, the flush after a failure, the restart, and attaching the queue to kernels.

use crate::memory::{HostAddr, Timeline, TimelinePoint};
use crate::queue::send::{Entry, EntryState, Handover, Removed, SendState};
use crate::queue::{Doorbell, OrderError, QueueError, ResetBlocker};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::{CtrlFlags, CtrlSeg, Opcode, SEGMENT};
use std::cmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[derive(Debug)]
pub(crate) struct LastPost {
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) point: TimelinePoint,
    /// True if the stream is known to have passed it: the card has completed all posts, or the CPU has posted since.
    pub(super) settled: bool,
}

impl LastPost {
    #[inline]
    fn replace(&mut self, point: TimelinePoint) -> PreviousPoint {
        let replaced = PreviousPoint { point: self.point, settled: self.settled };
        (self.point, self.settled) = (point, false);
        replaced
    }

    /// Records in `last` a post on that timeline at `point`. Returns the previous one.
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

/// The previous post, for an undo.
#[derive(Debug)]
pub(crate) enum PreviousPost {
    SameTimeline(PreviousPoint),
    Other(Option<LastPost>),
}

/// Addresses of a send queue, and its next block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BorrowedSends {
    pub(crate) ring: HostAddr,
    /// 64-byte blocks of the ring.
    pub(crate) blocks: u32,
    pub(crate) record: HostAddr,
    pub(crate) register: HostAddr,
    pub(crate) head: u32,
}

impl SendState {
    /// Marks a send as given to a stream at `point`, if it is the next to be posted. Returns the previous post, for
    /// [`Self::undo_post`].
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

    /// Refuses a send behind other prepared sends, and one from before a reset.
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

    /// Refuses a post of the CPU behind prepared sends that are not posted, and as [`Self::settle`] does.
    pub(crate) fn check_turn_of_cpu(&mut self) -> Result<(), QueueError> {
        self.check_next(self.next_serial())?;
        self.settle()
    }

    /// Refuses a post of the CPU while a stream has not rung for its sends: the CPU's doorbell would announce
    /// those, too.
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

    /// Does what [`Self::post`] does in the common case: the next send, on the timeline of the last one. Otherwise
    /// changes nothing.
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

    /// Moves on to the next prepared send.
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

    /// Undoes [`Self::post`], as the stream refused the batch. Groups are undone newest first.
    pub(crate) fn undo_post(&mut self, serial: u64, before: PreviousPost) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = EntryState::Prepared;
            self.next_to_post = self.next_to_post.min(serial);
            // A stream may wait for it.
            self.guarded = true;
        }
        LastPost::restore(&mut self.last_post, before);
    }

    /// Returns whether a stream may not have rung for its sends yet.
    pub(crate) fn has_unpassed_posts(&self) -> bool {
        self.unsettled().is_some_and(|last| !last.timeline.has_passed(last.point))
    }

    /// Returns the newest post, unless a stream is known to have passed it.
    pub(super) fn unsettled(&self) -> Option<&LastPost> {
        self.last_post.as_ref().filter(|last| !last.settled)
    }

    /// Returns the number of signaled sends that were given neither to a stream nor to the card. They are behind
    /// all others.
    #[inline]
    pub(crate) fn unposted(&self) -> u32 {
        let behind = self.entries.iter().rev().take_while(|entry| !entry.state.is_given());
        behind.filter(|entry| entry.signaled).count() as u32
    }

    /// Sets whether posts check for waits that they must not follow.
    pub(crate) fn guard(&mut self, guarded: bool) {
        self.guarded = guarded || self.flushed;
    }

    /// Returns whether a stream has not rung for signaled sends yet.
    pub(crate) fn is_rung_later(&self) -> bool {
        self.has_unpassed_posts() && self.rung().1 > 0
    }

    /// Returns the number of signaled sends for which the card was rung, as the record shows, and of those for
    /// which it was not.
    pub(crate) fn rung(&self) -> (u32, u32) {
        let record = doorbell::record_value(self.ring.record().load(Ordering::Acquire));
        let blocks = |end: u16| end.wrapping_sub(self.tail as u16);
        let signaled = self.entries.iter().filter(|entry| entry.signaled);
        let (rung, unrung): (Vec<_>, Vec<_>) =
            // For these, the CPU rings at once.
            signaled.partition(|entry| entry.is_kept() || blocks(entry.end() as u16) <= blocks(record));
        (rung.len() as u32, unrung.len() as u32)
    }

    /// Takes a prepared send back: removes it from the ring if it is the newest, and makes it a NOP otherwise. It
    /// also stays as a NOP if a wait for its completion is prepared (`awaited`), or if the card has it already.
    /// Returns what was removed.
    pub(crate) fn cancel(&mut self, serial: u64, awaited: impl Fn(u32) -> bool) -> Removed {
        let mut removed = Removed::default();
        let Some(position) = self.position(serial) else { return removed };
        if self.entries[position].state != EntryState::Prepared {
            return removed;
        }
        self.entries[position].state = EntryState::Hidden;
        self.claims.forget(serial);
        // The card keeps its requests.
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
            // So do the WAITs in front of it that a stream would have rung for, as later requests must not wait
            // instead. (Earlier ones are of dropped sends, and NOPs already.)
            if self.handover == Handover::Doorbells {
                let hidden = |before: &usize| self.entries[*before].state == EntryState::Hidden;
                let first = (0..position).rev().take_while(hidden).last().unwrap_or(position);
                (first..position).for_each(|before| self.write_nop(before));
            }
        }
        // The serial number of a removed entry is reused.
        self.next_to_post = self.next_to_post.min(self.first_serial + self.entries.len() as u64);
        self.skip_unprepared();
        removed
    }

    /// Turns an entry into a NOP: only opcode and opmod change, so that size and completion stay (as in libmlx5's
    /// `mlx5dv_qp_cancel_posted_send_wrs`).
    fn write_nop(&mut self, position: usize) {
        let first = self.entries[position].first;
        let ctrl = CtrlSeg::new(Opcode::Nop, first as u16, 0, 0, CtrlFlags::empty(), [0; 4]);
        let [word, ..]: [u32; SEGMENT / 4] = zerocopy::transmute!(ctrl);
        // In one piece: the card may have been rung for it, and may be reading.
        self.ring.word(first, 0).store(word, Ordering::Release);
        self.ring.drain();
    }

    /// Returns whether everything was given to the card after a failure: nothing older may follow.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// Gives everything prepared to the card, which is in the error state and flushes it, so that all waits end.
    ///
    /// Returns the doorbell to ring; none if streams have not posted earlier sends yet (their doorbells would then
    /// go backwards), or nothing is left.
    pub(crate) fn flush(&mut self) -> Option<Doorbell> {
        let is_slave = self.handover == Handover::Master;
        // Streams do not ring for sends that a master releases.
        if self.has_unpassed_posts() && !is_slave {
            return None;
        }
        let newest = self.doorbell_of(self.entries.back()?);
        // A failed stream may not have rung for its sends. A master may have failed itself, and a card with its
        // SEND_EN may not flush for it.
        let perhaps_not_rung = is_slave || self.unsettled().is_some_and(|last| last.timeline.is_dead());
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

    /// Returns what prevents a restart of the queue.
    ///
    /// `failed`: the card takes no more work, and completes what it has. Then unsignaled sends at the end need no
    /// completion: they were done before the failure. Completions of WAITs and of dropped sends matter only if a
    /// wait may be for them (`awaited`), as the program does not see them.
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

    /// Restarts the queue after the card was reset: block 0 is next. Serial numbers continue, so that earlier sends
    /// are recognized.
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
    /// The number of sends that are prepared or have not completed.
    pub(crate) fn attach(&mut self) -> Result<BorrowedSends, u32> {
        // If all have completed, all their doorbells have rung.
        if !self.entries.is_empty() {
            return Err(self.entries.len() as u32);
        }
        self.attached = true;
        // The blocks of withdrawn sends must not reach memory after a kernel's writes.
        self.ring.drain();
        Ok(BorrowedSends {
            ring: HostAddr(self.ring.word(0, 0).as_ptr() as u64),
            blocks: self.ring.entries(),
            record: HostAddr(self.ring.record().as_ptr() as u64),
            register: self.register,
            head: self.head,
        })
    }

    /// Detaches the queue, in which everything has completed. Block `head` is next.
    pub(crate) fn detach(&mut self, head: u32) {
        (self.head, self.tail, self.attached) = (head, head, false);
    }

    /// Returns the doorbell for the blocks before `end` that a kernel has written, each of them a request; `None`
    /// if the queue is not attached.
    pub(crate) fn attached_doorbell(&self, end: u32) -> Option<Doorbell> {
        let value = self.ring.first_bytes(end.wrapping_sub(1));
        self.attached.then(|| self.doorbell(doorbell::record(end), value))
    }
}

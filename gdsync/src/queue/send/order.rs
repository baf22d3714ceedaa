//! The order of a queue's sends: each is posted in its turn, and those of one queue on one stream
//! at a time.

use crate::memory::{Timeline, TimelinePoint};
use crate::queue::send::{SendState, State};
use crate::queue::{OrderError, QueueError};
use gdsync_sys::prm::doorbell;
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
    fn replace(&mut self, point: TimelinePoint) -> Replaced {
        let replaced = Replaced { point: self.point, settled: self.settled };
        (self.point, self.settled) = (point, false);
        replaced
    }

    /// Says in `last` that the newest post is on that timeline now, at `point`.
    #[inline]
    pub(crate) fn renew(
        last: &mut Option<LastPost>,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Before {
        match last {
            Some(last) if Arc::ptr_eq(&last.timeline, timeline) => Before::SameLane(last.replace(point)),
            other => {
                Before::Other(other.replace(LastPost { timeline: timeline.clone(), point, settled: false }))
            }
        }
    }

    /// Undoes [`Self::renew`].
    pub(crate) fn restore(last: &mut Option<LastPost>, before: Before) {
        match (before, last) {
            (Before::SameLane(Replaced { point, settled }), Some(last)) => {
                (last.point, last.settled) = (point, settled)
            }
            (Before::SameLane(_), None) => {}
            (Before::Other(before), now) => *now = before,
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn in_the_way(&self, qpn: u32) -> QueueError {
        QueueError::Order(OrderError::OtherStream { qpn, blocked: self.timeline.blocked_on(self.point) })
    }
}

/// An earlier point of a timeline, and whether it was settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(super) point: TimelinePoint,
    pub(super) settled: bool,
}

/// What posting a send has replaced, to undo it.
#[derive(Debug)]
pub(crate) enum Before {
    /// An earlier point of the same timeline.
    SameLane(Replaced),
    /// Another timeline, or none.
    Other(Option<LastPost>),
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
    ) -> Result<Before, QueueError> {
        self.check_next(serial)?;
        let qpn = self.qpn;
        let same = self.last_post.as_ref().is_some_and(|last| Arc::ptr_eq(&last.timeline, timeline));
        if let Some(last) = self.last_post.as_ref().filter(|last| !same && !last.settled)
            && (!last.timeline.has_passed(last.point) || self.proxied > 0)
        {
            return Err(last.in_the_way(qpn));
        }
        self.give(serial);
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
                return Err(last.in_the_way(self.qpn));
            }
            last.settled = true;
        }
        Ok(())
    }

    /// Marks a send as posted by the program itself, in a way that the library does not see.
    pub(crate) fn give(&mut self, serial: u64) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = State::Posted;
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
    ) -> Option<Replaced> {
        let position = serial.wrapping_sub(self.first_serial) as usize;
        let last = self.last_post.as_mut().filter(|last| Arc::ptr_eq(&last.timeline, timeline))?;
        if serial != self.next_to_post || self.guarded {
            return None;
        }
        let entry = self.entries.get_mut(position)?;
        entry.state = State::Posted;
        let replaced = last.replace(point);
        self.next_to_post = serial + 1;
        if self.entries.get(position + 1).is_some_and(|next| next.state != State::Prepared) {
            self.skip_unprepared();
        }
        Some(replaced)
    }

    /// Moves on to the next send that is prepared.
    #[inline]
    pub(super) fn skip_unprepared(&mut self) {
        self.next_to_post = self.next_to_post.max(self.first_serial);
        while let Some(position) = self.position(self.next_to_post) {
            if self.entries[position].state == State::Prepared {
                return;
            }
            self.next_to_post += 1;
        }
    }

    /// The stream refused the batch: the send is only prepared again. A group is undone newest
    /// first.
    pub(crate) fn undo_post(&mut self, serial: u64, before: Before) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = State::Prepared;
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

    /// See [`Self::guard`].
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
}

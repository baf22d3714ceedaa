//! The order of a queue's sends: each is posted in its turn, and those of one queue on one stream at a time.

use super::{SendState, State};
use crate::error::QueueError;
use crate::lane::{Lane, Ticket};
use std::sync::Arc;

/// Where the newest posted sends of a queue are.
#[derive(Debug)]
pub(crate) struct LastPost {
    pub(super) lane: Arc<Lane>,
    pub(super) ticket: Ticket,
    /// The stream is known to have passed it, because the card has completed all that was posted, or the CPU has posted since.
    pub(super) settled: bool,
}

impl LastPost {
    #[inline]
    fn replace(&mut self, ticket: Ticket) -> Replaced {
        let replaced = Replaced { ticket: self.ticket, settled: self.settled };
        (self.ticket, self.settled) = (ticket, false);
        replaced
    }

    #[cold]
    #[inline(never)]
    pub(super) fn in_the_way(&self, qpn: u32) -> QueueError {
        QueueError::OtherStream { qpn, blocked: self.lane.blocked_on(self.ticket) }
    }
}

/// An earlier ticket of a lane, and whether it was settled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(super) ticket: Ticket,
    pub(super) settled: bool,
}

/// What posting a send has replaced, to undo it.
#[derive(Debug)]
pub(crate) enum Before {
    /// An earlier ticket of the same lane.
    SameLane(Replaced),
    /// Another lane, or none.
    Other(Option<LastPost>),
}

impl SendState {
    /// Marks a send as handed to a stream at `ticket`, after checking that its turn has come.
    ///
    /// Returns what that has replaced, for [`Self::undo_post`].
    #[inline]
    pub(crate) fn post(
        &mut self,
        serial: u64,
        lane: &Arc<Lane>,
        ticket: Ticket,
    ) -> Result<Before, QueueError> {
        let (qpn, expected) = (self.qpn, self.next_to_post);
        if serial != expected {
            if serial > expected {
                return Err(QueueError::OutOfOrder { qpn, serial, expected });
            }
            if serial < self.first_serial {
                return Err(QueueError::Stale { qpn, serial });
            }
        }
        let same = self.last_post.as_ref().is_some_and(|last| Arc::ptr_eq(&last.lane, lane));
        if let Some(last) = self.last_post.as_ref().filter(|last| !same && !last.settled)
            && (!last.lane.has_passed(last.ticket) || self.proxied > 0)
        {
            return Err(last.in_the_way(qpn));
        }
        if let Some(entry) = self.position(serial).and_then(|position| self.entries.get_mut(position)) {
            entry.state = State::Posted;
            self.skip_unprepared();
        }
        Ok(match &mut self.last_post {
            Some(last) if same => Before::SameLane(last.replace(ticket)),
            other => Before::Other(other.replace(LastPost { lane: lane.clone(), ticket, settled: false })),
        })
    }

    /// As [`Self::post`], where nothing but the common case has to be thought of: the next send, on the lane of the last one.
    /// Otherwise changes nothing.
    #[inline]
    pub(crate) fn post_next(&mut self, serial: u64, lane: &Arc<Lane>, ticket: Ticket) -> Option<Replaced> {
        let position = serial.wrapping_sub(self.first_serial) as usize;
        let last = self.last_post.as_mut().filter(|last| Arc::ptr_eq(&last.lane, lane))?;
        if serial != self.next_to_post || self.flushed {
            return None;
        }
        let entry = self.entries.get_mut(position)?;
        entry.state = State::Posted;
        let replaced = last.replace(ticket);
        self.next_to_post = serial + 1;
        if position + 1 < self.entries.len() {
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

    /// The stream refused the batch: the send is only prepared again. A group is undone newest first.
    pub(crate) fn undo_post(&mut self, serial: u64, before: Before) {
        if let Some(position) = self.position(serial) {
            self.entries[position].state = State::Prepared;
            self.next_to_post = self.next_to_post.min(serial);
        }
        match (before, &mut self.last_post) {
            (Before::SameLane(Replaced { ticket, settled }), Some(last)) => {
                (last.ticket, last.settled) = (ticket, settled)
            }
            (Before::SameLane(_), None) => {}
            (Before::Other(before), now) => *now = before,
        }
    }
}

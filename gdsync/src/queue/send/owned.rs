//! A send queue with one owner: its posts take no lock.
//!
//! The owner has the ring's head, and all that a post looks at. It puts what it has posted into the
//! [`Inbox`]; whoever takes the queue's lock first takes what is there ([`SendState::absorb`]), and then
//! finds the queue as if all had been posted under the lock. Meanwhile nobody else writes to the ring
//! or rings: a queue has an owner only while nothing is prepared, and nothing is prepared while it has
//! one.

use super::{Entry, SendState, State, blocks_of, write, write_wrapped};
use crate::memory::HostAddr;
use crate::queue::doorbell::ring;
use crate::queue::inbox::{Inbox, Posted};
use crate::queue::regions::Regions;
use crate::queue::request::Rules;
use crate::queue::{QueueError, QueueFull, Ring, WorkRequest};
use crate::verbs::RegionKeeper;
use gdsync_sys::prm::doorbell;
use std::sync::Arc;

impl Entry {
    /// The CPU has posted it, perhaps an owner without the lock; the queue keeps its regions.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.regions, Regions::Kept)
    }
}

impl SendState {
    /// What keeps regions.
    pub(crate) fn keeper(&self) -> &Arc<RegionKeeper> {
        &self.keeper
    }

    /// The blocks before the tail are free, and so many posts more have retired that do not hold their
    /// regions.
    pub(super) fn free_kept(&self, kept: u64) {
        if let Some(inbox) = &self.inbox {
            inbox.free(self.tail);
        }
        if kept > 0 {
            self.keeper.retire(kept);
        }
    }

    /// Takes what the owner has posted since the last time. All that looks at the queue comes after it.
    #[inline(always)]
    pub(crate) fn absorb(&mut self) {
        if self.inbox.is_some() {
            self.take_posts();
        }
    }

    fn take_posts(&mut self) {
        let (Some(inbox), posted) = (&self.inbox, self.keeper.posted()) else { return };
        if self.kept == posted {
            return;
        }
        while self.kept != posted {
            if let Some(Posted { wr_id, first, blocks, signaled }) = inbox.take(self.kept) {
                let entry =
                    Entry { wr_id, first, blocks, signaled, state: State::Posted, regions: Regions::Kept };
                self.head = entry.end();
                self.entries.push_back(entry);
            }
            self.kept += 1;
        }
        self.next_to_post = self.next_serial();
    }

    /// How many requests more it could have at most.
    pub(crate) fn unused(&self) -> u32 {
        self.ring.entries().saturating_sub(self.entries.len() as u32)
    }

    /// Gives the queue, in which nothing is outstanding, to one owner.
    ///
    /// # Safety
    /// Until the owner is dropped, nothing is prepared or posted here but by [`OwnedSends`] and by its
    /// thread; the ring is not used longer than the queue.
    pub(crate) unsafe fn own(&mut self) -> OwnedSends {
        let (blocks, tail) = (self.ring.entries(), self.tail);
        let inbox = self.inbox.get_or_insert_with(|| Arc::new(Inbox::new(blocks, tail))).clone();
        inbox.free(tail);
        // Streams have passed what they were given here.
        self.last_post = None;
        OwnedSends {
            // SAFETY: the caller's: one of the two writes at a time.
            ring: unsafe { self.ring.alias() },
            qpn: self.qpn,
            register: self.register,
            head: self.head,
            tail,
            ahead: 0,
            posted: self.kept,
            signaled: inbox.signaled(),
            is_fenced: self.has_changed_window,
            inbox,
            keeper: self.keeper.clone(),
        }
    }
}

/// The part of a send queue that its owner has.
#[derive(Debug)]
pub(crate) struct OwnedSends {
    ring: Ring,
    qpn: u32,
    register: HostAddr,
    head: u32,
    /// Blocks before this one are free, as far as the owner has looked.
    tail: u32,
    /// Places that are booked ahead in the completion queue.
    ahead: u32,
    posted: u64,
    signaled: u32,
    /// The newest request changes a memory window: the next one is another than its program wrote.
    is_fenced: bool,
    inbox: Arc<Inbox>,
    keeper: Arc<RegionKeeper>,
}

impl OwnedSends {
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Whether a plain request may be posted by [`Self::post`] now.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        (self.ahead > 0) & !self.is_fenced
    }

    /// Posts a plain request: into the ring, and rings the card. Where that fails, nothing has changed.
    ///
    /// # Safety
    /// The register is valid. A place is booked ahead ([`Self::is_ready`]).
    #[inline(always)]
    pub(crate) unsafe fn post(
        &mut self,
        request: &WorkRequest<'_>,
        rules: &impl Rules,
    ) -> Result<(), QueueError> {
        let most = request.most_units(rules.limits())?;
        if blocks_of(most) > self.free() {
            self.look_for_room(blocks_of(most))?;
        }
        let head = self.head;
        // SAFETY: the ring has room for that many segments, and `write` writes no more.
        let written = match unsafe { self.ring.writer(head, most) } {
            Some(mut writer) => write(&mut writer, request, rules, head, self.qpn)?,
            None => write_wrapped(&mut self.ring, request, rules, head, self.qpn)?,
        };
        let (blocks, signaled) = (blocks_of(written.units), request.is_signaled());
        self.head = head.wrapping_add(blocks);
        self.ahead -= 1;
        self.inbox
            .put(self.posted, Posted { wr_id: request.wr_id, first: head, blocks: blocks as u16, signaled });
        if signaled {
            self.signaled = self.signaled.wrapping_add(1);
            self.inbox.expect(self.signaled);
        }
        self.posted += 1;
        // Before the card hears of it: a completion finds its request.
        self.keeper.post(self.posted);
        self.ring.drain();
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, doorbell::record(self.head), self.register, written.doorbell) };
        Ok(())
    }

    #[inline(always)]
    fn free(&self) -> u32 {
        self.ring.entries() - self.head.wrapping_sub(self.tail)
    }

    /// Looks what has retired since the last time.
    #[cold]
    #[inline(never)]
    fn look_for_room(&mut self, needed: u32) -> Result<(), QueueError> {
        self.tail = self.inbox.tail();
        let (free, capacity) = (self.free(), self.ring.entries());
        if needed > free {
            return Err(QueueError::Full(QueueFull::SendQueue { needed, free, capacity }));
        }
        Ok(())
    }

    /// Goes on behind what was posted, or reset, under the queue's lock, with so many places that are
    /// booked ahead.
    pub(crate) fn follow(&mut self, send: &SendState, ahead: u32) {
        (self.head, self.tail, self.is_fenced) = (send.head, send.tail, send.has_changed_window);
        (self.posted, self.ahead) = (send.kept, ahead);
    }

    #[cfg(test)]
    pub(crate) fn ahead(&self) -> u32 {
        self.ahead
    }

    /// Takes back what is booked ahead.
    pub(crate) fn take_ahead(&mut self) -> u32 {
        std::mem::take(&mut self.ahead)
    }
}

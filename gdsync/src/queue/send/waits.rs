//! Work requests behind WAITs: the card has them from the start, and executes them when the awaited word or
//! completion is there. Also sends that another queue releases, and the requests that release them (SEND_EN).
//!
//! The sends of a slave come to the card by SEND_EN, or by the slave's own doorbell. The card reads the record when
//! it processes a doorbell, so a doorbell in flight must not meet a record that covers unreleased sends. So only
//! one of the two kinds may be outstanding: a completion of one kind shows that none of its doorbells is in flight,
//! or none of its SEND_ENs.

use crate::queue::completion::CompletionState;
use crate::queue::doorbell::ring;
use crate::queue::regions::Regions;
use crate::queue::send::{Entry, EntryState, SendState};
use crate::queue::{Claim, Doorbell, OrderError, QueueError};
use crate::verbs::MemoryRegionInner;
use gdsync_sys::barrier;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wait::{IndexSeg, WaitDataSeg, WaitKind};
use gdsync_sys::prm::wqe::{BASIC_BLOCK, CtrlFlags};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A release of sends of another queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enable {
    pub(crate) qpn: u32,
    /// The block after the last released one.
    pub(crate) until: u16,
}

impl SendState {
    /// Refuses a request for the master while posts of the CPU are outstanding.
    #[cold]
    pub(super) fn check_masters_turn(&self) -> Result<(), QueueError> {
        if !self.is_masters && !self.entries.is_empty() {
            return Err(QueueError::Order(OrderError::MixedCpuAndMasterSends { qpn: self.qpn }));
        }
        Ok(())
    }

    /// Takes the newest request back, which nothing releases.
    pub(crate) fn unprepare_newest(&mut self, completions: &mut CompletionState) {
        self.take_back(self.entries.len().saturating_sub(1), completions);
    }

    /// Writes the ring's fill level to the record. A card reads it for a doorbell, and may read it to find the end
    /// of the flushed requests; SEND_EN does not need it.
    pub(crate) fn publish_record(&self) {
        barrier::to_device();
        self.ring.publish(doorbell::record(self.head));
    }

    /// Writes a WAIT followed by a release, and rings the card for both, as a post of the CPU. On an error,
    /// nothing has changed. Returns the block of the release.
    ///
    /// # Safety
    /// The register is valid.
    pub(crate) unsafe fn post_enable(
        &mut self,
        wait: CardWait,
        Enable { qpn, until }: Enable,
        completions: &mut CompletionState,
    ) -> Result<u32, QueueError> {
        let entries = self.entries.len();
        let segment = IndexSeg::new(until.into(), qpn);
        let placed = self.place_wait(WaitRequest { wait, region: None }, completions).and_then(|()| {
            self.place_block(completions, Regions::None, |head, own| {
                block(WaitKind::SendEnable, head, own, segment.as_bytes())
            })
        });
        if let Err(error) = placed {
            self.take_back(entries, completions);
            return Err(error);
        }
        self.ring.drain();
        self.skip_unprepared();
        let release = self.head.wrapping_sub(1);
        let value = self.ring.first_bytes(release);
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, doorbell::record(self.head), self.register, value) };
        Ok(release)
    }

    /// Checks that the CPU may post and ring now, off the fast path of [`Self::post_now`].
    #[cold]
    #[inline(never)]
    pub(super) fn check_cpus_turn(&mut self, serial: u64) -> Result<(), QueueError> {
        let (qpn, expected) = (self.qpn, self.next_to_post);
        if serial != expected {
            return Err(QueueError::Order(OrderError::OutOfOrder { qpn, serial, expected }));
        }
        if self.is_masters && !self.entries.is_empty() {
            return Err(QueueError::Order(OrderError::MixedCpuAndMasterSends { qpn }));
        }
        self.is_masters = false;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CardWait {
    /// A number in memory has reached `ticket` (`gdsync_sys::prm::wait::word`).
    Ticket { lkey: u32, addr: u64, ticket: u64 },
    /// Entry `index` of a completion queue, and so all before it, are written.
    Entry { cqn: u32, index: u32 },
    /// The card's clock is past `ticks`.
    Time { ticks: u64 },
}

/// A WAIT in front of a send, and the region of its word, unless something else keeps that alive.
#[derive(Clone, Debug)]
pub(crate) struct WaitRequest {
    pub(crate) wait: CardWait,
    pub(crate) region: Option<Arc<MemoryRegionInner>>,
}

/// How a work request comes to the card.
#[derive(Debug)]
pub(crate) enum PostMode<W> {
    Now,
    /// The CPU rings at once, and the card executes these WAITs first.
    Behind(W),
    /// A stream or the program rings later, or the queue pair's trigger releases it. The card executes the WAITs
    /// first. The claim, if there is one, receives the completion.
    Later {
        claim: Option<Arc<Claim>>,
        waits: W,
    },
}

impl PostMode<[WaitRequest; 0]> {
    pub(crate) const NOW: Self = PostMode::Now;
    pub(crate) const LATER: Self = PostMode::Later { claim: None, waits: [] };
}

/// Makes a block of a control segment and one more.
pub(super) fn block(kind: WaitKind, head: u32, qpn: u32, segment: &[u8]) -> [u8; BASIC_BLOCK] {
    let mut block = [0; BASIC_BLOCK];
    let control = kind.control(head as u16, qpn, CtrlFlags::empty());
    let bytes = control.as_bytes().iter().chain(segment);
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    block
}

impl CardWait {
    /// Encodes the WAIT, which is one block, at block `head` of that queue pair's send queue.
    fn encode(self, head: u32, qpn: u32) -> [u8; BASIC_BLOCK] {
        match self {
            CardWait::Ticket { lkey, addr, ticket } => {
                block(WaitKind::Data, head, qpn, WaitDataSeg::reached(lkey, addr, ticket).as_bytes())
            }
            CardWait::Entry { cqn, index } => {
                block(WaitKind::Completions, head, qpn, IndexSeg::new(index, cqn).as_bytes())
            }
            CardWait::Time { ticks } => block(WaitKind::Time, head, qpn, WaitDataSeg::past(ticks).as_bytes()),
        }
    }
}

impl SendState {
    /// Rings the card for a prepared send, and for the WAITs in front of it, as a post of the CPU.
    ///
    /// # Errors
    /// The order errors of [`Self::post_now`].
    ///
    /// # Safety
    /// The register is valid.
    pub(crate) unsafe fn ring_prepared(&mut self, serial: u64) -> Result<(), QueueError> {
        self.check_next(serial)?;
        self.settle()?;
        let Some(position) = self.position(serial) else { return self.check_not_stale(serial) };
        self.entries[position].state = EntryState::Posted;
        self.skip_unprepared();
        let Doorbell { record, register, value, .. } = self.doorbell_of(&self.entries[position]);
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, record, register, value) };
        Ok(())
    }

    /// Writes a WAIT. Like any work request, it completes if it fails or is flushed.
    pub(super) fn place_wait(
        &mut self,
        WaitRequest { wait, region }: WaitRequest,
        completions: &mut CompletionState,
    ) -> Result<(), QueueError> {
        let regions = region.map_or(Regions::None, Regions::One);
        self.place_block(completions, regions, |head, qpn| wait.encode(head, qpn))
    }

    /// Writes a work request of one block whose completion is not returned.
    pub(super) fn place_block(
        &mut self,
        completions: &mut CompletionState,
        regions: Regions,
        encode: impl FnOnce(u32, u32) -> [u8; BASIC_BLOCK],
    ) -> Result<(), QueueError> {
        self.check_room(1)?;
        completions.reserve(false)?;
        let first = self.head;
        self.ring.write(first, &encode(first, self.qpn));
        self.push(Entry { wr_id: 0, first, blocks: 1, signaled: false, state: EntryState::Hidden, regions });
        Ok(())
    }

    /// Takes back the requests behind the first `entries`, for which the card was not rung.
    pub(super) fn take_back(&mut self, entries: usize, completions: &mut CompletionState) {
        for entry in self.entries.drain(entries.min(self.entries.len())..).rev() {
            self.head = entry.first;
            completions.unreserve(entry.signaled);
        }
    }
}

#[cfg(test)]
mod tests;

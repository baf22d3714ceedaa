//! Work requests behind WAITs: the card has them from the start, and performs them when what it waits
//! for is there.

use super::{Entry, SendState, State};
use crate::queue::completion::CompletionState;
use crate::queue::doorbell::ring;
use crate::queue::regions::Regions;
use crate::queue::{Doorbell, QueueError};
use crate::verbs::MemoryRegionInner;
use gdsync_sys::prm::wait::{IndexSeg, Kind, WaitDataSeg};
use gdsync_sys::prm::wqe::{BASIC_BLOCK, CtrlFlags};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What a send queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CardWait {
    /// A number in memory that has reached `ticket` (`gdsync_sys::prm::wait::word`).
    Ticket { lkey: u32, addr: u64, ticket: u64 },
    /// The entry `index` of a completion queue, and so all before it.
    Entry { cqn: u32, index: u32 },
}

/// A WAIT in front of a send, and the region of the word that it looks at, unless something else keeps that.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) wait: CardWait,
    pub(crate) region: Option<Arc<MemoryRegionInner>>,
}

/// A block with a control segment and what is behind it.
pub(super) fn block(kind: Kind, head: u32, qpn: u32, segment: &[u8]) -> [u8; BASIC_BLOCK] {
    let mut block = [0; BASIC_BLOCK];
    let control = kind.control(head as u16, qpn, CtrlFlags::empty());
    let bytes = control.as_bytes().iter().chain(segment);
    block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    block
}

impl CardWait {
    /// The WAIT, at block `head` of that queue pair's send queue. It is one block.
    fn encode(self, head: u32, qpn: u32) -> [u8; BASIC_BLOCK] {
        match self {
            CardWait::Ticket { lkey, addr, ticket } => {
                block(Kind::Data, head, qpn, WaitDataSeg::reached(lkey, addr, ticket).as_bytes())
            }
            CardWait::Entry { cqn, index } => {
                block(Kind::Completions, head, qpn, IndexSeg::new(index, cqn).as_bytes())
            }
        }
    }
}

impl SendState {
    /// Rings the card for a send that is prepared, and for the WAITs in front of it: it counts as posted by the CPU.
    ///
    /// # Errors
    /// What [`Self::post_now`] says of the order.
    ///
    /// # Safety
    /// The register is valid.
    pub(crate) unsafe fn ring_prepared(&mut self, serial: u64) -> Result<(), QueueError> {
        self.check_next(serial)?;
        self.settle()?;
        let Some(position) = self.position(serial) else { return self.check_not_stale(serial) };
        self.entries[position].state = State::Posted;
        self.skip_unprepared();
        let Doorbell { record, register, value, .. } = self.doorbell_of(&self.entries[position]);
        // SAFETY: the caller's.
        unsafe { ring(&self.ring, record, register, value) };
        Ok(())
    }

    /// Writes a WAIT. Like any work request, it completes where it fails or is flushed.
    pub(super) fn place_wait(
        &mut self,
        Hold { wait, region }: Hold,
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
        self.push(Entry { wr_id: 0, first, blocks: 1, signaled: false, state: State::Hidden, regions });
        Ok(())
    }

    /// Takes back what was placed behind the first `entries`, and not rung for.
    pub(super) fn take_back(&mut self, entries: usize, completions: &mut CompletionState) {
        for entry in self.entries.drain(entries.min(self.entries.len())..).rev() {
            self.head = entry.first;
            completions.unreserve(entry.signaled);
        }
    }
}

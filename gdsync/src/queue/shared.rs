//! The state of a shared receive queue.
//!
//! Receives complete in any order, so its entries form a list: each begins with the index of the next (`struct
//! mlx5_wqe_srq_next_seg`). The card follows the list from entry 0 on. The CPU writes receives to the free entries,
//! from the list's head on, and links entries of completed receives to its tail. The tail, whose link is not
//! written yet, stays free.

use crate::queue::recv::{Entry, write_receive};
use crate::queue::{QueueError, QueueFull, Ring};
use crate::verbs::MemoryRegionInner;
use gdsync_sys::prm::wqe::{DataSeg, SEGMENT};
use gdsync_sys::prm::{doorbell, recv};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Receives of a shared queue that are posted and whose completions were not polled. Each may complete in any
/// completion queue of its queue pairs, and counts in all of them.
#[derive(Debug)]
pub(crate) struct Credits {
    posted: AtomicU32,
    capacity: u32,
}

impl Credits {
    pub(crate) fn new(capacity: u32) -> Self {
        Credits { posted: AtomicU32::new(0), capacity }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn posted(&self) -> u32 {
        // Sequentially consistent with `take`: of a receive being posted and other work of a completion queue, the
        // one counted second sees the other.
        self.posted.load(Ordering::SeqCst)
    }

    /// Counts a receive, before it is posted.
    pub(crate) fn take(&self) -> Result<(), QueueError> {
        let capacity = self.capacity;
        let count = |posted| (posted < capacity).then_some(posted + 1);
        match self.posted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count) {
            Ok(_) => Ok(()),
            Err(_) => Err(QueueError::Full(QueueFull::ReceiveQueue { capacity })),
        }
    }

    /// Uncounts a receive that was not posted, or whose completion was polled.
    pub(crate) fn give_back(&self) {
        self.posted.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug)]
pub(crate) struct SharedRecvState {
    ring: Ring,
    head: u16,
    tail: u16,
    /// Receives that were posted, modulo 2^16.
    counter: u16,
    /// Receives that have not completed, by entry.
    entries: Vec<Option<Entry>>,
}

impl SharedRecvState {
    /// Makes the state of a ring whose entries are linked from `head` to `tail`.
    pub(crate) fn new(ring: Ring, head: u16, tail: u16) -> Self {
        let entries = (0..ring.entries()).map(|_| None).collect();
        SharedRecvState { ring, head, tail, counter: 0, entries }
    }

    /// Returns the most receives that it holds: all entries but one.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.entries() - 1
    }

    /// Writes a receive into the ring and announces it to the card. The caller has counted it ([`Credits::take`]),
    /// and has checked the number of segments.
    pub(crate) fn post(&mut self, segments: &[DataSeg], wr_id: u64, regions: Vec<Arc<MemoryRegionInner>>) {
        let index = self.head;
        let next = self.next_of(index);
        write_receive(&mut self.ring, index.into(), &recv::link(next), segments);
        if let Some(place) = self.entries.get_mut(usize::from(index)) {
            *place = Some(Entry { wr_id, _regions: regions });
        }
        self.head = next;
        self.counter = self.counter.wrapping_add(1);
        // The card reads the entry once it sees the record: `publish` orders the two.
        self.ring.publish(doorbell::record(self.counter.into()));
    }

    /// Matches a completion with its work request, whose entry becomes free. Returns `None` if there is none.
    pub(crate) fn retire(&mut self, index: u16) -> Option<u64> {
        let entry = self.entries.get_mut(usize::from(index))?.take()?;
        let link = u32::from_ne_bytes(recv::link(index).first_chunk().copied().unwrap_or_default());
        self.ring.word(self.tail.into(), 0).store(link, Ordering::Release);
        self.tail = index;
        Some(entry.wr_id)
    }

    fn next_of(&self, index: u16) -> u16 {
        let bytes = self.ring.word(index.into(), 0).load(Ordering::Acquire).to_ne_bytes();
        let [.., high, low] = bytes;
        u16::from_be_bytes([high, low])
    }
}

/// Bytes of an entry's link.
const _: () = assert!(SEGMENT == 16);

#[cfg(test)]
mod tests;

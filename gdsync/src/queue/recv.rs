//! The state of a receive queue.

use super::Ring;
use crate::queue::claim::{Claim, Claims};
use crate::queue::error::{QueueError, QueueFull};
use crate::verbs::mr::MemoryRegionInner;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::DataSeg;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::IntoBytes;

#[derive(Debug)]
struct Entry {
    wr_id: u64,
    /// Keeps the memory that the card writes.
    _regions: Vec<Arc<MemoryRegionInner>>,
}

/// The state of one receive queue, under its lock. Indices count work requests from 0 on, modulo
/// 2^32.
#[derive(Debug)]
pub(crate) struct RecvState {
    /// None where the queue pair takes its receives from a shared queue.
    ring: Option<Ring>,
    tail: u32,
    entries: VecDeque<Entry>,
    /// Receives of persistent requests, by index: polling does not return their completions.
    claims: Claims,
}

impl RecvState {
    pub(crate) fn new(ring: Option<Ring>) -> Self {
        RecvState { ring, tail: 0, entries: VecDeque::new(), claims: Claims::default() }
    }

    pub(crate) fn check_room(&self) -> Result<(), QueueError> {
        let capacity = self.ring.as_ref().map_or(0, Ring::entries);
        if self.entries.len() as u32 >= capacity {
            Err(QueueError::Full(QueueFull::ReceiveQueue { capacity }))
        } else {
            Ok(())
        }
    }

    /// Writes a receive into the ring and announces it to the card. The caller has checked the room
    /// and the number of segments.
    pub(crate) fn post(&mut self, segments: &[DataSeg], wr_id: u64, regions: Vec<Arc<MemoryRegionInner>>) {
        let Some(ring) = &mut self.ring else { return };
        let head = self.tail.wrapping_add(self.entries.len() as u32);
        let mut wqe = Vec::with_capacity(ring.stride());
        for segment in segments {
            wqe.extend_from_slice(segment.as_bytes());
        }
        if wqe.len() < ring.stride() {
            wqe.extend_from_slice(DataSeg::terminator().as_bytes());
        }
        ring.write(head, &wqe);
        self.entries.push_back(Entry { wr_id, _regions: regions });
        // The card reads the entry once it sees the record: `publish` orders the two.
        ring.publish(doorbell::record(head.wrapping_add(1)));
    }

    /// Gives the newest receive, which has a slice, a key that the card does not know.
    #[cfg(test)]
    pub(crate) fn spoil_key(&self) {
        let newest = self.tail.wrapping_add(self.entries.len() as u32).wrapping_sub(1);
        let ring = self.ring.as_ref().expect("a receive was posted");
        ring.word(newest, 4).store(!0, std::sync::atomic::Ordering::Release);
    }

    /// The completion of the newest receive is stored in `claim`.
    pub(crate) fn claim_newest(&mut self, claim: Arc<Claim>) {
        let newest = self.tail.wrapping_add(self.entries.len() as u32).wrapping_sub(1);
        self.claims.add(newest.into(), claim);
    }

    /// The claim on the receive that has just retired.
    pub(crate) fn take_claim(&mut self) -> Option<Arc<Claim>> {
        self.claims.take(self.tail.wrapping_sub(1).into())
    }

    /// Matches a completion with its work request. A card completes receives in order, so a gap is
    /// its mistake: the skipped ones retire, too. Returns the request's number and how many
    /// retired.
    pub(crate) fn retire(&mut self, wqe_counter: u16) -> Option<(u64, u32)> {
        let position = usize::from(wqe_counter.wrapping_sub(self.tail as u16));
        if position >= self.entries.len() {
            return None;
        }
        let retired = position as u32 + 1;
        self.tail = self.tail.wrapping_add(retired);
        let last = self.entries.drain(..=position).next_back()?;
        Some((last.wr_id, retired))
    }

    /// Restarts the queue, which is empty, after the card was reset.
    pub(crate) fn reset(&mut self) {
        self.tail = 0;
        if let Some(ring) = &self.ring {
            ring.publish(0);
        }
    }

    /// Receives posted and not retired.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::test_ring;
    use std::sync::atomic::Ordering;

    #[test]
    fn receives_retire_in_order_over_many_laps() {
        let mut queue = RecvState::new(Some(test_ring(4, 32)));
        for i in 0..70_000u32 {
            queue.check_room().unwrap();
            queue.post(&[DataSeg::new(8, 1, 0x1000)], u64::from(i), Vec::new());
            let record = queue.ring.as_ref().unwrap().record().load(Ordering::Relaxed);
            assert_eq!(record, doorbell::record(i.wrapping_add(1)));
            assert_eq!(queue.retire(i as u16), Some((u64::from(i), 1)));
        }
        assert!(queue.is_empty());
        assert_eq!(queue.retire(5), None, "nothing is posted");
    }

    #[test]
    fn a_full_queue_says_so_and_a_short_list_is_terminated() {
        let mut queue = RecvState::new(Some(test_ring(2, 32)));
        for wr_id in 0..2 {
            queue.post(&[DataSeg::new(8, 1, 0x1000)], wr_id, Vec::new());
        }
        assert!(matches!(queue.check_room(), Err(QueueError::Full(QueueFull::ReceiveQueue { capacity: 2 }))));
        assert_eq!(
            u32::from_be(queue.ring.as_ref().unwrap().word(1, 20).load(Ordering::Relaxed)),
            0x100,
            "the invalid lkey"
        );
        assert_eq!(queue.retire(1), Some((1, 2)));
    }
}

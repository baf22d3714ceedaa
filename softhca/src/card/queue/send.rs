//! Send queues.

use crate::card::config::QpConfig;
use crate::card::memory::ring::{Producer, ReadRing};
use gdsync_sys::prm::doorbell::{self, Doorbell};
use gdsync_sys::prm::wqe::{BASIC_BLOCK, CtrlSeg};
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// A send queue. Its indices count basic blocks and are not reduced modulo the ring's size.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: ReadRing,
    producer: Producer,
    fetched: u32,
    /// Index of the first block that is not completed.
    completed: u32,
    /// Copies of the next blocks that were read early.
    early: VecDeque<[u8; BASIC_BLOCK]>,
}

pub(crate) struct Entry {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ctrl: CtrlSeg,
    pub(crate) first: u32,
    pub(crate) announced: u32,
}

impl SendQueue {
    /// # Safety
    /// The addresses of `config` stay valid as long as the queue; counts are powers of two.
    pub(crate) unsafe fn new(config: &QpConfig) -> Self {
        // SAFETY: the caller guarantees this.
        let (ring, producer) = unsafe {
            let ring = ReadRing::new(config.sq, config.sq_blocks, BASIC_BLOCK);
            let records = if config.no_send_record { std::ptr::null_mut() } else { config.dbrec };
            (ring, Producer::new(records, doorbell::DBR_SEND))
        };
        SendQueue { ring, producer, fetched: 0, completed: 0, early: VecDeque::new() }
    }

    pub(crate) fn reset(&mut self) {
        self.producer.restart();
        (self.fetched, self.completed) = (0, 0);
        self.early.clear();
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.ring.entries
    }

    pub(crate) fn record(&self) -> u16 {
        self.producer.load()
    }

    /// Returns whether the card knows this value of the doorbell record.
    pub(crate) fn knows(&self, record: u16) -> bool {
        self.producer.index() as u16 == record
    }

    /// Returns whether an index is behind the producer index that the card knows, by less than half a lap.
    pub(crate) fn is_behind(&self, index: u16) -> bool {
        (index.wrapping_sub(self.producer.index() as u16) as i16) < 0
    }

    /// Advances the producer index to a value of the doorbell record, or to the index of a doorbell or SEND_EN that
    /// replaces it.
    pub(crate) fn announce(&mut self, record: u16) {
        self.producer.advance(record);
    }

    /// Returns the number of announced and not completed blocks. More than the ring has is an overrun.
    pub(crate) fn backlog(&self) -> u32 {
        self.producer.index().wrapping_sub(self.completed)
    }

    /// Drops the announced blocks beyond the ring's size: the record is wrong, and they do not exist.
    pub(crate) fn limit_backlog(&mut self) {
        let excess = self.backlog().saturating_sub(self.blocks());
        self.producer.set(self.producer.index().wrapping_sub(excess));
        self.early.clear();
    }

    /// Checks that the doorbell record is not behind a doorbell. On failure, returns the record.
    ///
    /// A doorbell of libmlx5 is the start of the last WQE's control segment (`post_send_db`), so the record is ahead of
    /// its index. Doorbells of NVSHMEM's IBGDA and DOCA GPUNetIO have the index after that WQE, which is the record's.
    pub(crate) fn check_doorbell(&self, bell: Doorbell) -> Result<(), u16> {
        let record = self.record();
        let ahead = record.wrapping_sub(bell.index());
        if u32::from(ahead) > self.blocks() { Err(record) } else { Ok(()) }
    }

    /// Reads all announced blocks now, so that the card does not see later changes.
    pub(crate) fn read_early(&mut self) {
        let announced = self.producer.index().wrapping_sub(self.fetched);
        for ahead in self.early.len() as u32..announced.min(self.blocks()) {
            let mut bytes = Vec::with_capacity(BASIC_BLOCK);
            self.ring.read(self.fetched.wrapping_add(ahead), &mut bytes);
            self.early.extend(bytes.first_chunk());
        }
    }

    /// Appends a copy of a block at or after the fetched one.
    fn read(&self, index: u32, into: &mut Vec<u8>) {
        match self.early.get(index.wrapping_sub(self.fetched) as usize) {
            Some(block) => into.extend_from_slice(block),
            None => self.ring.read(index, into),
        }
    }

    /// Appends what a block has now that was fetched before.
    pub(crate) fn read_again(&self, index: u32, into: &mut Vec<u8>) {
        self.ring.read(index, into);
    }

    /// Returns whether work requests are announced that were not fetched.
    pub(crate) fn has_announced(&self) -> bool {
        self.producer.index() != self.fetched
    }

    /// Reads the first block of the next announced work request, if there is one.
    pub(crate) fn next(&self) -> Option<Entry> {
        if !self.has_announced() {
            return None;
        }
        let announced = self.producer.index().wrapping_sub(self.fetched);
        let mut bytes = Vec::with_capacity(BASIC_BLOCK);
        self.read(self.fetched, &mut bytes);
        // A block has 64 bytes, a control segment 16: this cannot fail.
        let ctrl = CtrlSeg::read_from_prefix(&bytes).ok()?.0;
        Some(Entry { bytes, ctrl, first: self.fetched, announced })
    }

    pub(crate) fn read_rest(&self, entry: &mut Entry, blocks: u32) {
        (1..blocks).for_each(|block| self.read(entry.first.wrapping_add(block), &mut entry.bytes));
    }

    pub(crate) fn advance(&mut self, blocks: u32) {
        self.early.drain(..self.early.len().min(blocks as usize));
        self.fetched = self.fetched.wrapping_add(blocks);
    }

    pub(crate) fn complete_until(&mut self, end: u32) {
        self.completed = end;
    }
}

//! Producer indices of work queues.

use crate::card::memory::ring::Record;
use gdsync_sys::barrier;
use gdsync_sys::prm::doorbell;

/// The producer index of a work queue: the 16 bits of its doorbell record, extended to 32.
#[derive(Debug)]
pub(super) struct Producer {
    /// `None` for a queue pair without queues, and for sends without a record.
    record: Option<Record>,
    index: u32,
}

impl Producer {
    /// Creates the index of one word of a queue pair's doorbell records.
    ///
    /// # Safety
    /// The records are null; or the word is aligned, and stays valid as long as the value.
    pub(super) unsafe fn new(records: *mut u32, word: usize) -> Self {
        // SAFETY: not null, hence valid by the caller's promise.
        let record = (!records.is_null()).then(|| unsafe { Record::new(records.add(word)) });
        Producer { record, index: 0 }
    }

    /// Returns the index that the card knows.
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Resets the index and the record to 0. Hardware leaves the record alone, and a program need not zero it, as
    /// hardware looks only at a queue pair that is rung. This card looks at the records of all queue pairs of a page
    /// that is rung, and a record from before the reset would announce work that does not exist.
    pub(super) fn restart(&mut self) {
        self.index = 0;
        if let Some(record) = &self.record {
            record.exchange(0);
        }
    }

    /// Sets the index that the card knows, without regard to the record.
    pub(super) fn set(&mut self, index: u32) {
        self.index = index;
    }

    /// Returns the current doorbell record.
    pub(super) fn load(&self) -> u16 {
        self.record.as_ref().map_or(self.index as u16, |record| doorbell::record_value(record.load()))
    }

    /// Advances the index to a value of the doorbell record.
    pub(super) fn advance(&mut self, record: u16) {
        let new = record.wrapping_sub(self.index as u16);
        self.index = self.index.wrapping_add(new.into());
        if new != 0 {
            // Record and ring may be in a GPU's memory, from which the CPU may load early.
            barrier::from_device();
        }
    }
}

//! The state of each queue: rings, indices, what they hold, and what holds them.

pub(crate) mod completion;
pub(crate) mod recv;
pub(crate) mod regions;
pub(crate) mod send;
pub(crate) mod wait;

use gdsync_sys::prm::wqe::SEGMENT;
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring in memory that the card shares, and the doorbell record word that belongs to it.
///
/// The one place where queue memory is written and read by the CPU.
#[derive(Debug)]
pub(crate) struct Ring {
    base: *mut u8,
    /// Entries, a power of two.
    entries: u32,
    /// Bytes from one entry to the next, a multiple of 16.
    stride: usize,
    record: *mut u32,
}

// SAFETY: the addresses stay valid for as long as the verbs object whose ring this is (its owner keeps both together),
// and every method takes `&mut self` or uses atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `base..base + entries * stride` and `record` must be valid for reads and writes, aligned to 64 and 4 bytes, for
    /// as long as the ring is used; `entries` must be a power of two. Only the card may access them besides.
    pub(crate) unsafe fn new(base: *mut u8, entries: u32, stride: usize, record: *mut u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        Ring { base, entries, stride, record }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    fn offset(&self, index: u32) -> usize {
        (index & (self.entries - 1)) as usize * self.stride
    }

    /// Writes `bytes` from entry `index` on, wrapping at the ring's end.
    pub(crate) fn write(&mut self, index: u32, bytes: &[u8]) {
        let size = self.entries as usize * self.stride;
        debug_assert!(bytes.len() <= size);
        let start = self.offset(index);
        let first = bytes.len().min(size - start);
        // SAFETY: both parts lie inside the ring (`new`), and the card does not read entries that no doorbell record
        // has announced to it, which is when they are written.
        unsafe {
            self.base.add(start).copy_from_nonoverlapping(bytes.as_ptr(), first);
            self.base.copy_from_nonoverlapping(bytes.as_ptr().add(first), bytes.len() - first);
        }
    }

    /// Writes 16-byte segments from entry `index` on, wrapping at the ring's end. For rings whose size is a power of two.
    pub(crate) fn segments(&mut self, index: u32) -> SegmentWriter<'_> {
        let offset = self.offset(index);
        let mask = self.entries as usize * self.stride - 1;
        debug_assert!((mask + 1).is_power_of_two() && self.stride.is_multiple_of(SEGMENT));
        SegmentWriter { ring: self, offset, mask }
    }

    /// The 32-bit word at a byte offset of entry `index`.
    pub(crate) fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.stride && offset.is_multiple_of(4));
        // SAFETY: inside the ring and aligned (`new`); the card changes it concurrently, which an atomic tolerates.
        unsafe { AtomicU32::from_ptr(self.base.add(self.offset(index) + offset).cast()) }
    }

    pub(crate) fn record(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned as long as the ring is used (`new`); the card reads it concurrently.
        unsafe { AtomicU32::from_ptr(self.record) }
    }

    /// Publishes entries to the card: everything written before is visible to whoever sees the record.
    pub(crate) fn publish(&self, record: u32) {
        self.record().store(record, Ordering::Release);
    }
}

/// Takes the segments of a work request, one after the other.
pub(crate) trait Segments {
    /// Takes the next one.
    fn put(&mut self, segment: [u8; SEGMENT]);
}

/// Writes segments into a ring.
pub(crate) struct SegmentWriter<'a> {
    ring: &'a mut Ring,
    offset: usize,
    /// Size of the ring less one.
    mask: usize,
}

impl SegmentWriter<'_> {
    /// Leaves the next segment as it is.
    pub(crate) fn skip(&mut self) {
        self.offset = (self.offset + SEGMENT) & self.mask;
    }
}

impl Segments for SegmentWriter<'_> {
    #[inline]
    fn put(&mut self, segment: [u8; SEGMENT]) {
        // SAFETY: the offset is a multiple of 16 within the ring, whose size is one, too (`Ring::new`, `Ring::segments`); the
        // card does not read entries that no doorbell record has announced, which is when they are written.
        unsafe { self.ring.base.add(self.offset).cast::<[u8; SEGMENT]>().write(segment) };
        self.skip();
    }
}

#[cfg(test)]
impl Segments for Vec<u8> {
    fn put(&mut self, segment: [u8; SEGMENT]) {
        self.extend_from_slice(&segment);
    }
}

/// Plain heap memory that stands in for a queue's ring in unit tests.
#[cfg(test)]
pub(crate) fn test_ring(entries: u32, stride: usize) -> Ring {
    let words = entries as usize * stride / 8;
    let base = Box::leak(vec![[0u64; 8]; words.div_ceil(8)].into_boxed_slice()).as_mut_ptr().cast();
    let record = Box::leak(Box::new(0u64)) as *mut u64;
    // SAFETY: both allocations are leaked, so they stay valid; nobody else uses them.
    unsafe { Ring::new(base, entries, stride, record.cast()) }
}

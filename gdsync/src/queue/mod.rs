//! The state of each queue: rings, indices, and the objects that work requests keep alive.
//!
//! A ring in GPU memory is accessed through a write-combined mapping. Its stores leave the CPU in no order, so
//! `Ring` drains them before and after each record, and reads an entry by one streaming load behind a full fence.

#[deny(unsafe_code)]
pub(crate) mod completion;
pub(crate) mod doorbell;
#[deny(unsafe_code)]
pub(crate) mod error;
#[deny(unsafe_code)]
pub(crate) mod outcome;
#[deny(unsafe_code)]
pub(crate) mod recv;
pub(crate) mod regions;
#[deny(unsafe_code)]
pub(crate) mod request;
pub(crate) mod send;
#[deny(unsafe_code)]
pub(crate) mod shared;
#[deny(unsafe_code)]
pub(crate) mod status;

pub(crate) use doorbell::{Doorbell, PeerOp, Release};

pub use error::{OrderError, PollError, QueueError, QueueFull, RequestError, StateError};
pub use gdsync_sys::prm::cqe::Syndrome;
pub use outcome::{
    Completion, DatagramSource, FailureCause, GRH_BYTES, NetworkHeader, ResetBlocker, WorkError, WorkKind,
};
pub use request::WorkRequest;
pub use status::Status;
pub(crate) use status::{Claim, Writer};

use crate::memory::HostAddr;
use gdsync_gdr::load_combined;
use gdsync_sys::barrier;
use gdsync_sys::prm::wqe::{BASIC_BLOCK, MAX_DS, SEGMENT};
use gdsync_sys::shared::{SharedU32, SharedU64};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A ring in memory shared with the card, and its doorbell record word. The CPU accesses queue memory only through
/// this type.
#[derive(Debug)]
pub(crate) struct Ring {
    base: *mut u8,
    /// Number of entries, a power of two; or 0 ([`Ring::none`]).
    entries: u32,
    /// Bytes from one entry to the next, a multiple of 16.
    stride: usize,
    /// Bytes of the ring.
    size: usize,
    record: *mut u32,
    /// True if the ring or its record is write-combined memory, that is a GPU's, mapped by the CPU.
    combined: bool,
}

// SAFETY: the addresses stay valid for as long as the verbs object whose ring this is (its owner
// keeps both together), and every method takes `&mut self` or uses shared words.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `base..base + entries * stride` and `record` must be valid for reads and writes, aligned to 64 and 4 bytes,
    /// as long as the ring is used; `entries` must be a power of two. Only the card may access them besides.
    pub(crate) unsafe fn new(base: *mut u8, entries: u32, stride: usize, record: *mut u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        Ring { base, entries, stride, size: entries as usize * stride, record, combined: false }
    }

    /// Returns the ring of a queue that does not exist: it has no entries, so nothing is posted, and its record
    /// stays 0.
    pub(crate) fn none() -> Self {
        static RECORD: AtomicU32 = AtomicU32::new(0);
        let base = NonNull::dangling().as_ptr();
        Ring { base, entries: 0, stride: BASIC_BLOCK, size: 0, record: RECORD.as_ptr(), combined: false }
    }

    /// Sets whether the ring, or its record, is write-combined memory.
    pub(crate) fn write_combined(mut self, combined: bool) -> Self {
        self.combined = combined;
        self
    }

    /// Drains stores to a write-combined ring from the CPU; ordinary fences do not order them.
    #[inline(always)]
    pub(crate) fn drain(&self) {
        if self.combined {
            barrier::drain();
        }
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
        let size = self.size;
        debug_assert!(bytes.len() <= size);
        let start = self.offset(index);
        let first = bytes.len().min(size - start);
        // SAFETY: both parts lie inside the ring (`new`), and the card does not read entries that
        // no doorbell record has announced to it, which is when they are written.
        unsafe {
            self.base.add(start).copy_from_nonoverlapping(bytes.as_ptr(), first);
            self.base.copy_from_nonoverlapping(bytes.as_ptr().add(first), bytes.len() - first);
        }
    }

    /// Returns a writer of segments from entry `index` on, if `most` of them fit before the ring's end.
    ///
    /// # Safety
    /// No more than `most` are written, and the writer does not outlive the ring.
    #[inline(always)]
    pub(crate) unsafe fn writer(&mut self, index: u32, most: u32) -> Option<SegmentWriter> {
        let start = self.offset(index);
        let fits = start + most as usize * SEGMENT <= self.size;
        // SAFETY: inside the ring (`new`).
        fits.then(|| SegmentWriter::new(unsafe { self.base.add(start) }))
    }

    /// Returns the 32-bit word at a byte offset of entry `index`.
    pub(crate) fn word(&self, index: u32, offset: usize) -> &SharedU32 {
        debug_assert!(offset + 4 <= self.stride && offset.is_multiple_of(4));
        // SAFETY: inside the ring and aligned (`new`); the card changes it concurrently, which a shared word tolerates.
        unsafe { SharedU32::from_ptr(self.base.add(self.offset(index) + offset).cast()) }
    }

    /// Returns the first 8 bytes of entry `index`, written by the CPU or by a kernel that has published them.
    pub(crate) fn first_bytes(&self, index: u32) -> u64 {
        if self.combined {
            barrier::from_device();
        }
        // SAFETY: inside the ring (`new`), which is aligned to 64 bytes, and its entries to 16; a kernel that drives
        // the queue may change it concurrently, which a shared word tolerates.
        unsafe { SharedU64::from_ptr(self.base.add(self.offset(index)).cast()) }.load(Ordering::Relaxed)
    }

    pub(crate) fn record(&self) -> &SharedU32 {
        // SAFETY: valid and aligned as long as the ring is used (`new`); the card reads it concurrently.
        unsafe { SharedU32::from_ptr(self.record) }
    }

    /// Publishes entries to the card: all earlier writes are visible to the card when it sees the record.
    #[inline]
    pub(crate) fn publish(&self, record: u32) {
        self.drain();
        self.record().store(record, Ordering::Release);
        self.drain();
    }

    /// Reads a 64-byte entry, of which the CPU has seen a word that the device has written.
    pub(crate) fn entry(&self, index: u32) -> [u32; ENTRY_WORDS] {
        debug_assert!(self.stride >= ENTRY_WORDS * 4);
        let mut words = [0; ENTRY_WORDS];
        if self.combined {
            // SAFETY: inside the ring (`new`), which is aligned to 64 bytes; the device has written the entry, and
            // leaves it until it is returned.
            unsafe {
                load_combined(
                    words.as_mut_ptr().cast(),
                    self.base.add(self.offset(index)),
                    size_of_val(&words),
                )
            };
            return words;
        }
        // The word was read first (acquire); the card wrote the rest of the entry before it.
        fence(Ordering::Acquire);
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.word(index, i * 4).load(Ordering::Relaxed);
        }
        words
    }
}

/// The queues of a queue pair that was just made. The rings must not outlive the queue pair.
pub(crate) struct WorkQueues {
    pub(crate) number: u32,
    pub(crate) sq: Ring,
    /// None with a shared receive queue, and for DC.
    pub(crate) rq: Option<Ring>,
    pub(crate) register: HostAddr,
    /// Slices and inline bytes of a send, and slices of a receive.
    pub(crate) send_segments: u32,
    pub(crate) inline: u32,
    pub(crate) recv_segments: u32,
}

/// 32-bit words of a completion entry.
pub(crate) const ENTRY_WORDS: usize = 16;

pub(crate) trait Segments {
    fn put(&mut self, segment: [u8; SEGMENT]);
}

/// Room for the segments of any request, for one that wraps around its ring's end.
pub(crate) struct Copy([[u8; SEGMENT]; MAX_DS as usize + 1]);

impl Copy {
    pub(crate) fn new() -> Self {
        Copy([[0; SEGMENT]; MAX_DS as usize + 1])
    }

    /// Returns a writer of as many segments as a request may have.
    ///
    /// # Safety
    /// No more than [`MAX_DS`] are written, and the writer does not outlive the copy.
    pub(crate) unsafe fn writer(&mut self) -> SegmentWriter {
        SegmentWriter::new(self.0.as_mut_ptr().cast())
    }

    pub(crate) fn bytes(&self, segments: u32) -> &[u8] {
        self.0.get(..segments as usize).unwrap_or(&self.0).as_flattened()
    }
}

/// Writes segments in order. Its maker determines how many fit.
pub(crate) struct SegmentWriter {
    start: *mut [u8; SEGMENT],
    at: *mut [u8; SEGMENT],
}

impl SegmentWriter {
    #[inline(always)]
    fn new(start: *mut u8) -> Self {
        SegmentWriter { start: start.cast(), at: start.cast() }
    }

    /// Leaves room for a segment.
    #[inline(always)]
    pub(crate) fn skip(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn written(&self) -> u32 {
        ((self.at.addr() - self.start.addr()) / SEGMENT) as u32
    }

    #[inline(always)]
    pub(crate) fn put_first(&mut self, segment: [u8; SEGMENT]) {
        // SAFETY: as in `put`.
        unsafe { self.start.write(segment) };
    }
}

impl Segments for SegmentWriter {
    #[inline(always)]
    fn put(&mut self, segment: [u8; SEGMENT]) {
        // SAFETY: the writer's maker promised that there is room. The card does not read entries before a doorbell
        // record announces them, and they are written before that.
        unsafe { self.at.write(segment) };
        self.skip();
    }
}

#[cfg(test)]
impl Segments for Vec<u8> {
    fn put(&mut self, segment: [u8; SEGMENT]) {
        self.extend_from_slice(&segment);
    }
}

#[cfg(test)]
pub(crate) fn test_ring(entries: u32, stride: usize) -> Ring {
    let words = entries as usize * stride / 8;
    let base = Box::leak(vec![[0u64; 8]; words.div_ceil(8)].into_boxed_slice()).as_mut_ptr().cast();
    let record = Box::leak(Box::new(0u64)) as *mut u64;
    // SAFETY: both allocations are leaked, so they stay valid; nothing else uses them.
    unsafe { Ring::new(base, entries, stride, record.cast()) }
}

//! Rings and doorbell records in a program's memory.

use gdsync_sys::barrier;
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64};
use gdsync_sys::shared::{self, SharedU32};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// A word of a doorbell record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record(*mut u32);

// SAFETY: an address; accesses are those of `shared`.
unsafe impl Send for Record {}

impl Record {
    /// # Safety
    /// `word` is aligned and stays valid for as long as the record is used.
    pub(crate) unsafe fn new(word: *mut u32) -> Self {
        Record(word)
    }

    /// Replaces the value, and returns the former one.
    pub(crate) fn exchange(self, value: u32) -> u32 {
        // Mostly the value is there already: then a record in a GPU's memory costs only a load.
        if self.load() == value {
            return value;
        }
        // SAFETY: as in `load`.
        unsafe { SharedU32::from_ptr(self.0) }.swap(value, Ordering::AcqRel)
    }

    /// Loads the word. Acquire: the entries that the record announces are visible.
    pub(crate) fn load(self) -> u32 {
        // SAFETY: valid and aligned (`new`); the program changes it concurrently, which a shared
        // word tolerates.
        unsafe { SharedU32::from_ptr(self.0) }.load(Ordering::Acquire)
    }
}

/// A ring that the card reads: send or receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRing {
    base: *const u8,
    entries: u32,
    stride: usize,
}

// SAFETY: an address; see `read`.
unsafe impl Send for ReadRing {}

impl ReadRing {
    /// # Safety
    /// `base..base + entries * stride` is readable for as long as the ring is used; `entries` is a
    /// power of two, or 0 for no queue.
    pub(crate) unsafe fn new(base: *const u8, entries: u32, stride: usize) -> Self {
        ReadRing { base, entries, stride }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Appends a copy of entry `index` (modulo the ring's size); nothing, if the ring has no
    /// entries.
    pub(crate) fn read(&self, index: u32, into: &mut Vec<u8>) {
        if self.entries == 0 {
            return;
        }
        let offset = (index & (self.entries - 1)) as usize * self.stride;
        let start = into.len();
        into.resize(start + self.stride, 0);
        // SAFETY: the entry lies inside the ring (`new`), `into` has room for it. A program that
        // writes an entry after announcing it meets this copy, which tolerates that as hardware does:
        // the bytes are checked, not trusted.
        unsafe { shared::copy(into.as_mut_ptr().add(start), self.base.add(offset), self.stride) };
    }
}

/// A ring that the card writes completion entries to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqRing {
    base: *mut u8,
    entries: u32,
    stride: usize,
}

// SAFETY: an address; see `write`.
unsafe impl Send for CqRing {}

impl CqRing {
    /// # Safety
    /// `base..base + entries * stride` is writable and aligned to 4 bytes for as long as the ring is
    /// used; `entries` is a power of two, `stride` 64 or 128. Of 128 bytes the entry is the last 64.
    pub(crate) unsafe fn new(base: *mut u8, entries: u32, stride: u32) -> Self {
        CqRing { base, entries, stride: stride as usize }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes between two entries.
    pub(crate) fn stride(&self) -> u32 {
        self.stride as u32
    }

    /// Writes entry `index`. The last word, which has the owner bit, becomes visible after all
    /// others.
    pub(crate) fn write(&self, index: u32, cqe: &Cqe64) {
        let offset = (index & (self.entries - 1)) as usize * self.stride + self.stride - CQE_SIZE;
        let words = cqe.as_bytes().chunks_exact(4).enumerate();
        for (i, bytes) in words {
            let value = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            // SAFETY: inside the ring and aligned (`new`); the program reads it concurrently, which
            // shared words tolerate.
            let word = unsafe { SharedU32::from_ptr(self.base.add(offset + i * 4).cast()) };
            if i == CQE_SIZE / 4 - 1 {
                // The ring may be GPU memory that the CPU has mapped write-combining.
                barrier::drain();
                word.store(value, Ordering::Release);
                barrier::drain();
            } else {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}

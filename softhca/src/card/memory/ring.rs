//! Rings and doorbell records in a program's memory or in a peer's, such as a GPU's, where each access is a copy by the
//! peer-memory client; and completion entries with the data inside.

use super::copy::MemoryFailure;
use crate::os::guard::guarded;
use crate::os::host;
use crate::peer_memory::{self, PeerMapping};
use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64};
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::scatter::{SCATTER_BYTES, SCATTER_LONG_BYTES};
use gdsync_sys::shared::SharedU32;
use gdsync_sys::{barrier, wake};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// The client that reaches the memory of a queue; `None` for host memory.
type Peer = Option<Arc<PeerMapping>>;

/// Asks the clients for the memory of a queue, which the front ends have checked to be in one place.
fn peer_of(addr: *const u8, len: usize) -> Peer {
    peer_memory::acquire_queue(addr as u64, len as u64).map(Arc::new)
}

/// Logs that a queue's memory cannot be reached: its client fails, or the program has unmapped it. The queue then sees no
/// work, and its program no completions.
fn unreachable(failure: impl Into<MemoryFailure>) {
    let failure = failure.into();
    tracing::error!(%failure, "the memory of a queue cannot be reached");
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    word: *mut u32,
    peer: Peer,
}

// SAFETY: an address; accesses are those of `shared`.
unsafe impl Send for Record {}

impl Record {
    /// # Safety
    /// `word` is aligned and valid as long as the record is used, for the CPU or for its peer-memory client.
    pub(crate) unsafe fn new(word: *mut u32) -> Self {
        Record { word, peer: peer_of(word.cast(), size_of::<u32>()) }
    }

    pub(crate) fn exchange(&self, value: u32) -> u32 {
        // Usually the value is there already: then a record in a GPU's memory costs only a load.
        let former = self.load();
        if former == value {
            return value;
        }
        if let Some(peer) = &self.peer {
            peer.write(self.word as u64, &value.to_ne_bytes()).unwrap_or_else(unreachable);
            return former;
        }
        let mut found = former;
        let exchanged = guarded(|| {
            // SAFETY: as in `load`.
            found = unsafe { SharedU32::from_ptr(self.word) }.swap(value, Ordering::AcqRel);
        });
        if exchanged.is_err() {
            // SAFETY: as in `load`.
            unsafe { host::write(self.word.cast(), &value.to_ne_bytes()) }.unwrap_or_else(unreachable);
        }
        found
    }

    /// Loads the word. Acquire: the entries that the record announces are visible. 0 if it cannot be reached.
    pub(crate) fn load(&self) -> u32 {
        if let Some(peer) = &self.peer {
            let mut word = [0; size_of::<u32>()];
            return match peer.read(self.word as u64, &mut word) {
                Ok(()) => u32::from_ne_bytes(word),
                Err(failure) => {
                    unreachable(failure);
                    0
                }
            };
        }
        // SAFETY: valid and aligned (`new`); the program changes it concurrently, which a shared word tolerates.
        unsafe { host::load(self.word) }.unwrap_or_else(|gone| {
            unreachable(gone);
            0
        })
    }
}

/// The producer index of a work queue: the 16 bits of its doorbell record, extended to 32.
#[derive(Debug)]
pub(crate) struct Producer {
    /// `None` for a queue pair without queues, and for sends without a record.
    record: Option<Record>,
    index: u32,
}

impl Producer {
    /// Creates the index of one word of a queue pair's doorbell records.
    ///
    /// # Safety
    /// The records are null; or the word is aligned, and stays valid as long as the value.
    pub(crate) unsafe fn new(records: *mut u32, word: usize) -> Self {
        // SAFETY: not null, hence valid by the caller's promise.
        let record = (!records.is_null()).then(|| unsafe { Record::new(records.add(word)) });
        Producer { record, index: 0 }
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Resets the index and the record to 0. Hardware leaves the record alone, and a program need not zero it, as
    /// hardware looks only at a queue pair that is rung. This card looks at the records of all queue pairs of a page
    /// that is rung, and a record from before the reset would announce work that does not exist.
    pub(crate) fn restart(&mut self) {
        self.index = 0;
        if let Some(record) = &self.record {
            record.exchange(0);
        }
    }

    /// Sets the index that the card knows, without regard to the record.
    pub(crate) fn set(&mut self, index: u32) {
        self.index = index;
    }

    pub(crate) fn load(&self) -> u16 {
        self.record.as_ref().map_or(self.index as u16, |record| doorbell::record_value(record.load()))
    }

    /// Advances the index to a value of the doorbell record.
    pub(crate) fn advance(&mut self, record: u16) {
        let new = record.wrapping_sub(self.index as u16);
        self.index = self.index.wrapping_add(new.into());
        if new != 0 {
            // Record and ring may be in a GPU's memory, from which the CPU may load early.
            barrier::from_device();
        }
    }
}

/// A ring that the card reads: send or receive queue.
#[derive(Clone, Debug)]
pub(crate) struct ReadRing {
    base: *const u8,
    pub(crate) entries: u32,
    stride: usize,
    peer: Peer,
}

// SAFETY: an address; see `read`.
unsafe impl Send for ReadRing {}

impl ReadRing {
    /// # Safety
    /// `base..base + entries * stride` is readable as long as the ring is used, by the CPU or by its peer-memory
    /// client; `entries` is a power of two, or 0 for no queue.
    pub(crate) unsafe fn new(base: *const u8, entries: u32, stride: usize) -> Self {
        ReadRing { base, entries, stride, peer: peer_of(base, entries as usize * stride) }
    }

    /// Appends a copy of entry `index` (modulo the ring's size), or nothing if the ring has no entries. The copy is
    /// zeros if the memory cannot be reached.
    pub(crate) fn read(&self, index: u32, into: &mut Vec<u8>) {
        if self.entries == 0 {
            return;
        }
        let offset = (index & (self.entries - 1)) as usize * self.stride;
        let start = into.len();
        into.resize(start + self.stride, 0);
        let entry = &mut into[start..];
        let read: Result<(), MemoryFailure> = match &self.peer {
            Some(peer) => peer.read(self.base as u64 + offset as u64, entry).map_err(Into::into),
            // SAFETY: the entry is inside the ring (`new`). A program may write an entry after announcing it; this copy
            // tolerates that as hardware does: the bytes are checked, not trusted.
            None => unsafe { host::read(self.base.add(offset), entry) }.map_err(Into::into),
        };
        if let Err(failure) = read {
            unreachable(failure);
            into[start..].fill(0);
        }
    }
}

/// A ring that the card writes completion entries to.
#[derive(Clone, Debug)]
pub(crate) struct CqRing {
    base: *mut u8,
    pub(crate) entries: u32,
    pub(crate) stride: u32,
    /// True if all entries are written to the first place.
    pub(crate) collapsed: bool,
    peer: Peer,
}

// SAFETY: an address; see `write`.
unsafe impl Send for CqRing {}

impl CqRing {
    /// # Safety
    /// `base..base + entries * stride` is writable and aligned to 4 bytes as long as the ring is used, for the CPU or
    /// for its peer-memory client; `entries` is a power of two, `stride` 64 or 128. An entry takes the last 64 of 128
    /// bytes.
    pub(crate) unsafe fn new(base: *mut u8, entries: u32, stride: u32, collapsed: bool) -> Self {
        let peer = peer_of(base, entries as usize * stride as usize);
        CqRing { base, entries, stride, collapsed, peer }
    }

    /// Writes entry `index`. The last word, which has the owner bit, becomes visible after all others.
    pub(crate) fn write(&self, index: u32, entry: &Entry) {
        /// Offset of the last word.
        const LAST: usize = CQE_SIZE - size_of::<u32>();
        let place = if self.collapsed { 0 } else { index & (self.entries - 1) };
        let stride = self.stride as usize;
        let end = (place as usize + 1) * stride;
        // Only a ring with a stride of 128 bytes has data before its entries.
        if let Some(data) = entry.data_before().filter(|_| stride > CQE_SIZE) {
            self.put(end - stride, data);
        }
        let (body, last) = entry.cqe.as_bytes().split_at(LAST);
        self.put(end - CQE_SIZE, body);
        if self.peer.is_some() {
            return self.put(end - CQE_SIZE + LAST, last);
        }
        // The ring may be GPU memory that the CPU has mapped write-combining.
        barrier::drain();
        self.put(end - CQE_SIZE + LAST, last);
        barrier::drain();
        wake::report_write(self.base as usize + end - size_of::<u32>(), size_of::<u32>());
    }

    /// Writes words at an offset in the ring.
    fn put(&self, offset: usize, bytes: &[u8]) {
        if let Some(peer) = &self.peer {
            return peer.write(self.base as u64 + offset as u64, bytes).unwrap_or_else(unreachable);
        }
        let at = self.base.wrapping_add(offset);
        let put = guarded(|| {
            for (index, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
                // SAFETY: inside the ring and aligned (`new`); the program reads it concurrently, which shared words
                // tolerate.
                let word = unsafe { SharedU32::from_ptr(at.add(index * 4).cast()) };
                word.store(u32::from_ne_bytes(*bytes), Ordering::Release);
            }
        });
        if put.is_err() {
            // SAFETY: as above.
            unsafe { host::write(at, bytes) }.unwrap_or_else(unreachable);
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The entry; the second half of one of 128 bytes.
    pub(crate) cqe: Cqe64,
    /// Data in the first half of an entry of 128 bytes.
    data: Option<Box<[u8; SCATTER_LONG_BYTES]>>,
}

impl From<Cqe64> for Entry {
    fn from(cqe: Cqe64) -> Self {
        Entry { cqe, data: None }
    }
}

/// Returns the maximum number of data bytes inside an entry, by the stride.
pub(crate) fn room(stride: u32) -> usize {
    if stride as usize == CQE_SIZE { SCATTER_BYTES } else { SCATTER_LONG_BYTES }
}

impl Entry {
    /// Returns an entry with data inside, at most [`room`] bytes, for a queue with this stride.
    pub(crate) fn with_data(cqe: Cqe64, data: &[u8], stride: u32) -> Self {
        if stride as usize == CQE_SIZE {
            return cqe.with_data(data).into();
        }
        let mut half = Box::new([0; SCATTER_LONG_BYTES]);
        let count = data.len().min(SCATTER_LONG_BYTES);
        half[..count].copy_from_slice(&data[..count]);
        Entry { cqe: cqe.with_data_before(), data: Some(half) }
    }

    /// Returns the first half of an entry of 128 bytes, if it has data.
    pub(crate) fn data_before(&self) -> Option<&[u8; SCATTER_LONG_BYTES]> {
        self.data.as_deref()
    }

    /// Returns the same entry with a changed second half.
    pub(crate) fn map(self, change: impl FnOnce(Cqe64) -> Cqe64) -> Self {
        Entry { cqe: change(self.cqe), ..self }
    }
}

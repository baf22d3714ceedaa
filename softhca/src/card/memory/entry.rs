//! Completion entries, with the data that is inside.

use gdsync_sys::prm::cqe::{CQE_SIZE, Cqe64};
use gdsync_sys::prm::scatter::{SCATTER_BYTES, SCATTER_LONG_BYTES};

/// A completion entry.
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

/// Most bytes of data inside an entry, by the bytes between two entries.
pub(crate) fn room(stride: u32) -> usize {
    if stride as usize == CQE_SIZE { SCATTER_BYTES } else { SCATTER_LONG_BYTES }
}

impl Entry {
    /// An entry with data inside, for a queue with so many bytes between two entries. The data is at most
    /// [`room`].
    pub(crate) fn with_data(cqe: Cqe64, data: &[u8], stride: u32) -> Self {
        if stride as usize == CQE_SIZE {
            return cqe.with_data(data).into();
        }
        let mut half = Box::new([0; SCATTER_LONG_BYTES]);
        let count = data.len().min(SCATTER_LONG_BYTES);
        half[..count].copy_from_slice(&data[..count]);
        Entry { cqe: cqe.with_data_before(), data: Some(half) }
    }

    /// The first half of an entry of 128 bytes, if it has data.
    pub(crate) fn data_before(&self) -> Option<&[u8; SCATTER_LONG_BYTES]> {
        self.data.as_deref()
    }

    /// The same entry with another second half.
    pub(crate) fn map(self, change: impl FnOnce(Cqe64) -> Cqe64) -> Self {
        Entry { cqe: change(self.cqe), ..self }
    }
}

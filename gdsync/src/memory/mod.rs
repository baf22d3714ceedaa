//! Memory that a card and a stream may touch: pinned pages, the arena that queues live in, and how
//! far streams have come.
//!
//! Three kinds of addresses never mix: [`HostAddr`], [`StreamAddr`], and the remote addresses of
//! [`crate::RemoteMemory`]. Owners and users of memory are counted separately (`use_count.rs`):
//! regions hold keepers of their memory, everything else holds handles. With the last handle,
//! caches drop the registration; the keeper in a work request's region still holds the memory.

pub(crate) mod arena;
#[deny(unsafe_code)]
pub(crate) mod peer_map;
mod pinned;
#[deny(unsafe_code)]
pub(crate) mod spans;
#[deny(unsafe_code)]
pub(crate) mod timeline;
#[deny(unsafe_code)]
pub(crate) mod use_count;

pub(crate) use timeline::Timeline;

pub use pinned::PinnedMemory;
pub use timeline::{Blocked, TimelinePoint};

use parking_lot::Mutex;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

/// An address in this process, as the CPU sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostAddr(pub(crate) u64);

/// An address as a stream sees it. Never the same type as [`HostAddr`]: on a GPU the two spaces
/// differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamAddr(u64);

/// A range that lies outside its memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} lie outside the {len} bytes of the memory region")]
pub struct OutOfBounds {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Length of the region.
    pub len: u64,
}

/// A range within `len` bytes, as numbers.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: u64) -> Result<Range<u64>, OutOfBounds> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start as u64,
        Bound::Excluded(&start) => (start as u64).saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => (end as u64).saturating_add(1),
        Bound::Excluded(&end) => end as u64,
        Bound::Unbounded => len,
    };
    if start > end || end > len { Err(OutOfBounds { start, end, len }) } else { Ok(start..end) }
}

impl HostAddr {
    /// The address as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl StreamAddr {
    /// A stream address from its number; only a stream's own `translate` knows which numbers are
    /// right.
    pub fn new(address: u64) -> Self {
        StreamAddr(address)
    }

    /// The address as a number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host:{:#x}", self.0)
    }
}

impl fmt::Debug for StreamAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream:{:#x}", self.0)
    }
}

/// Timelines of streams that were dropped before they had passed their last submission, with the
/// point that ends it.
static UNFINISHED: Mutex<Vec<(Arc<Timeline>, TimelinePoint)>> = Mutex::new(Vec::new());

/// Remembers that a stream was dropped with work outstanding, up to a point.
pub(crate) fn add_unfinished(timeline: &Arc<Timeline>, end: TimelinePoint) {
    let mut unfinished = UNFINISHED.lock();
    unfinished.retain(|(timeline, end)| !timeline.has_passed(*end));
    unfinished.push((timeline.clone(), end));
}

/// True where a stream of that device was dropped with work that it has not passed yet.
pub(crate) fn has_unfinished(device: u64) -> bool {
    let mut unfinished = UNFINISHED.lock();
    unfinished.retain(|(timeline, end)| !timeline.has_passed(*end));
    unfinished.iter().any(|(timeline, _)| timeline.device() == device)
}

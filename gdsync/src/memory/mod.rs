//! Memory that a card and a stream may access: pinned pages, the arena of queues, and the progress of streams.
//!
//! Three kinds of addresses never mix: [`HostAddr`], [`StreamAddr`], and the remote addresses of
//! [`crate::RemoteMemory`]. Owners and users of memory are counted separately: regions hold
//! uncounted handles of their memory, everything else holds counted ones. When the last counted handle is dropped,
//! caches drop the registration; the uncounted handle in a work request's region still keeps the memory.

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
pub use timeline::{Blocked, EndProbe, TimelinePoint};

use parking_lot::Mutex;
use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

/// An address in this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostAddr(pub(crate) u64);

/// An address in a stream's address space, which on a GPU differs from that of [`HostAddr`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamAddr(u64);

/// A range is outside its memory.
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

/// Converts a range within `len` bytes to numbers.
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
    /// A stream address from its number. Only the stream's `translate` knows which numbers are valid.
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

/// Timelines of dropped streams that had not passed their last submission, with its point.
static UNFINISHED: Mutex<Vec<(Arc<Timeline>, TimelinePoint)>> = Mutex::new(Vec::new());

/// Calls `then` with the dropped streams that have not passed all of their work.
fn with_unfinished<T>(then: impl FnOnce(&mut Vec<(Arc<Timeline>, TimelinePoint)>) -> T) -> T {
    let mut unfinished = UNFINISHED.lock();
    let passed: Vec<_> = unfinished.extract_if(.., |(timeline, end)| timeline.has_passed(*end)).collect();
    let result = then(&mut unfinished);
    // The timelines after the lock: they may hold objects of the driver.
    drop((unfinished, passed));
    result
}

/// Records that a stream was dropped with work outstanding, up to a point.
pub(crate) fn add_unfinished(timeline: &Arc<Timeline>, end: TimelinePoint) {
    with_unfinished(|unfinished| unfinished.push((timeline.clone(), end)));
}

/// Returns whether a dropped stream of that device has not passed all of its work.
pub(crate) fn has_unfinished(device: u64) -> bool {
    with_unfinished(|unfinished| unfinished.iter().any(|(timeline, _)| timeline.device() == device))
}

//! Memory of cards that the driver has pinned: copies between it and GPU memory begin in one call and end in another.

use super::driver::Driver;
use parking_lot::Mutex;
use softhca::{HostRange, PeerMemoryError};
use std::collections::BTreeMap;

/// Most bytes that stay pinned for cards that are gone: 2 MiB for a link to a process, 16 for messages of a card to itself. With
/// more, no memory is pinned any more, and copies from and to the memory of new cards go through the copier's buffer.
const MOST_UNUSED: usize = 256 << 20;

/// The ranges that were seen, by their first addresses, each with whether the driver has pinned it. It stays pinned when
/// its card is gone: to unpin it would wait for streams that may wait for another card, and these would wait for the locks
/// of the thread that unpins.
#[derive(Debug, Default)]
pub(super) struct Pinned(Mutex<BTreeMap<usize, (HostRange, bool)>>);

impl Pinned {
    /// Returns whether the driver copies directly from and to this memory, which it pins at the first question. That takes
    /// milliseconds. A context is current.
    pub(super) fn holds(&self, driver: &Driver, address: usize, len: usize) -> bool {
        let mut known = self.0.lock();
        let found = known.range(..=address).next_back().map(|(_, found)| found);
        let holds = |range: &HostRange| address + len <= range.address() + range.len() && range.is_in_use();
        if let Some((_, pinned)) = found.filter(|(range, _)| holds(range)) {
            return *pinned;
        }
        let Some(range) = HostRange::of(address, len) else { return false };
        known.retain(|_, (range, pinned)| *pinned || range.is_in_use());
        let unused: usize = known
            .values()
            .map(|(range, _)| range)
            .filter(|range| !range.is_in_use())
            .map(HostRange::len)
            .sum();
        let pinned = match unused {
            // SAFETY: a pinned range stays in `known`, and so mapped.
            0..MOST_UNUSED => unsafe { driver.pin(range.address(), range.len()) },
            _ => Err(PeerMemoryError::new(format!(
                "{unused} bytes of cards that are gone are pinned, which is the limit"
            ))),
        };
        let pinned = pinned
            .inspect_err(|error| tracing::debug!(?range, %error, "memory of a card is not pinned"))
            .is_ok();
        known.insert(range.address(), (range, pinned));
        pinned
    }
}

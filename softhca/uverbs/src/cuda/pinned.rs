//! Memory of cards that the driver has pinned: copies between it and GPU memory begin in one call and end in another.

use super::driver::Driver;
use parking_lot::Mutex;
use softhca::HostRange;
use std::collections::BTreeMap;

/// The ranges that were seen, by their first addresses, each with whether the driver has pinned it.
#[derive(Debug, Default)]
pub(super) struct Pinned(Mutex<BTreeMap<usize, (HostRange, bool)>>);

impl Pinned {
    /// Returns whether the driver copies directly from and to this memory, which it pins at the first question. That takes
    /// a millisecond. A context is current.
    pub(super) fn holds(&self, driver: &Driver, address: usize, len: usize) -> bool {
        let mut known = self.0.lock();
        let found = known.range(..=address).next_back().map(|(_, found)| found);
        let holds = |range: &HostRange| address + len <= range.address() + range.len() && range.is_in_use();
        if let Some((_, pinned)) = found.filter(|(range, _)| holds(range)) {
            return *pinned;
        }
        let Some(range) = HostRange::of(address, len) else { return false };
        // The memory of cards that are gone need not stay pinned.
        known.retain(|base, (range, pinned)| {
            let stays = range.is_in_use();
            if !stays && *pinned {
                driver.unpin(*base);
            }
            stays
        });
        // SAFETY: the range stays mapped while it is in `known`.
        let pinned = unsafe { driver.pin(range.address(), range.len()) };
        let pinned = pinned
            .inspect_err(|error| tracing::debug!(?range, %error, "memory of a card is not pinned"))
            .is_ok();
        known.insert(range.address(), (range, pinned));
        pinned
    }
}

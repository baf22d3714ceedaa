//! Device memory: a few pages of the card, which programs map and register.

use crate::card::config::LIMITS;
use gdsync_sys::prm::doorbell::UAR_PAGE;
use std::ops::Range;

/// Pages of device memory.
pub(crate) const PAGES: usize = LIMITS.device_memory as usize / UAR_PAGE;

/// The pages that are allocated.
#[derive(Debug, Default)]
pub(crate) struct DevicePages {
    taken: Vec<Range<usize>>,
}

impl DevicePages {
    /// Takes pages beside each other, at least one. `None` if there are none.
    pub(crate) fn take(&mut self, count: usize) -> Option<Range<usize>> {
        let count = count.max(1);
        let last = PAGES.checked_sub(count)?;
        let is_free = |pages: &Range<usize>| {
            self.taken.iter().all(|taken| taken.end <= pages.start || pages.end <= taken.start)
        };
        let found = (0..=last).map(|first| first..first + count).find(is_free)?;
        self.taken.push(found.clone());
        Some(found)
    }

    /// Gives back the pages from `first` on. False if they are not taken.
    pub(crate) fn give_back(&mut self, first: usize) -> bool {
        let place = self.taken.iter().position(|taken| taken.start == first);
        place.map(|place| self.taken.swap_remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once() {
        let mut pages = DevicePages::default();
        assert_eq!((pages.take(3), pages.take(PAGES - 3)), (Some(0..3), Some(3..PAGES)));
        assert_eq!(pages.take(1), None);
        assert!(pages.give_back(0) && !pages.give_back(0) && !pages.give_back(4));
        assert_eq!((pages.take(4), pages.take(2), pages.take(0)), (None, Some(0..2), Some(2..3)));
        assert_eq!(DevicePages::default().take(PAGES + 1), None);
    }
}

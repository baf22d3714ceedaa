//! Doorbell pages that threads have announced as rung.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of pages in the list. The engine finds others when it polls all pages in turn.
const MOST: usize = 1 << 16;

/// Pages for which memory is allocated in advance, so that a ringing thread rarely allocates.
const USUAL: usize = 64;

/// Announced pages. The list has its own lock, so that a ringing thread does not wait for the engine.
#[derive(Debug)]
pub(crate) struct Told {
    pages: Mutex<Vec<u32>>,
    /// True if the list is not empty.
    any: AtomicBool,
}

impl Default for Told {
    fn default() -> Self {
        Told { pages: Mutex::new(Vec::with_capacity(USUAL)), any: AtomicBool::new(false) }
    }
}

impl Told {
    /// Returns an empty list for [`Self::take`].
    pub(crate) fn list() -> Vec<u32> {
        Vec::with_capacity(USUAL)
    }

    /// Adds a page.
    pub(crate) fn push(&self, page: u32) {
        let mut pages = self.pages.lock();
        if pages.len() < MOST {
            pages.push(page);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Replaces the contents of `list` by the announced pages, in order and possibly with duplicates. The allocations
    /// of both lists are swapped, and so reused.
    pub(crate) fn take(&self, list: &mut Vec<u32>) {
        list.clear();
        if self.any.load(Ordering::Acquire) {
            let mut pages = self.pages.lock();
            self.any.store(false, Ordering::Release);
            std::mem::swap(&mut *pages, list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_once_and_the_list_has_an_end() {
        let (told, mut list) = (Told::default(), Told::list());
        let mut take = || {
            told.take(&mut list);
            list.clone()
        };
        assert!(take().is_empty());
        [3, 1, 3].into_iter().for_each(|page| told.push(page));
        assert_eq!((take(), take()), (vec![3, 1, 3], vec![]));
        (0..2 * MOST as u32).for_each(|page| told.push(page));
        assert_eq!(take().len(), MOST);
        assert!(take().is_empty());
    }

    #[test]
    fn memory_goes_to_and_fro() {
        let (told, mut list) = (Told::default(), Told::list());
        for _ in 0..100 {
            (0..USUAL as u32).for_each(|page| told.push(page));
            told.take(&mut list);
            assert_eq!((list.len(), list.capacity()), (USUAL, USUAL));
        }
    }
}

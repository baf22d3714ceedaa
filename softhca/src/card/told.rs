//! Pages of doorbell registers of which threads have said that they have rung.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most pages that are told at a time. Others are found in turn.
const MOST: usize = 1 << 16;

/// Pages for which there is memory from the beginning: a thread that rings allocates none, as a rule.
const USUAL: usize = 64;

/// A list beside the engine: who rings does not wait for what the card does.
#[derive(Debug)]
pub(crate) struct Told {
    pages: Mutex<Vec<u32>>,
    /// There are some.
    any: AtomicBool,
}

impl Default for Told {
    fn default() -> Self {
        Told { pages: Mutex::new(Vec::with_capacity(USUAL)), any: AtomicBool::new(false) }
    }
}

impl Told {
    /// A list for [`Self::take`].
    pub(crate) fn list() -> Vec<u32> {
        Vec::with_capacity(USUAL)
    }

    /// A thread has rung on this page.
    pub(crate) fn push(&self, page: u32) {
        let mut pages = self.pages.lock();
        if pages.len() < MOST {
            pages.push(page);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Puts the pages into `list` in place of what it has, in the order in which they were told; some more than
    /// once. The memory of `list` serves for the next.
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

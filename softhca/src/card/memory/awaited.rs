//! Words that WAITs have waited for, so that stores to them wake the card.

use std::collections::HashSet;

/// Maximum number of remembered words. A store to any other word wakes no card.
const MOST: usize = 4096;

/// Addresses of words in host memory.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    seen: HashSet<usize>,
    new: Vec<usize>,
}

impl Awaited {
    /// Adds a word that a work request waits for.
    pub(crate) fn add(&mut self, word: usize) {
        if self.seen.len() < MOST && self.seen.insert(word) {
            self.new.push(word);
        }
    }

    /// Takes the words added since the last call.
    pub(crate) fn take_new(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_new_once_and_there_is_an_end() {
        let mut awaited = Awaited::default();
        [8, 16, 8].iter().for_each(|word| awaited.add(*word));
        assert_eq!(awaited.take_new(), [8, 16]);
        awaited.add(8);
        assert!(awaited.take_new().is_empty());
        (0..2 * MOST).for_each(|word| awaited.add(word));
        assert_eq!(awaited.take_new().len(), MOST - 2);
    }
}

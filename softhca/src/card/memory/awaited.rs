//! Words that work requests wait for, as far as they were seen: who stores there can wake the card.

use std::collections::HashSet;

/// Most words that are remembered. A store to another one wakes no card.
const MOST: usize = 4096;

/// Addresses of words in memory of the host.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    seen: HashSet<usize>,
    new: Vec<usize>,
}

impl Awaited {
    /// A work request waits for this word.
    pub(crate) fn add(&mut self, word: usize) {
        if self.seen.len() < MOST && self.seen.insert(word) {
            self.new.push(word);
        }
    }

    /// Takes those that were added since the last call.
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

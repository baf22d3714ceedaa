//! The content of messages: a sequence that differs with the message, its direction, and every word in it.
//!
//! `kernels/pingpong.cu` makes the same.

use gdsync::PinnedMemory;
use std::sync::atomic::Ordering;

/// 2^64 divided by the golden ratio: consecutive multiples differ in all bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The content of one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    seed: u64,
}

impl Pattern {
    /// Message `sequence` of side `rank`.
    pub(super) fn new(rank: u64, sequence: u64) -> Self {
        Pattern { seed: (sequence << 1 | rank).wrapping_mul(0xd129_0f53_2d1b_5d95) }
    }

    /// What the content is made of.
    pub(super) fn seed(self) -> u64 {
        self.seed
    }

    fn words(self) -> impl Iterator<Item = u64> {
        let first = self.seed;
        (0u64..).map(move |i| {
            let word = first.wrapping_add(i.wrapping_mul(STEP));
            word ^ word >> 31
        })
    }

    /// The bytes after the last whole word.
    fn tail(self, len: usize) -> impl Iterator<Item = (usize, u8)> {
        let whole = len / 8;
        let bytes = self.words().nth(whole).unwrap_or(0).to_le_bytes();
        (whole * 8..len).zip(bytes)
    }

    pub(super) fn fill(self, memory: &PinnedMemory) {
        for (place, word) in memory.words64().iter().zip(self.words()) {
            place.store(word, Ordering::Relaxed);
        }
        for (at, byte) in self.tail(memory.len()) {
            memory.bytes()[at].store(byte, Ordering::Relaxed);
        }
    }

    /// The offset of the first byte that is wrong.
    pub(super) fn check(self, memory: &PinnedMemory) -> Result<(), usize> {
        let words = memory.words64();
        // A sum of differences keeps the loop free of branches; the place is looked for only when there is one.
        let wrong = |from: usize, until: usize, first: u64| {
            let mut expected = first;
            words[from..until].iter().fold(0, |difference, place| {
                let word = expected ^ expected >> 31;
                expected = expected.wrapping_add(STEP);
                difference | (place.load(Ordering::Relaxed) ^ word)
            })
        };
        const BLOCK: usize = 4096;
        for from in (0..words.len()).step_by(BLOCK) {
            let until = (from + BLOCK).min(words.len());
            let first = self.seed.wrapping_add((from as u64).wrapping_mul(STEP));
            if wrong(from, until, first) != 0 {
                let one =
                    |i: &usize| wrong(*i, i + 1, self.seed.wrapping_add((*i as u64).wrapping_mul(STEP))) != 0;
                return Err((from..until).find(one).unwrap_or(from) * 8);
            }
        }
        let mut tail = self.tail(memory.len());
        match tail.find(|(at, byte)| memory.bytes()[*at].load(Ordering::Relaxed) != *byte) {
            Some((at, _)) => Err(at),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_differ() {
        let memory = PinnedMemory::allocate(64).unwrap();
        Pattern::new(0, 1).fill(&memory);
        for (rank, sequence) in [(1, 1), (0, 0), (0, 2), (0, 1 << 40)] {
            assert!(Pattern::new(rank, sequence).check(&memory).is_err());
        }
    }

    proptest! {
        #[test]
        fn every_wrong_byte_is_found(len in 0usize..40_000, at: prop::sample::Index, flip in 1u8..=255, sequence: u32) {
            let memory = PinnedMemory::allocate(len).unwrap();
            let pattern = Pattern::new(1, sequence.into());
            pattern.fill(&memory);
            prop_assert_eq!(pattern.check(&memory), Ok(()));
            if len > 0 {
                let at = at.index(len);
                memory.bytes()[at].fetch_xor(flip, Ordering::Relaxed);
                let found = pattern.check(&memory).unwrap_err();
                prop_assert!(found <= at && at < found + 8);
            }
        }
    }
}

//! The content of messages: a sequence of words determined by a seed, so that both sides know it. `kernels/pingpong.cu`
//! generates the same.

use gdsync::PinnedMemory;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// 2^64 divided by the golden ratio: consecutive multiples differ in all bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub seed: u64,
}

impl Pattern {
    /// Message `sequence` of side `rank` of a pingpong.
    pub fn new(rank: u64, sequence: u64) -> Self {
        Pattern { seed: (sequence << 1 | rank).wrapping_mul(0xd129_0f53_2d1b_5d95) }
    }

    /// Returns the sum from which word `index` is mixed; those of consecutive words differ by `STEP`.
    fn sum(self, index: usize) -> u64 {
        self.seed.wrapping_add((index as u64).wrapping_mul(STEP))
    }

    fn word(sum: u64) -> u64 {
        sum ^ sum >> 31
    }

    /// Returns the bytes after the last whole word of `len` bytes from `from` on, with their offsets.
    fn tail(self, from: usize, len: usize) -> impl Iterator<Item = (usize, u8)> {
        let whole = len / 8;
        (whole * 8..len).zip(Self::word(self.sum(from / 8 + whole)).to_le_bytes())
    }

    /// Fills `len` bytes from `at` on, which is a multiple of 8.
    pub fn fill(self, memory: &PinnedMemory, at: usize, len: usize) {
        for (index, place) in memory.words64()[at / 8..][..len / 8].iter().enumerate() {
            place.store(Self::word(self.sum(index)), Ordering::Relaxed);
        }
        for (offset, byte) in self.tail(0, len) {
            memory.bytes()[at + offset].store(byte, Ordering::Relaxed);
        }
    }

    /// Compares `len` bytes from `at` on with the content from `from` on; both are multiples of 8.
    ///
    /// # Errors
    /// The offset of the first wrong byte, or of its word.
    pub fn check(self, memory: &PinnedMemory, at: usize, from: usize, len: usize) -> Result<(), usize> {
        let words = &memory.words64()[at / 8..][..len / 8];
        // Summing the differences keeps the loop branch-free; the position is searched for only if there is one.
        let differs = |range: Range<usize>| {
            let mut sum = self.sum(from / 8 + range.start);
            let difference = words[range].iter().fold(0, |difference, place| {
                let word = Self::word(sum);
                sum = sum.wrapping_add(STEP);
                difference | (place.load(Ordering::Relaxed) ^ word)
            });
            difference != 0
        };
        const BLOCK: usize = 4096;
        for first in (0..words.len()).step_by(BLOCK) {
            let block = first..(first + BLOCK).min(words.len());
            if differs(block.clone()) {
                return Err(block.into_iter().find(|i| differs(*i..i + 1)).unwrap_or(first) * 8);
            }
        }
        let wrong =
            |(offset, byte): &(usize, u8)| memory.bytes()[at + offset].load(Ordering::Relaxed) != *byte;
        self.tail(from, len).find(wrong).map_or(Ok(()), |(offset, _)| Err(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_differ() {
        let memory = PinnedMemory::allocate(64).unwrap();
        Pattern::new(0, 1).fill(&memory, 0, 64);
        for (rank, sequence) in [(1, 1), (0, 0), (0, 2), (0, 1 << 40)] {
            assert!(Pattern::new(rank, sequence).check(&memory, 0, 0, 64).is_err());
        }
    }

    proptest! {
        #[test]
        fn every_wrong_byte_is_found(len in 0usize..40_000, at: prop::sample::Index, flip in 1u8..=255, sequence: u32) {
            let memory = PinnedMemory::allocate(len).unwrap();
            let pattern = Pattern::new(1, sequence.into());
            pattern.fill(&memory, 0, len);
            prop_assert_eq!(pattern.check(&memory, 0, 0, len), Ok(()));
            if len > 0 {
                let at = at.index(len);
                let byte = &memory.bytes()[at];
                byte.store(byte.load(Ordering::Relaxed) ^ flip, Ordering::Relaxed);
                let found = pattern.check(&memory, 0, 0, len).unwrap_err();
                prop_assert!(found <= at && at < found + 8);
            }
        }
    }
}

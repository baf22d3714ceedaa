//! What episodes have done, and the hash by which two runs are compared.

use std::time::Duration;

/// Bytes that are hashed at once.
const LANES: usize = 32;

/// The end of an episode, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) episodes: u64,
    pub(super) steps: u64,
    pub(super) requests: u64,
    /// Starts of persistent requests among them.
    pub(super) starts: u64,
    pub(super) completions: u64,
    /// Completions that streams have waited for.
    pub(super) waits: u64,
    pub(super) packets: u64,
    pub(super) faults: u64,
    pub(super) time: Duration,
    /// Made of all completions, and of all memory whenever everything was at rest.
    pub(super) hash: u64,
}

impl Totals {
    /// Adds bytes to the hash, in four lanes that do not wait for each other.
    pub(super) fn mix(&mut self, bytes: &[u8]) {
        let step = |hash: u64, word: u64| {
            let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        };
        let mut lanes = [0, 1, 2, 3].map(|lane| self.hash ^ lane);
        let mut add = |block: &[u8; LANES]| {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks().0) {
                *lane = step(*lane, u64::from_le_bytes(*word));
            }
        };
        let (blocks, rest) = bytes.as_chunks();
        blocks.iter().for_each(&mut add);
        let mut last = [0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        add(&last);
        self.hash = lanes.into_iter().reduce(step).unwrap_or_default();
    }

    pub(super) fn add(&mut self, other: &Totals) {
        self.episodes += other.episodes;
        self.steps += other.steps;
        self.requests += other.requests;
        self.starts += other.starts;
        self.completions += other.completions;
        self.waits += other.waits;
        self.packets += other.packets;
        self.faults += other.faults;
        self.time += other.time;
        self.mix(&other.hash.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_and_the_order_of_bytes_count() {
        let hash = |bytes: &[u8]| {
            let mut totals = Totals::default();
            totals.mix(bytes);
            totals.hash
        };
        let bytes: Vec<u8> = (0..100).collect();
        let mut seen = std::collections::BTreeSet::from([hash(&bytes)]);
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(hash(&other)), "bit {bit}");
        }
        let swapped = |one: usize, two: usize| {
            let mut other = bytes.clone();
            other.swap(one, two);
            hash(&other)
        };
        assert!((1..100).all(|other| seen.insert(swapped(0, other))));
    }
}

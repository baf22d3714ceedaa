//! Random numbers from a seed.

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The step of [`Random`]: neighbouring numbers give independent ones.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(GAMMA);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// SplitMix64 (Steele, Lea, Flood 2014). Generators of different seeds are independent.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        // The first step separates neighbouring seeds.
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        let mixed = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        mixed
    }

    /// Draws a number in 0..1, without 1.
    pub(crate) fn next_fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next().checked_rem(n as u64).unwrap_or(0) as usize
    }
}

/// Derives the seed of one card from its index among those that the process has started.
pub(crate) fn seed_of_card(seed: u64, card: u64) -> u64 {
    seed ^ card.wrapping_mul(GAMMA)
}

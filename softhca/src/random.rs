//! Random numbers that a seed decides.

/// SplitMix64 (Steele, Lea, Flood 2014). The streams of a seed do not influence each other.
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
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In 0..1, without 1.
    pub(crate) fn next_fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In 0..n, without n; 0 if n is.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next().checked_rem(n as u64).unwrap_or(0) as usize
    }
}

/// Seed of the random numbers of one card among those that the process has started.
pub(crate) fn seed_of_card(seed: u64, card: u64) -> u64 {
    seed ^ card.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

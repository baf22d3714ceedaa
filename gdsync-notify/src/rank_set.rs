//! A set of ranks.

use std::fmt;

/// A set of ranks, as one bit each.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct RankSet {
    words: Vec<u64>,
}

impl RankSet {
    pub(crate) fn contains(&self, rank: u32) -> bool {
        self.words.get(rank as usize / 64).is_some_and(|word| word >> (rank % 64) & 1 != 0)
    }

    pub(crate) fn insert(&mut self, rank: u32) {
        let at = rank as usize / 64;
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        self.words[at] |= 1 << (rank % 64);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 != 0);
        (0..).zip(&self.words).flat_map(move |(at, word)| bits(*word).map(move |bit| at * 64 + bit))
    }

    /// Little endian, without zeroes at the end.
    pub(crate) fn encode(&self) -> impl Iterator<Item = u8> + '_ {
        self.words.iter().flat_map(|word| word.to_le_bytes())
    }

    /// The set of ranks below `size` that the bytes are; `None` where they are no such set.
    pub(crate) fn decode(bytes: &[u8], size: u32) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let set: RankSet = RankSet { words: words.iter().map(|word| u64::from_le_bytes(*word)).collect() };
        let is_canonical = set.words.last().is_none_or(|word| *word != 0);
        (is_canonical && set.iter().all(|rank| rank < size)).then_some(set)
    }
}

impl FromIterator<u32> for RankSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Self {
        let mut set = RankSet::default();
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

impl fmt::Debug for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_holds_what_was_inserted_and_round_trips(ranks in prop::collection::btree_set(0u32..300, 0..20), garbage: Vec<u8>) {
            let set: RankSet = ranks.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), ranks.clone());
            prop_assert!((0..400).all(|rank| set.contains(rank) == ranks.contains(&rank)));
            let bytes: Vec<u8> = set.encode().collect();
            prop_assert_eq!(RankSet::decode(&bytes, 300), Some(set));
            if let Some(set) = RankSet::decode(&garbage, 64) {
                prop_assert!(set.iter().all(|rank| rank < 64));
                prop_assert_eq!(set.encode().collect::<Vec<u8>>(), garbage);
            }
        }
    }
}

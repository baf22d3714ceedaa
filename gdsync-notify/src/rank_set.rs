//! Sets of ranks, and their bytes in messages: one bit for each rank, in words of 64, little endian, without zeroes at the end.

use std::collections::BTreeSet;

pub(crate) type RankSet = BTreeSet<u32>;

pub(crate) fn encode(set: &RankSet) -> Vec<u8> {
    let words = set.last().map_or(0, |last| *last as usize / 64 + 1);
    let mut bytes = vec![0; words * 8];
    set.iter().for_each(|rank| bytes[*rank as usize / 8] |= 1 << (rank % 8));
    bytes
}

/// The set of ranks below `size` that the bytes are; `None` where they are no such set.
pub(crate) fn decode(bytes: &[u8], size: u32) -> Option<RankSet> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    let is_canonical = words.last().is_none_or(|word| *word != [0; 8]);
    let bits = |byte: u8| (0..8).filter(move |bit| byte >> bit & 1 != 0);
    let ranks = (0..).zip(bytes).flat_map(|(at, byte)| bits(*byte).map(move |bit| at * 8 + bit));
    let set: RankSet = ranks.collect();
    (is_canonical && set.last().is_none_or(|last| *last < size)).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_holds_what_was_inserted_and_round_trips(ranks in prop::collection::btree_set(0u32..300, 0..20), garbage: Vec<u8>) {
            let bytes = encode(&ranks);
            let has = |rank: &u32| bytes.get(*rank as usize / 8).is_some_and(|byte| byte >> (rank % 8) & 1 != 0);
            prop_assert!((0..400).all(|rank| has(&rank) == ranks.contains(&rank)));
            prop_assert_eq!(decode(&bytes, 300), Some(ranks));
            if let Some(set) = decode(&garbage, 64) {
                prop_assert!(set.iter().all(|rank| *rank < 64));
                prop_assert_eq!(encode(&set), garbage);
            }
        }
    }
}

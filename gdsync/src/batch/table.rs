//! A small map from queues to descriptors: clearing it is one addition, and it allocates only to
//! grow.

/// One place: in use if its stamp is the table's.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    key: u64,
    stamp: u32,
    position: u32,
    index: u32,
}

/// Open addressing; at most half of the places are in use.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: Vec<Place>,
    stamp: u32,
}

impl Table {
    /// Makes room for that many keys, and clears the table.
    pub(super) fn reserve(&mut self, keys: usize) {
        // At least two places: with one, `replace` would shift by 64 bits.
        let wanted = keys.saturating_mul(2).next_power_of_two().max(2);
        if self.places.len() < wanted {
            self.places.clear();
            self.places.resize(wanted, Place::default());
            self.stamp = 0;
        }
        self.clear();
    }

    pub(super) fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // The stamps wrapped around: no place may look as if it were in use.
            self.places.iter_mut().for_each(|place| *place = Place::default());
            self.stamp = 1;
        }
    }

    /// Sets a key's position and index. Returns those before.
    #[inline]
    pub(super) fn replace(&mut self, key: u64, position: u32, index: u32) -> Option<(u32, u32)> {
        let mask = self.places.len() - 1;
        // Fibonacci hashing: every bit of the key affects the highest bits of the product.
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> mask.leading_zeros()) as usize & mask;
        loop {
            let place = &mut self.places[at];
            let before = (place.stamp == self.stamp).then_some((place.position, place.index));
            if before.is_none() || place.key == key {
                *place = Place { key, stamp: self.stamp, position, index };
                return before;
            }
            at = (at + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec((0u64..40, any::<bool>()), 1..40), stamp in prop::sample::select(vec![0, u32::MAX - 2])) {
            let mut table = Table { places: Vec::new(), stamp: 0 };
            table.reserve(keys.len());
            table.stamp = stamp;
            table.clear();
            let mut model = HashMap::new();
            for (position, (key, clear)) in keys.into_iter().enumerate() {
                if clear {
                    table.clear();
                    model.clear();
                }
                let value = (position as u32, position as u32 + 7);
                prop_assert_eq!(table.replace(key << 6, value.0, value.1), model.insert(key, value));
            }
        }
    }
}

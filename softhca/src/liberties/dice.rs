//! Random decisions of a card.

use super::plan::{Liberties, LibertyKinds};
use crate::random::{Random, seed_of_card};
use std::time::Duration;

/// Longest time that one liberty takes. It is long for a card, so that programs run into it, and short
/// for retransmission timers, of which real cards have none below some hundred microseconds.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_micros(100);

/// What decides which liberties a card takes; by default none.
#[derive(Debug, Default)]
pub(crate) struct Dice(Option<(LibertyKinds, Random)>);

impl Dice {
    /// Those of a card, by its index among the cards that the process has started.
    pub(super) fn new(liberties: Liberties, card: u64) -> Self {
        Dice(Some((liberties.kinds, Random::new(seed_of_card(liberties.seed, card), 0))))
    }

    /// Whether the card takes any liberties.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it takes liberties of this kind, now or at other times.
    pub(crate) fn has(&self, kind: LibertyKinds) -> bool {
        self.0.as_ref().is_some_and(|(kinds, _)| kinds.contains(kind))
    }

    /// Whether it takes a liberty of this kind now: half of the times.
    pub(crate) fn takes(&mut self, kind: LibertyKinds) -> bool {
        match &mut self.0 {
            Some((kinds, random)) if kinds.contains(kind) => random.below(2) == 0,
            _ => false,
        }
    }

    /// How long it takes a liberty of this kind, if it does now.
    pub(crate) fn pause(&mut self, kind: LibertyKinds) -> Option<Duration> {
        self.takes(kind).then(|| self.any_pause())
    }

    /// Any pause.
    pub(crate) fn any_pause(&mut self) -> Duration {
        LONGEST_PAUSE.mul_f64(self.fraction())
    }

    fn fraction(&mut self) -> f64 {
        self.0.as_mut().map_or(0.0, |(_, random)| random.next_fraction())
    }

    /// A number in 0..n, without n; 0 if n is.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.as_mut().map_or(0, |(_, random)| random.below(n))
    }

    /// Brings a list into any order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        (1..list.len()).rev().for_each(|last| list.swap(last, self.below(last + 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_card_decide_and_other_kinds_are_not_taken() {
        let of = |seed, card| {
            let mut dice = Dice::new(Liberties { seed, kinds: LibertyKinds::FETCH }, card);
            assert!(dice.has(LibertyKinds::FETCH) && !dice.has(LibertyKinds::ATOMICS));
            assert!((0..100).all(|_| !dice.takes(LibertyKinds::ATOMICS)));
            let pauses: Vec<_> = (0..100).map(|_| dice.pause(LibertyKinds::FETCH)).collect();
            assert!(pauses.iter().flatten().all(|pause| *pause < LONGEST_PAUSE));
            let taken = pauses.iter().flatten().count();
            assert!((30..70).contains(&taken), "{taken} of 100");
            pauses
        };
        assert_eq!(of(1, 0), of(1, 0));
        assert!(of(1, 0) != of(1, 1) && of(1, 0) != of(2, 0));
        let mut none = Dice::default();
        assert!(!none.is_on() && !none.takes(LibertyKinds::all()) && none.below(9) == 0);
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut dice = Dice::new(Liberties { seed: 3, kinds: LibertyKinds::all() }, 0);
        let mut list: Vec<u32> = (0..20).collect();
        dice.shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert_eq!(list, (0..20).collect::<Vec<_>>());
    }
}

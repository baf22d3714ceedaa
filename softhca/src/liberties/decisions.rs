//! The decisions of one card.

use super::decision::{Decision, Work};
use super::journal::{self, CardJournal};
use super::schedule::{Choice, OwnRules, Schedule};
use super::{LONGEST_PAUSE, LibertyKinds, names};
use crate::random::{Random, mix};
use std::collections::HashSet;
use std::time::Duration;

/// The choices of a card. By default it is prompt and orderly.
#[derive(Debug, Default)]
pub(crate) struct Decisions(Option<Box<Active>>);

#[derive(Debug)]
struct Active {
    rules: OwnRules,
    seed: u64,
    /// A number made of the card's name.
    card: u64,
    hold: Option<Duration>,
    longest: Duration,
    /// Kinds of faults that are decided about here, and not by the chances of a plan.
    chosen: LibertyKinds,
    /// Faults that were decided about: what is repeated does not meet them again.
    met: HashSet<Decision>,
    journal: Option<CardJournal>,
}

impl Decisions {
    /// Makes the decisions of the card with this index among those that the process has started.
    pub(super) fn new(schedule: Option<&Schedule>, index: u64) -> Self {
        let name = journal::name_in_memory().map(|name| names::with_index(name, index));
        let name = name.or_else(|| names::of_card(index));
        let journal = journal::of_card(name.as_deref(), names::job().as_deref());
        Self::of(schedule, (name, index), journal)
    }

    /// Makes the decisions of a card with that name, or that index if it has none.
    pub(crate) fn of(
        schedule: Option<&Schedule>,
        (name, index): (Option<String>, u64),
        journal: Option<CardJournal>,
    ) -> Self {
        if schedule.is_none() && journal.is_none() {
            return Decisions::default();
        }
        let orderly = Schedule::default();
        let schedule = schedule.unwrap_or(&orderly);
        let text = name.clone().unwrap_or_else(|| index.to_string());
        let card = number_of(&text);
        Decisions(Some(Box::new(Active {
            rules: OwnRules::new(schedule, name.as_deref()),
            seed: schedule.seed,
            card,
            hold: schedule.hold,
            longest: schedule.longest_hold(),
            chosen: schedule.faults,
            met: HashSet::new(),
            journal,
        })))
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether this kind of liberty may be taken.
    pub(crate) fn has(&self, kind: LibertyKinds) -> bool {
        self.0.as_ref().is_some_and(|active| active.rules.kinds.contains(kind))
    }

    /// Decides whether to take a liberty of this kind with some work. `None`: the card is prompt and orderly.
    pub(crate) fn take(&mut self, kind: LibertyKinds, work: Work) -> Option<Draw> {
        let active = self.0.as_mut()?;
        let decision = Decision { kind, work };
        let mut random = Random::new(decision.seed(active.seed, active.card), 0);
        // Drawn in any case: a single decision then does what it did among half of all.
        let half = random.below(2) == 0;
        let taken = match active.rules.choice(decision) {
            Choice::Never => false,
            Choice::Half => half,
            Choice::Always => true,
        };
        if let Some(journal) = &mut active.journal {
            journal.decided(decision, taken);
        }
        taken.then_some(Draw { random, hold: active.hold })
    }

    /// Returns the kinds of faults that rules of the schedule may inject without a plan.
    pub(crate) fn faults(&self) -> LibertyKinds {
        self.0.as_ref().map_or(LibertyKinds::empty(), |active| active.rules.kinds & LibertyKinds::FAULTS)
    }

    /// Returns whether the schedule decides about a kind of faults to which a plan gives chances.
    pub(crate) fn chooses(&self, kind: LibertyKinds) -> bool {
        self.0.as_ref().is_some_and(|active| active.chosen.contains(kind))
    }

    /// Decides whether some work meets a fault. It meets it once: what is repeated passes.
    pub(crate) fn meets(&mut self, kind: LibertyKinds, work: Work) -> Option<Draw> {
        let decision = Decision { kind, work };
        let draw = if self.0.as_mut()?.met.insert(decision) { self.take(kind, work) } else { None };
        if draw.is_some() {
            tracing::info!(%decision, "a fault of the schedule");
        }
        draw
    }

    /// Returns the pause of a liberty of this kind if it is taken with some work.
    pub(crate) fn pause(&mut self, kind: LibertyKinds, work: Work) -> Option<Duration> {
        self.take(kind, work).map(|mut draw| draw.pause())
    }

    /// The longest time for which something is held back.
    pub(crate) fn longest_hold(&self) -> Duration {
        self.0.as_ref().map_or(LONGEST_PAUSE, |active| active.longest)
    }

    /// The journal of the card, if one is kept.
    pub(crate) fn journal(&mut self) -> Option<&mut CardJournal> {
        self.0.as_mut()?.journal.as_mut()
    }
}

fn number_of(card: &str) -> u64 {
    card.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
}

/// Returns whether a card that takes the liberty of [`LibertyKinds::FETCH`] reads ahead; otherwise it fetches late.
pub(crate) fn reads_ahead(decision: Decision, seed: u64, card: &str) -> bool {
    let mut random = Random::new(decision.seed(seed, number_of(card)), 0);
    let _ = random.below(2);
    Draw { random, hold: None }.reads_ahead()
}

/// Random numbers of a liberty that is taken: they depend on the seed and the name of the decision only.
#[derive(Debug)]
pub(crate) struct Draw {
    random: Random,
    hold: Option<Duration>,
}

impl Draw {
    /// Returns for how long to hold something back.
    pub(crate) fn pause(&mut self) -> Duration {
        self.hold.unwrap_or_else(|| LONGEST_PAUSE.mul_f64(self.random.next_fraction()))
    }

    /// Draws whether to read ahead, or to fetch late.
    pub(crate) fn reads_ahead(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Draws a number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.random.below(n)
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        (1..list.len()).rev().for_each(|last| list.swap(last, self.below(last + 1)));
    }
}

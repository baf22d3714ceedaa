//! Liberties: behaviour that the specifications allow and real cards show, taken at random.
//!
//! A program that relies on more than the specifications promise passes on a card that happens to behave so.
//! A card with [`Liberties`] breaks it, as some real card would; a correct program notices nothing.
//! [docs/liberties.md](https://github.com/gdsync/gdsync/blob/main/docs/liberties.md) gives the rule that
//! allows each liberty, and its source. [`LIBERTIES_VARIABLE`] in the environment applies them to every card
//! of the process, as [`set_liberties`] does.
//!
//! Each card seeds its random numbers with the seed and its index among the cards started by the process: the
//! same work in the same order meets the same liberties.

use crate::random::{Random, seed_of_card};
use crate::setting::{self, SettingError};
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

bitflags::bitflags! {
    /// Kinds of liberties.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LibertyKinds: u8 {
        /// Work requests are fetched when their doorbell rings although they execute later, or some time after it.
        const FETCH = 1 << 0;
        /// The bytes of a message are written in any order and in several steps.
        const PIECES = 1 << 1;
        /// Bytes for a region with relaxed ordering are written after later messages.
        const RELAXED = 1 << 2;
        /// Completion entries are written late, so in any order across queues.
        const COMPLETIONS = 1 << 3;
        /// Doorbells are read late: one read serves several.
        const DOORBELLS = 1 << 4;
        /// Atomic operations are answered late.
        const ATOMICS = 1 << 5;
        /// One acknowledgement serves several messages.
        const ACKNOWLEDGEMENTS = 1 << 6;
    }
}

const WORDS: [(&str, LibertyKinds); 7] = [
    ("fetch", LibertyKinds::FETCH),
    ("pieces", LibertyKinds::PIECES),
    ("relaxed", LibertyKinds::RELAXED),
    ("completions", LibertyKinds::COMPLETIONS),
    ("doorbells", LibertyKinds::DOORBELLS),
    ("atomics", LibertyKinds::ATOMICS),
    ("acknowledgements", LibertyKinds::ACKNOWLEDGEMENTS),
];

/// The liberties that a card takes.
///
/// The text form is the seed, then the words of the kinds, separated by `,` or spaces: `fetch`, `pieces`,
/// `relaxed`, `completions`, `doorbells`, `atomics`, `acknowledgements`. Without a word, all kinds are taken.
///
/// ```
/// use softhca::liberties::{Liberties, LibertyKinds};
/// assert_eq!("7".parse(), Ok(Liberties { seed: 7, kinds: LibertyKinds::all() }));
/// let some: Liberties = "7 fetch, atomics".parse()?;
/// assert_eq!(some.kinds, LibertyKinds::FETCH | LibertyKinds::ATOMICS);
/// assert_eq!(some.to_string(), "7 fetch,atomics");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liberties {
    /// Seed of the random numbers.
    pub seed: u64,
    /// The kinds that the card takes.
    pub kinds: LibertyKinds,
}

impl FromStr for Liberties {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let seed = words.next().and_then(|word| word.parse().ok());
        let seed = seed.ok_or("it begins with a seed, a number below 2^64")?;
        let mut kinds = LibertyKinds::empty();
        for word in words {
            let known = WORDS.iter().find(|(name, _)| *name == word);
            let names = || WORDS.map(|(name, _)| name).join(", ");
            kinds |= known.ok_or_else(|| format!("`{word}` is none of its words, which are {}", names()))?.1;
        }
        Ok(Liberties { seed, kinds: if kinds.is_empty() { LibertyKinds::all() } else { kinds } })
    }
}

impl fmt::Display for Liberties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        if self.kinds.is_all() {
            return Ok(());
        }
        let words: Vec<&str> =
            WORDS.iter().filter(|(_, kind)| self.kinds.contains(*kind)).map(|(name, _)| *name).collect();
        write!(f, " {}", words.join(","))
    }
}

/// Longest delay by one liberty: long enough for a card that programs run into it, and short for
/// retransmission timers, which on real cards are at least some hundred microseconds.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_micros(100);

/// The random decisions of a card about its liberties; by default it takes none.
#[derive(Debug, Default)]
pub(crate) struct Dice(Option<(LibertyKinds, Random)>);

impl Dice {
    /// Makes the decisions of the card with this index among those that the process has started.
    fn new(liberties: Liberties, card: u64) -> Self {
        Dice(Some((liberties.kinds, Random::new(seed_of_card(liberties.seed, card), 0))))
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether this kind of liberty is enabled.
    pub(crate) fn has(&self, kind: LibertyKinds) -> bool {
        self.0.as_ref().is_some_and(|(kinds, _)| kinds.contains(kind))
    }

    /// Decides whether to take a liberty of this kind now, with probability one half.
    pub(crate) fn takes(&mut self, kind: LibertyKinds) -> bool {
        match &mut self.0 {
            Some((kinds, random)) if kinds.contains(kind) => random.below(2) == 0,
            _ => false,
        }
    }

    /// Returns the delay of a liberty of this kind if it is taken now.
    pub(crate) fn pause(&mut self, kind: LibertyKinds) -> Option<Duration> {
        self.takes(kind).then(|| self.any_pause())
    }

    /// Draws a delay up to [`LONGEST_PAUSE`].
    pub(crate) fn any_pause(&mut self) -> Duration {
        LONGEST_PAUSE.mul_f64(self.fraction())
    }

    fn fraction(&mut self) -> f64 {
        self.0.as_mut().map_or(0.0, |(_, random)| random.next_fraction())
    }

    /// Draws a number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.as_mut().map_or(0, |(_, random)| random.below(n))
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        (1..list.len()).rev().for_each(|last| list.swap(last, self.below(last + 1)));
    }
}

/// Environment variable with the [`Liberties`] of every card of this process, in text form. If it is
/// malformed, no card starts.
pub const LIBERTIES_VARIABLE: &str = "SOFTHCA_LIBERTIES";

static PROCESS: Mutex<Process> = Mutex::new(Process { given: None, started: 0 });

struct Process {
    /// The value of [`set_liberties`], which overrides the environment.
    given: Option<Option<Liberties>>,
    /// Number of cards started so far.
    started: u64,
}

/// Returns the liberties that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn from_environment() -> Result<Option<Liberties>, SettingError> {
    setting::parsed(LIBERTIES_VARIABLE, str::parse)
}

/// Sets the liberties of the cards that this process starts from now on, overriding the environment.
pub fn set_liberties(liberties: Option<Liberties>) {
    PROCESS.lock().given = Some(liberties);
}

/// Returns the decisions of the next card to start.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn of_next_card() -> Result<Dice, SettingError> {
    let mut process = PROCESS.lock();
    let liberties = match process.given {
        Some(given) => given,
        None => from_environment()?,
    };
    let card = process.started;
    process.started += 1;
    Ok(liberties.map_or_else(Dice::default, |liberties| Dice::new(liberties, card)))
}

/// Returns decisions for one card, independent of the process's liberties.
pub(crate) fn of_one_card(liberties: Option<Liberties>) -> Dice {
    liberties.map_or_else(Dice::default, |liberties| Dice::new(liberties, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_comes_back() {
        for bits in 1..=LibertyKinds::all().bits() {
            let liberties = Liberties { seed: 1 << 40, kinds: LibertyKinds::from_bits_truncate(bits) };
            assert_eq!(liberties.to_string().parse(), Ok(liberties));
        }
        assert_eq!("7".parse::<Liberties>().unwrap().to_string(), "7");
        assert_eq!(
            WORDS.iter().fold(LibertyKinds::empty(), |all, (_, kind)| all | *kind),
            LibertyKinds::all()
        );
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", " ", "fetch", "-1", "18446744073709551616"] {
            assert!(text.parse::<Liberties>().unwrap_err().contains("seed"), "{text}");
        }
        let error = "1 fetch order".parse::<Liberties>().unwrap_err();
        assert!(error.starts_with("`order` is none of its words, which are fetch, pieces"), "{error}");
    }

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

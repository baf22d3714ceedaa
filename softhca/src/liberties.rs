//! Liberties: what the specifications allow a card to do, and real cards do, at random.
//!
//! A program that relies on what happens to be true passes on a card that happens to do it. On a card
//! with [`Liberties`] it fails, as it would some day on a real one; a right program notices nothing.
//! [docs/liberties.md](https://github.com/gdsync/gdsync/blob/main/docs/liberties.md) has the rule that
//! allows each liberty, and its source. [`LIBERTIES_VARIABLE`] in the environment applies them to every
//! card of the process, as [`set_liberties`] does.
//!
//! Each card draws its random numbers from the seed and its index among the cards that the process has
//! started: the same work in the same order meets the same liberties.

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
        /// Work requests are fetched as soon as their doorbell has rung, though they execute later; or
        /// some time after it.
        const FETCH = 1 << 0;
        /// The bytes of a message are written in any order, and not all at once.
        const PIECES = 1 << 1;
        /// Bytes for a region of relaxed ordering are written after later messages.
        const RELAXED = 1 << 2;
        /// Completion entries are written late, so those of different queues in any order.
        const COMPLETIONS = 1 << 3;
        /// Doorbells are looked at late: one look serves several.
        const DOORBELLS = 1 << 4;
        /// The results of atomic operations are answered late.
        const ATOMICS = 1 << 5;
        /// One acknowledgement serves several messages.
        const ACKNOWLEDGEMENTS = 1 << 6;
    }
}

/// The words for kinds.
const WORDS: [(&str, LibertyKinds); 7] = [
    ("fetch", LibertyKinds::FETCH),
    ("pieces", LibertyKinds::PIECES),
    ("relaxed", LibertyKinds::RELAXED),
    ("completions", LibertyKinds::COMPLETIONS),
    ("doorbells", LibertyKinds::DOORBELLS),
    ("atomics", LibertyKinds::ATOMICS),
    ("acknowledgements", LibertyKinds::ACKNOWLEDGEMENTS),
];

/// Which liberties a card takes.
///
/// Its text form is the seed, and then the words of the kinds, with `,` or spaces between them: `fetch`,
/// `pieces`, `relaxed`, `completions`, `doorbells`, `atomics`, `acknowledgements`. Without a word it takes
/// all.
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
    /// The kinds that it takes.
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

/// Longest time that one liberty takes. It is long for a card, so that programs run into it, and short
/// for retransmission timers, of which real cards have none below some hundred microseconds.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_micros(100);

/// What decides which liberties a card takes; by default none.
#[derive(Debug, Default)]
pub(crate) struct Dice(Option<(LibertyKinds, Random)>);

impl Dice {
    /// Those of a card, by its index among the cards that the process has started.
    fn new(liberties: Liberties, card: u64) -> Self {
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

/// Environment variable with the [`Liberties`] of every card of this process, in their text form. With
/// malformed ones no card starts.
pub const LIBERTIES_VARIABLE: &str = "SOFTHCA_LIBERTIES";

static PROCESS: Mutex<Process> = Mutex::new(Process { given: None, started: 0 });

struct Process {
    /// What stands in place of the environment.
    given: Option<Option<Liberties>>,
    /// Cards started so far.
    started: u64,
}

/// The liberties that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn from_environment() -> Result<Option<Liberties>, SettingError> {
    setting::parsed(LIBERTIES_VARIABLE, str::parse)
}

/// Decides which liberties the cards of this process take that start from now on, whatever the
/// environment says. `None`: none.
pub fn set_liberties(liberties: Option<Liberties>) {
    PROCESS.lock().given = Some(liberties);
}

/// What decides for a card that starts.
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

/// What decides for a card alone, whatever the process's liberties are.
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

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

pub(crate) mod decision;
mod decisions;
pub mod journal;
mod names;
mod refusals;
mod schedule;

pub use decision::{Decision, Subject, Work};
pub(crate) use decisions::{Decisions, Draw, reads_ahead};
pub use names::{JOB_VARIABLE, name_process};
pub use refusals::REFUSALS;
pub(crate) use refusals::note as note_refusal;
pub use schedule::{Rule, Schedule};

use crate::setting::{self, SettingError};
use parking_lot::Mutex;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

bitflags::bitflags! {
    /// Kinds of decisions: liberties, and faults of the network.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct LibertyKinds: u16 {
        /// Work requests are fetched when their doorbell rings although they execute later, or some time after it.
        const FETCH = 1 << 0;
        /// The bytes of a message are written in any order and in several steps.
        const PIECES = 1 << 1;
        /// Bytes are written after later messages where the program allows it: for a region with relaxed ordering, or of a
        /// queue pair that places messages out of order.
        const RELAXED = 1 << 2;
        /// Completion entries are written late, so in any order across queues.
        const COMPLETIONS = 1 << 3;
        /// Doorbells are read late: one read serves several.
        const DOORBELLS = 1 << 4;
        /// Atomic operations are answered late.
        const ATOMICS = 1 << 5;
        /// One acknowledgement serves several messages.
        const ACKNOWLEDGEMENTS = 1 << 6;
        /// The card pauses between the packets of a request.
        const TRANSMIT = 1 << 7;
        /// Bytes for any region are written after later messages, as under adaptive routing: not on all networks.
        const UNORDERED = 1 << 8;
        /// A packet is lost at its first crossing.
        const DROP = 1 << 9;
        /// A packet of a reliable connection arrives twice.
        const DUPLICATE = 1 << 10;
        /// A packet and the later ones of its queue pair arrive late.
        const DELAY = 1 << 11;
        /// A responder is not ready for a request when it first comes.
        const RNR = 1 << 12;
        /// The liberties that a card may take on every network.
        const USUAL = (1 << 8) - 1;
        /// Faults. A search takes those that a [plan](crate::faults) gives a chance.
        const FAULTS = 0b1111 << 9;
    }
}

const WORDS: [(&str, LibertyKinds); 13] = [
    ("fetch", LibertyKinds::FETCH),
    ("pieces", LibertyKinds::PIECES),
    ("relaxed", LibertyKinds::RELAXED),
    ("completions", LibertyKinds::COMPLETIONS),
    ("doorbells", LibertyKinds::DOORBELLS),
    ("atomics", LibertyKinds::ATOMICS),
    ("acknowledgements", LibertyKinds::ACKNOWLEDGEMENTS),
    ("transmit", LibertyKinds::TRANSMIT),
    ("unordered", LibertyKinds::UNORDERED),
    ("drop", LibertyKinds::DROP),
    ("duplicate", LibertyKinds::DUPLICATE),
    ("delay", LibertyKinds::DELAY),
    ("rnr", LibertyKinds::RNR),
];

impl LibertyKinds {
    /// Returns the kind with that word.
    ///
    /// # Errors
    /// There is none: the text names all words.
    fn of_word(word: &str) -> Result<Self, String> {
        setting::of_word(&WORDS, word)
    }

    /// Parses words of kinds, separated by `,` or spaces.
    ///
    /// # Errors
    /// One is none of the words: the text names all words.
    pub fn of_words(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        words.map(Self::of_word).try_fold(LibertyKinds::empty(), |all, kind| Ok(all | kind?))
    }

    /// Returns the words of these kinds, separated by commas.
    pub fn words(self) -> String {
        let words = WORDS.iter().filter(|(_, kind)| self.contains(*kind)).map(|(name, _)| *name);
        words.collect::<Vec<_>>().join(",")
    }
}

/// The liberties that a card takes.
///
/// The text form is the seed, then the words of the kinds, separated by `,` or spaces: `fetch`, `pieces`,
/// `relaxed`, `completions`, `doorbells`, `atomics`, `acknowledgements`, `transmit`, `unordered`. Without a word,
/// all kinds but the last are taken. It is short for a [`Schedule`] with half of all decisions of these kinds.
///
/// ```
/// use softhca::liberties::{Liberties, LibertyKinds};
/// assert_eq!("7".parse(), Ok(Liberties { seed: 7, kinds: LibertyKinds::USUAL }));
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
        let text = text.trim_start_matches([',', ' ']);
        let (seed, words) = text.split_at(text.find([',', ' ']).unwrap_or(text.len()));
        let seed = seed.parse().map_err(|_| "it begins with a seed, a number below 2^64")?;
        let kinds = LibertyKinds::of_words(words)?;
        let faults = kinds & LibertyKinds::FAULTS;
        if !faults.is_empty() {
            return Err(format!("{} is a fault and no liberty: give a plan of faults", faults.words()));
        }
        Ok(Liberties { seed, kinds: if kinds.is_empty() { LibertyKinds::USUAL } else { kinds } })
    }
}

impl fmt::Display for Liberties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kinds {
            LibertyKinds::USUAL => write!(f, "{}", self.seed),
            kinds => write!(f, "{} {}", self.seed, kinds.words()),
        }
    }
}

/// Longest delay by one liberty: long enough for a card that programs run into it, and short for
/// retransmission timers, which on real cards are at least some hundred microseconds.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_micros(100);

/// Environment variable with the [`Liberties`] of every card of this process, in text form. If it is
/// malformed, no card starts.
pub const LIBERTIES_VARIABLE: &str = "SOFTHCA_LIBERTIES";

/// Environment variable with the path of a file with a [`Schedule`], which the cards of this process follow instead of
/// liberties. If it cannot be read or is malformed, no card starts.
pub const SCHEDULE_VARIABLE: &str = "SOFTHCA_SCHEDULE";

static PROCESS: Mutex<Process> = Mutex::new(Process { given: None, started: 0 });

struct Process {
    /// The value of [`set_schedule`], which overrides the environment.
    given: Option<Option<Arc<Schedule>>>,
    /// Number of cards started so far.
    started: u64,
}

/// Returns the schedule that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn from_environment() -> Result<Option<Schedule>, SettingError> {
    let liberties: Option<Liberties> = setting::parsed(LIBERTIES_VARIABLE, str::parse)?;
    let schedule = setting::parsed(SCHEDULE_VARIABLE, |path| {
        if liberties.is_some() {
            return Err(format!(
                "{LIBERTIES_VARIABLE} is set, too: a card follows one of them; unset the other"
            ));
        }
        Schedule::read(Path::new(path))
    })?;
    Ok(schedule.or(liberties.map(Schedule::from)))
}

/// Sets the liberties of the cards that this process starts from now on, overriding the environment.
pub fn set_liberties(liberties: Option<Liberties>) {
    set_schedule(liberties.map(Schedule::from));
}

/// Sets the schedule of the cards that this process starts from now on, overriding the environment.
pub fn set_schedule(schedule: Option<Schedule>) {
    PROCESS.lock().given = Some(schedule.map(Arc::new));
}

/// Begins a run of a search in this process: the cards that start from now on follow the schedule, and have the names of
/// the first cards of a process.
pub(crate) fn begin_run(schedule: Schedule) {
    *PROCESS.lock() = Process { given: Some(Some(Arc::new(schedule))), started: 0 };
}

/// Ends a search in this process.
pub(crate) fn end_exploring() {
    PROCESS.lock().given = None;
}

/// Returns the decisions of the next card to start.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn of_next_card() -> Result<Decisions, SettingError> {
    let mut process = PROCESS.lock();
    let schedule = match &process.given {
        Some(given) => given.clone(),
        None => from_environment()?.map(Arc::new),
    };
    let card = process.started;
    process.started += 1;
    Ok(Decisions::new(schedule.as_deref(), card))
}

/// Returns decisions for one card, independent of the process's. `card` is its index among those that follow the
/// schedule.
pub(crate) fn of_one_card(schedule: Option<&Schedule>, card: u64) -> Decisions {
    Decisions::new(schedule, card)
}

#[cfg(test)]
mod tests;

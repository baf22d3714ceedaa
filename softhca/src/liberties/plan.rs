//! Which liberties a card takes, and its text form.

use std::fmt;
use std::str::FromStr;

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
}

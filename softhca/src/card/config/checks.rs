//! Checks of a program, beyond those of its requests.

use crate::setting::{self, SettingError};
use std::str::FromStr;

/// Environment variable with what all cards of this process check of their program: words separated by `,` or spaces.
///
/// | word | check |
/// |---|---|
/// | `use` | what the program changes or destroys while a work request uses it |
/// | `watch` | reads of bytes that have not come yet: protects their pages |
pub const CHECKS_VARIABLE: &str = "SOFTHCA_CHECKS";

bitflags::bitflags! {
    /// Checks of what a program does with memory and objects that belong to the card. They find a mistake where it is made,
    /// even if the program works by luck. Default: none, as they cost time.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Checks: u8 {
        /// Memory and objects that the program changes or destroys while a work request uses them.
        const USE = 1 << 0;
        /// Reads of bytes that have not come yet.
        const WATCH = 1 << 1;
    }
}

const WORDS: [(&str, Checks); 2] = [("use", Checks::USE), ("watch", Checks::WATCH)];

impl FromStr for Checks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        words.map(|word| setting::of_word(&WORDS, word)).collect()
    }
}

impl Checks {
    /// Returns the checks that the environment asks for.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub(crate) fn from_environment() -> Result<Checks, SettingError> {
        Ok(setting::parsed(CHECKS_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_ask_for_checks_and_others_are_refused() {
        let parse = |text: &str| text.parse::<Checks>();
        assert_eq!((parse(""), parse(" use,")), (Ok(Checks::empty()), Ok(Checks::USE)));
        assert_eq!(parse("watch use"), Ok(Checks::all()));
        assert!(parse("use all").unwrap_err().contains("`all` is none of its words"));
    }
}

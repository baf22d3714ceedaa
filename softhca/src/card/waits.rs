//! Switches for behaviour of work requests that wait which hardware documentation leaves open.

use crate::setting::{self, SettingError};
use std::str::FromStr;

/// Environment variable with the [`WaitRules`] of all cards of this process: words separated by `,` or spaces.
///
/// | word | rule |
/// |---|---|
/// | `off` | [`WaitRules::supported`] is false |
/// | `no-cd` | [`WaitRules::cross_channel`] is false |
/// | `errors-hold` | [`WaitRules::errors_count`] is false |
pub const WAITS_VARIABLE: &str = "SOFTHCA_WAITS";

/// How a card treats work requests that wait.
///
/// ```
/// use softhca::card::WaitRules;
/// assert_eq!("errors-hold".parse(), Ok(WaitRules { errors_count: false, ..WaitRules::default() }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRules {
    /// True if the card has WAIT and SEND_EN, and reports the capabilities. Otherwise such work requests fail, as on
    /// cards before ConnectX-7. Default: true.
    pub supported: bool,
    /// True if the card has WAIT for completion queues and SEND_EN (capability `cd`), besides WAIT for words and times,
    /// which have separate capabilities. Default: true.
    pub cross_channel: bool,
    /// True if an error entry satisfies a WAIT for a completion queue like any other. Otherwise no entry from the first
    /// error entry on does. Default: true, because the modifier of that WAIT is named `CQ_PI` (DPDK's `mlx5_prm.h`)
    /// after the producer index, which counts all entries; the behaviour of hardware is not published.
    pub errors_count: bool,
}

impl Default for WaitRules {
    fn default() -> Self {
        WaitRules { supported: true, cross_channel: true, errors_count: true }
    }
}

impl FromStr for WaitRules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rules = WaitRules::default();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word {
                "off" => rules.supported = false,
                "no-cd" => rules.cross_channel = false,
                "errors-hold" => rules.errors_count = false,
                _ => {
                    return Err(format!(
                        "`{word}` is none of its words, which are off, no-cd and errors-hold"
                    ));
                }
            }
        }
        Ok(rules)
    }
}

impl WaitRules {
    /// Returns whether the card has WAIT for completion queues and SEND_EN.
    pub fn has_cross_channel(&self) -> bool {
        self.supported && self.cross_channel
    }

    /// Returns the rules from the environment.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub(crate) fn from_environment() -> Result<WaitRules, SettingError> {
        Ok(setting::parsed(WAITS_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_switch_rules_off_and_others_are_refused() {
        let parse = |text: &str| text.parse::<WaitRules>();
        let all = WaitRules::default();
        assert_eq!(parse(""), Ok(all));
        assert_eq!(parse("off"), Ok(WaitRules { supported: false, ..all }));
        assert_eq!(parse("no-cd"), Ok(WaitRules { cross_channel: false, ..all }));
        assert_eq!(
            parse(" errors-hold, off"),
            Ok(WaitRules { supported: false, errors_count: false, ..all })
        );
        assert!(all.has_cross_channel());
        assert!(!parse("no-cd").unwrap().has_cross_channel() && !parse("off").unwrap().has_cross_channel());
        assert!(parse("on").unwrap_err().contains("`on` is none of its words"));
    }
}

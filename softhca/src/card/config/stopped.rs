//! Peers whose process is stopped.

use crate::setting::{self, SettingError};
use std::str::FromStr;

/// Environment variable that says how the time-outs of all cards of this process treat a peer of this host whose process
/// is stopped by a signal (SIGSTOP, SIGTSTP): `expire` (default) or `wait`.
///
/// | word | a time-out while the peer is stopped |
/// |---|---|
/// | `expire` | counts, as if the peer's card had failed |
/// | `wait` | does not count: a real card answers without its host's CPU, and a software card does so as soon as it can |
///
/// A peer that runs, though it is busy or gets no processor, is waited for in either case, as is one in a debugger.
pub const STOPPED_VARIABLE: &str = "SOFTHCA_STOPPED";

/// How time-outs treat a peer of this host whose process is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoppedPeers {
    /// They count.
    #[default]
    Expire,
    /// They do not count.
    Wait,
}

const WORDS: [(&str, StoppedPeers); 2] = [("expire", StoppedPeers::Expire), ("wait", StoppedPeers::Wait)];

impl FromStr for StoppedPeers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        setting::of_word(&WORDS, text)
    }
}

impl StoppedPeers {
    /// Returns what the environment asks for.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub(crate) fn from_environment() -> Result<StoppedPeers, SettingError> {
        Ok(setting::parsed(STOPPED_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

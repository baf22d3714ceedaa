//! Settings in the environment, and the errors for those that are unknown or malformed.

use std::ffi::OsStr;
use std::fmt;

/// Prefix of the names of all settings. No other variable may have it.
pub const PREFIX: &str = "SOFTHCA_";

/// The settings of the card and of the programs around it: the stand-ins for system files and the log of the
/// preload library, and the file that `gdsync soft` preloads.
pub const NAMES: [&str; 17] = [
    "SOFTHCA_CHECKS",
    "SOFTHCA_CLOCK",
    "SOFTHCA_DEVICES",
    "SOFTHCA_FAULTS",
    "SOFTHCA_FILES",
    "SOFTHCA_JOB",
    "SOFTHCA_KEY",
    "SOFTHCA_KEY_FILE",
    "SOFTHCA_LIBERTIES",
    "SOFTHCA_LISTEN",
    "SOFTHCA_LOG",
    "SOFTHCA_OBJECTS",
    "SOFTHCA_PKEYS",
    "SOFTHCA_SCHEDULE",
    "SOFTHCA_STOPPED",
    "SOFTHCA_UVERBS_LIBRARY",
    "SOFTHCA_WAITS",
];

/// Number of characters of a value that a message repeats.
const SHOWN: usize = 80;

/// An unknown or malformed setting in the environment. No card starts with it: a run without its faults, or
/// on another fabric, would look like the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// No setting has that name.
    #[error("{name} is set, but there is no such setting: the settings are {}; correct the name, or unset it", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A value is malformed.
    #[error("{name} is `{value}`: {problem}")]
    Malformed {
        /// The setting.
        name: &'static str,
        /// Its value, up to 80 characters.
        value: String,
        /// The problem, and the values that are allowed.
        problem: String,
    },
    /// The key that cards share is missing or unusable. Its value is secret and not shown.
    #[error("{problem}")]
    Key {
        /// The problem and the remedy.
        problem: String,
    },
}

impl SettingError {
    /// Makes the error for a malformed value of the setting `name`.
    pub fn malformed(name: &'static str, value: &str, problem: impl fmt::Display) -> Self {
        let value = value.chars().take(SHOWN).collect();
        SettingError::Malformed { name, value, problem: problem.to_string() }
    }
}

/// Returns the value of a setting; an empty one counts as unset. Bytes that are not UTF-8 are replaced, so
/// that such a value is malformed.
pub(crate) fn value(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the value with that word.
///
/// # Errors
/// There is none: the text names all words.
pub(crate) fn of_word<T: Copy>(words: &[(&str, T)], word: &str) -> Result<T, String> {
    let known = words.iter().find(|(name, _)| *name == word);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        format!("`{word}` is none of its words, which are {}", names.join(", "))
    })
}

/// Parses the value of a setting with `parse`; `None` if it is unset.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn parsed<T, E: fmt::Display>(
    name: &'static str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, SettingError> {
    let Some(text) = value(name) else { return Ok(None) };
    parse(&text).map(Some).map_err(|problem| SettingError::malformed(name, &text, problem))
}

/// Checks the names of all settings.
///
/// # Errors
/// [`SettingError::Unknown`].
pub(crate) fn check_names() -> Result<(), SettingError> {
    unknown(std::env::vars_os().map(|(name, _)| name)).map_or(Ok(()), Err)
}

fn unknown(names: impl Iterator<Item = impl AsRef<OsStr>>) -> Option<SettingError> {
    let mut unknown = names.filter_map(|name| {
        let name = name.as_ref().to_string_lossy();
        (name.starts_with(PREFIX) && !NAMES.contains(&&*name)).then(|| name.into_owned())
    });
    unknown.next().map(|name| SettingError::Unknown { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_or_an_error() {
        assert!(NAMES.iter().all(|name| name.starts_with(PREFIX)));
        assert_eq!(unknown(NAMES.iter()), None);
        assert_eq!(unknown(["HOME", "softhca_faults", "GDSYNC_LOG"].iter()), None);
        let error = unknown(["HOME", "SOFTHCA_FAULT"].iter()).unwrap();
        assert_eq!(
            error.to_string(),
            "SOFTHCA_FAULT is set, but there is no such setting: the settings are SOFTHCA_CHECKS, SOFTHCA_CLOCK, SOFTHCA_DEVICES, SOFTHCA_FAULTS, \
             SOFTHCA_FILES, SOFTHCA_JOB, SOFTHCA_KEY, SOFTHCA_KEY_FILE, SOFTHCA_LIBERTIES, SOFTHCA_LISTEN, SOFTHCA_LOG, SOFTHCA_OBJECTS, SOFTHCA_PKEYS, SOFTHCA_SCHEDULE, SOFTHCA_STOPPED, SOFTHCA_UVERBS_LIBRARY, SOFTHCA_WAITS; correct the name, or unset it"
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let error = SettingError::malformed("SOFTHCA_FAULTS", &"ü".repeat(1000), "no plan");
        assert_eq!(error.to_string(), format!("SOFTHCA_FAULTS is `{}`: no plan", "ü".repeat(80)));
    }
}

//! Settings in the environment: which there are, and what is said of one that is not understood.

use std::ffi::OsStr;
use std::fmt;

/// How the names of all settings begin. No other variable of the environment may begin so.
pub const PREFIX: &str = "SOFTHCA_";

/// The settings of the card, and those of the programs around it: the stand-ins for files of the system
/// and the log of the preload library, and the file that `gdsync soft` preloads.
pub const NAMES: [&str; 12] = [
    "SOFTHCA_CLOCK",
    "SOFTHCA_DEVICES",
    "SOFTHCA_FAULTS",
    "SOFTHCA_FILES",
    "SOFTHCA_KEY",
    "SOFTHCA_KEY_FILE",
    "SOFTHCA_LIBERTIES",
    "SOFTHCA_LISTEN",
    "SOFTHCA_LOG",
    "SOFTHCA_OBJECTS",
    "SOFTHCA_UVERBS_LIBRARY",
    "SOFTHCA_WAITS",
];

/// Longest part of a value that a message repeats, in characters.
const SHOWN: usize = 80;

/// A setting in the environment that is not understood. No card starts with it: a run without its
/// faults, or on another fabric, would look like the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// There is no setting of that name.
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
        /// Its value, at most its first 80 characters.
        value: String,
        /// What is wrong with it, and what is allowed.
        problem: String,
    },
    /// The key that cards share is missing or unusable. Its value is secret, and not shown.
    #[error("{problem}")]
    Key {
        /// What is wrong, and the remedy.
        problem: String,
    },
}

impl SettingError {
    /// A value of the setting `name` is malformed.
    pub fn malformed(name: &'static str, value: &str, problem: impl fmt::Display) -> Self {
        let value = value.chars().take(SHOWN).collect();
        SettingError::Malformed { name, value, problem: problem.to_string() }
    }
}

/// The value of a setting. An empty one counts as none. Bytes that are no UTF-8 are replaced, so
/// that no value with them is well-formed.
pub(crate) fn value(name: &str) -> Option<String> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
}

/// The value of a setting, as `parse` understands it; `None` without one.
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
            "SOFTHCA_FAULT is set, but there is no such setting: the settings are SOFTHCA_CLOCK, SOFTHCA_DEVICES, SOFTHCA_FAULTS, \
             SOFTHCA_FILES, SOFTHCA_KEY, SOFTHCA_KEY_FILE, SOFTHCA_LIBERTIES, SOFTHCA_LISTEN, SOFTHCA_LOG, SOFTHCA_OBJECTS, SOFTHCA_UVERBS_LIBRARY, SOFTHCA_WAITS; correct the name, or unset it"
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let error = SettingError::malformed("SOFTHCA_FAULTS", &"ü".repeat(1000), "no plan");
        assert_eq!(error.to_string(), format!("SOFTHCA_FAULTS is `{}`: no plan", "ü".repeat(80)));
    }
}

//! The record of a step: its outcome and its facts.

use serde::{Deserialize, Serialize};

/// The record of one step on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    /// In the order in which the step saw them.
    pub(super) facts: Vec<Fact>,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(super) enum Outcome {
    Passed,
    /// The card or the library did what the step does not allow.
    Failed {
        why: String,
    },
    /// The step cannot run here: why, and what would let it.
    Skipped {
        why: String,
        remedy: String,
    },
    /// The step ended by its limit.
    Hung {
        limit_s: u64,
        /// The last fact before it.
        after: String,
    },
    /// Its process ended otherwise.
    Crashed {
        how: String,
    },
}

impl Outcome {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed { .. } => "failed",
            Outcome::Skipped { .. } => "skipped",
            Outcome::Hung { .. } => "hung",
            Outcome::Crashed { .. } => "crashed",
        }
    }

    /// True if neither the card nor the step has done wrong.
    pub(super) fn is_good(&self) -> bool {
        matches!(self, Outcome::Passed | Outcome::Skipped { .. })
    }

    /// Why the step did not pass; empty if it did.
    pub(super) fn reason(&self) -> String {
        match self {
            Outcome::Passed => String::new(),
            Outcome::Failed { why } => why.clone(),
            Outcome::Skipped { why, remedy } => format!("{why}: {remedy}"),
            Outcome::Hung { limit_s, after } if after.is_empty() => format!("no end within {limit_s} s"),
            Outcome::Hung { limit_s, after } => {
                format!("no end within {limit_s} s; the last fact was {after}")
            }
            Outcome::Crashed { how } => how.clone(),
        }
    }
}

/// Something that a step saw, under a name that is the same on every card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fact {
    pub(super) name: String,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    Bytes {
        layout: Layout,
        /// Two hexadecimal digits for each byte, or two dots for one that differs from run to run, or identifies the host.
        bytes: String,
    },
}

/// The layout of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layout {
    /// An entry of a completion queue, of 64 bytes.
    Entry,
    /// An error entry.
    ErrorEntry,
    /// The context of a queue pair, of 232 bytes (`qpc` of `mlx5_ifc.h`).
    Context,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => f.write_str(text),
            Value::Bytes { bytes, .. } => f.write_str(bytes),
        }
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Value::Number(number.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

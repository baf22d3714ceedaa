//! Checks and their results.

use crate::text::{BAD, GOOD, POOR};
use anstyle::Style;
use serde::Serialize;
use std::fmt;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Pass,
    /// Could not be found out, or there is nothing to look at.
    Skip,
    /// Works, but not as well as it could; or is not there at all.
    Warn,
    /// Is there, and does not work.
    Fail,
}

impl Status {
    /// As in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Skip => "skip",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }

    /// Its color on a terminal.
    pub(super) fn style(self) -> Style {
        match self {
            Status::Pass => GOOD,
            Status::Skip => Style::new(),
            Status::Warn => POOR,
            Status::Fail => BAD,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Status::Pass => "pass",
            Status::Skip => "skip",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    /// What was found; of a skipped check, why nothing was.
    pub seen: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do: a command, or a line of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Commands that mend it, for a shell; none where no command does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Check {
    /// Commands that mend what was found. They are printed where the user asks, never run.
    pub(super) fn fixed_by<C: Into<String>>(mut self, commands: impl IntoIterator<Item = C>) -> Self {
        self.commands = commands.into_iter().map(Into::into).collect();
        self
    }
}

/// A check that is going to be answered: its name, and why it matters.
#[derive(Clone, Debug)]
pub(super) struct Question {
    name: String,
    why: &'static str,
}

impl Question {
    pub(super) fn new(name: impl Into<String>, why: &'static str) -> Self {
        Question { name: name.into(), why }
    }

    pub(super) fn pass(self, seen: impl Into<String>) -> Check {
        self.answer(Status::Pass, seen.into(), None)
    }

    /// `reason`: what could not be read, and why.
    pub(super) fn skip(self, reason: impl fmt::Display) -> Check {
        self.answer(Status::Skip, reason.to_string(), None)
    }

    /// As [`Self::skip`], where something can be done so that the answer is found.
    pub(super) fn unknown(self, reason: impl fmt::Display, remedy: impl Into<String>) -> Check {
        self.answer(Status::Skip, reason.to_string(), Some(remedy.into()))
    }

    pub(super) fn warn(self, seen: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.answer(Status::Warn, seen.into(), Some(remedy.into()))
    }

    pub(super) fn fail(self, seen: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.answer(Status::Fail, seen.into(), Some(remedy.into()))
    }

    fn answer(self, status: Status, seen: String, remedy: Option<String>) -> Check {
        Check { name: self.name, status, seen, why: self.why, remedy, commands: Vec::new() }
    }
}

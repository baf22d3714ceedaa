//! `gdsync doctor`: what works for GPUDirect Async on a machine, what does not, and the remedies.
//!
//! A check never guesses: what cannot be read is skipped, with the reason. The doctor changes nothing and takes no GPU
//! memory.

mod driver;
mod files;
mod libraries;
mod machine;
mod peers;
mod process;
mod rdma;
mod registration;
mod report;
mod slots;
mod topology;

use crate::cli::DoctorOptions;
use crate::failure::Failure;
use crate::text::{self, BAD, GOOD, POOR};
use anstyle::Style;
use files::Tree;
use libraries::Libraries;
use machine::Machine;
pub use report::Family;
use report::Report;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

pub fn run(options: &DoctorOptions) -> Result<ExitCode, Failure> {
    let (tree, libraries) = match &options.root {
        Some(root) => {
            if !root.is_dir() {
                return Err(format!("{} is no folder", root.display()).into());
            }
            let tree = Tree::new(root);
            let libraries = Libraries::recorded(&tree)?;
            (tree, libraries)
        }
        None => (Tree::new(Path::new("/")), Libraries::ask()),
    };
    let mut report = examine(&tree, &libraries);
    if options.problems {
        report.keep_problems();
    }
    text::print(options.json, &report, || if options.fix { report.script() } else { report.text() })?;
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub fn families() -> Vec<Family> {
    examine(&Tree::new(Path::new("/")), &Libraries::ask()).families
}

fn examine(tree: &Tree, libraries: &Libraries) -> Report {
    let machine = Machine::survey(tree, libraries);
    let (paths, pairs) = (topology::paths(&machine), peers::pairs(&machine));
    let family = |family, checks| Family { family, checks };
    let families = [
        family("GPU", driver::checks(&machine)),
        family(
            "Process",
            [
                vec![process::channels(&machine), process::container(&machine)],
                process::control_group(&machine).into_iter().collect(),
            ]
            .concat(),
        ),
        family("GPU memory", registration::checks(&machine)),
        family(
            "Cards",
            [rdma::checks(&machine), vec![process::services(&machine)], rdma::waits(&machine)].concat(),
        ),
        family(
            "PCI Express",
            [
                topology::platform_checks(&machine, &paths),
                slots::checks(&machine),
                topology::checks(&machine, &paths),
                peers::nodes(&machine),
            ]
            .concat(),
        ),
        family("Between GPUs", peers::checks(&pairs)),
    ];
    Report::new(families.into_iter().filter(|family| !family.checks.is_empty()).collect(), paths, pairs)
}

/// Removes a library error's own remedy; the check words another.
fn without_remedy(error: &str) -> String {
    error.split(": install").next().unwrap_or(error).to_owned()
}

fn yes_or_no(has: bool) -> &'static str {
    if has { "yes" } else { "no" }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Works as it should.
    Pass,
    /// Unknown, or nothing to check.
    Skip,
    /// Is not on this machine.
    Absent,
    /// Works, but could work better.
    Warn,
    /// Exists, and does not work.
    Fail,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::Pass => "pass",
            Status::Skip => "skip",
            Status::Absent => "absent",
            Status::Warn => "warn",
            Status::Fail => "fail",
        }
    }

    pub(super) fn style(self) -> Style {
        match self {
            Status::Pass => GOOD,
            Status::Skip | Status::Absent => Style::new(),
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
            Status::Absent => "absent",
            Status::Warn => "WARN",
            Status::Fail => "FAIL",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub status: Status,
    /// The finding; for a skipped check, the reason.
    pub seen: String,
    pub why: &'static str,
    /// The remedy: a command, or a line of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Shell commands that fix it, if any do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Check {
    /// Adds commands that fix what was found. They are printed on request, never run.
    pub(super) fn fixed_by<C: Into<String>>(mut self, commands: impl IntoIterator<Item = C>) -> Self {
        self.commands = commands.into_iter().map(Into::into).collect();
        self
    }
}

/// A check without a result yet: its name, and why it matters.
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

    /// Like [`Self::skip`], with a remedy that lets the check find the answer.
    pub(super) fn unknown(self, reason: impl fmt::Display, remedy: impl Into<String>) -> Check {
        self.answer(Status::Skip, reason.to_string(), Some(remedy.into()))
    }

    /// `remedy`: what to do if it should be there.
    pub(super) fn absent(self, seen: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.answer(Status::Absent, seen.into(), Some(remedy.into()))
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

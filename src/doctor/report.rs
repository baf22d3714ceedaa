//! The doctor's report as text.

use super::peers::Pair;
use super::topology::Path;
use super::{Check, Status};
use crate::{table, text};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Family {
    pub family: &'static str,
    pub checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) families: Vec<Family>,
    paths: Vec<Path>,
    pairs: Vec<Pair>,
    summary: Summary,
    /// What works here, what does not, and what is not there, in one line.
    verdict: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Summary {
    pass: usize,
    warn: usize,
    fail: usize,
    absent: usize,
    skip: usize,
}

impl Report {
    pub(super) fn new(families: Vec<Family>, paths: Vec<Path>, pairs: Vec<Pair>) -> Self {
        let mut summary = Summary::default();
        for check in families.iter().flat_map(|family| &family.checks) {
            *match check.status {
                Status::Pass => &mut summary.pass,
                Status::Skip => &mut summary.skip,
                Status::Absent => &mut summary.absent,
                Status::Warn => &mut summary.warn,
                Status::Fail => &mut summary.fail,
            } += 1;
        }
        let verdict = verdict(&families);
        Report { families, paths, pairs, summary, verdict }
    }

    /// Leaves only what could be mended, beside the summary and the verdict.
    pub(super) fn keep_problems(&mut self) {
        for family in &mut self.families {
            family.checks.retain(|check| check.status >= Status::Warn);
        }
        self.families.retain(|family| !family.checks.is_empty());
        (self.paths, self.pairs) = (Vec::new(), Vec::new());
    }

    /// True if something exists that does not work.
    pub(super) fn failed(&self) -> bool {
        self.summary.fail > 0
    }

    pub(super) fn text(&self) -> String {
        let checks = || self.families.iter().flat_map(|family| &family.checks);
        let width = checks().map(|check| check.name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        let mut line = |text: String| out += &(text + "\n");
        for family in &self.families {
            line(family.family.to_owned());
            for check in &family.checks {
                let status = text::styled(check.status.style(), format_args!("{:6}", check.status));
                line(format!("  {status}  {:width$}  {}", check.name, check.seen));
                let Some(remedy) = &check.remedy else { continue };
                // Aligns with the finding.
                let indent = " ".repeat(width + 12);
                if check.status != Status::Absent {
                    line(format!("{indent}why: {}", check.why));
                }
                line(format!("{indent}do:  {remedy}"));
            }
        }
        if !self.paths.is_empty() {
            line("\nPaths".to_owned());
            line(self.matrix().trim_end().to_owned());
        }
        if !self.pairs.is_empty() {
            line("\nAccess between GPUs".to_owned());
            line(self.access().trim_end().to_owned());
        }
        let Summary { pass, warn, fail, absent, skip } = self.summary;
        let begin = if self.families.is_empty() { "" } else { "\n" };
        line(format!("{begin}{pass} pass, {warn} warn, {fail} fail, {absent} absent, {skip} skipped"));
        line(self.verdict.clone());
        out
    }

    /// Returns a script that fixes what commands can fix. It is meant to be read first.
    pub(super) fn script(&self) -> String {
        let checks = self.families.iter().flat_map(|family| &family.checks);
        let mut out =
            "# What `gdsync doctor` would have you do. Nothing of it has been done; most of it wants root.\n"
                .to_owned();
        let found = checks.filter(|check| check.status >= Status::Warn);
        let mut count = 0;
        for check in found {
            count += 1;
            out += &format!("\n# {} {}: {}\n", check.status, check.name, check.seen);
            match (&check.commands[..], &check.remedy) {
                ([], Some(remedy)) => out += &format!("# no command: {remedy}\n"),
                (commands, _) => commands.iter().for_each(|command| out += &format!("{command}\n")),
            }
        }
        if count == 0 {
            out += "\n# Nothing to mend.\n";
        }
        out
    }

    /// Formats a row and a column for each GPU.
    fn access(&self) -> String {
        let gpus = each_once(self.pairs.iter().flat_map(|pair| &pair.gpus));
        grid(&gpus, &gpus, |row, column| {
            let of = |pair: &&Pair| pair.gpus.iter().all(|gpu| gpu == row || gpu == column);
            let pair = self.pairs.iter().find(of).filter(|_| row != column);
            pair.map_or_else(|| "X".to_owned(), Pair::mark)
        })
    }

    /// Formats a row for each GPU and a column for each card.
    fn matrix(&self) -> String {
        let gpus = each_once(self.paths.iter().map(|path| &path.gpu));
        let cards = each_once(self.paths.iter().map(|path| &path.card));
        grid(&gpus, &cards, |gpu, card| {
            let path = self.paths.iter().find(|path| path.gpu == gpu && path.card == card);
            path.and_then(|path| path.class).map_or_else(|| "?".to_owned(), |class| class.to_string())
        })
    }
}

fn verdict(families: &[Family]) -> String {
    let checks = || families.iter().flat_map(|family| &family.checks);
    let named = |status: Status| {
        let of_status = checks().filter(|check| check.status == status);
        of_status.map(|check| check.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let [failed, warned, absent] = [Status::Fail, Status::Warn, Status::Absent].map(named);
    let works = |name: &str| checks().any(|check| check.name == name && check.status == Status::Pass);
    let streams = if works("CUDA") { "streams of GPUs" } else { "software streams" };
    let cards = if works("RDMA devices") { "RDMA cards" } else { "the software card" };
    let mut text = match failed.as_str() {
        "" => format!("Verdict: {streams} and {cards} work here"),
        failed => format!("Verdict: does not work here: {failed}"),
    };
    for (what, names) in [("could be better", warned), ("absent", absent)] {
        if !names.is_empty() {
            text += &format!("; {what}: {names}");
        }
    }
    text
}

/// Returns each name once, in order of first appearance.
fn each_once<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name.as_str()) {
            all.push(name);
        }
    }
    all
}

fn grid(rows: &[&str], columns: &[&str], mark: impl Fn(&str, &str) -> String) -> String {
    let row = |row: &&str| {
        let marks = columns.iter().map(|column| mark(row, column));
        std::iter::once((*row).to_owned()).chain(marks).collect()
    };
    let header: Vec<&str> = std::iter::once("").chain(columns.iter().copied()).collect();
    table::of(&header, &rows.iter().map(row).collect::<Vec<_>>(), &[])
}

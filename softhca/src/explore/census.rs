//! The decisions and messages in the journals of a run.

use crate::liberties::journal::Entry;
use crate::liberties::{Decision, LibertyKinds, Rule};
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// The journal of a card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// The card's name, as rules name it.
    pub card: String,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
}

impl Journal {
    /// Parses the text of a journal. A line that was not written whole, as the process ended, is left out.
    pub(super) fn parse(card: String, text: &str) -> Self {
        Journal { card, entries: text.lines().filter_map(|line| line.parse().ok()).collect() }
    }
}

/// Reads the journals of a run from the folder [`JOURNALS`](crate::liberties::journal::JOURNALS) of its job.
///
/// # Errors
/// The system's.
pub fn read_journals(folder: &Path) -> io::Result<Vec<Journal>> {
    let mut journals = Vec::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let card = file.file_name().to_string_lossy().replace('@', "/");
        journals.push(Journal::parse(card, &String::from_utf8_lossy(&fs::read(file.path())?)));
    }
    journals.sort_by(|one, other| one.card.cmp(&other.card));
    Ok(journals)
}

/// A kind of decision of one queue pair.
pub(super) type Group = (LibertyKinds, String, u32);

/// The decisions of a run.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Decisions in the order in which each card made them, by kind, card and queue pair.
    pub(super) groups: BTreeMap<Group, Vec<Decision>>,
    /// Cards whose journals were too long.
    pub incomplete: Vec<String>,
}

impl Census {
    /// Returns the decisions of these kinds.
    pub(super) fn of(journals: &[Journal], kinds: LibertyKinds) -> Self {
        let mut census = Census::default();
        for Journal { card, entries } in journals {
            for entry in entries {
                match entry {
                    Entry::Decided { decision, .. } if kinds.contains(decision.kind) => {
                        let group = (decision.kind, card.clone(), decision.work.qp);
                        census.groups.entry(group).or_default().push(*decision);
                    }
                    Entry::Full => census.incomplete.push(card.clone()),
                    _ => {}
                }
            }
        }
        census
    }

    /// Returns the number of decisions of each kind that has some.
    pub fn counts(&self) -> Vec<(LibertyKinds, usize)> {
        let count =
            |kind| self.groups.iter().filter(|((of, ..), _)| *of == kind).map(|(_, all)| all.len()).sum();
        let counts = LibertyKinds::all().iter().map(|kind| (kind, count(kind)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the number of all decisions.
    pub fn total(&self) -> usize {
        self.groups.values().map(Vec::len).sum()
    }
}

/// Returns rules for the single decisions that cards have taken.
pub(super) fn taken(journals: &[Journal]) -> Vec<Rule> {
    let taken = |entry: &Entry| match entry {
        Entry::Decided { decision, taken: true } => Some(*decision),
        _ => None,
    };
    let of_card = |Journal { card, entries }: &Journal| {
        entries.iter().filter_map(taken).map(|decision| Rule::single(card, decision)).collect::<Vec<_>>()
    };
    journals.iter().flat_map(of_card).collect()
}

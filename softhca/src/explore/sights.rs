//! Findings of the cards' checks in the runs of a job.

use super::census::Journal;
use crate::liberties::journal::Entry;
use std::fmt;

/// A finding of a card's check, one or more times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The card.
    pub card: String,
    /// The first finding, for people.
    pub text: String,
    /// How often it was found: with other numbers, too.
    pub times: u64,
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sight { card, text, times } = self;
        write!(f, "{card}: {text}")?;
        if *times > 1 { write!(f, " ({times} times)") } else { Ok(()) }
    }
}

/// Returns what checks have found in a run. Findings of a card that differ only by numbers, such as addresses, are one.
pub fn sights(journals: &[Journal]) -> Vec<Sight> {
    let mut all = Vec::new();
    for Journal { card, entries } in journals {
        for entry in entries {
            if let Entry::Found { text } = entry {
                add(&mut all, Sight { card: card.clone(), text: text.clone(), times: 1 });
            }
        }
    }
    all
}

/// Adds a finding.
pub(super) fn add(all: &mut Vec<Sight>, new: Sight) {
    let is_same = |old: &&mut Sight| old.card == new.card && kind_of(&old.text) == kind_of(&new.text);
    match all.iter_mut().find(is_same) {
        Some(old) => old.times += new.times,
        None => all.push(new),
    }
}

/// Returns a text without its numbers.
fn kind_of(text: &str) -> String {
    let is_number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    let words = text.split([' ', ':', '.', ',', '(', ')']).filter(|word| !is_number(word));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_that_differ_by_numbers_are_one() {
        let found = |text: &str| Entry::Found { text: text.to_owned() };
        let texts = ["queue pair 0x47 WQE 3 x: bytes 0x70..0x80", "queue pair 0x51 WQE 4 x: bytes 0x0..0x9"];
        let entries = vec![found(texts[0]), Entry::Full, found("queue pair 0x47 y: z"), found(texts[1])];
        let journals = ["p", "p/1"].map(|card| Journal { card: card.to_owned(), entries: entries.clone() });
        let sights = sights(&journals);
        let times: Vec<_> = sights.iter().map(|sight| (sight.card.as_str(), sight.times)).collect();
        assert_eq!(times, [("p", 2), ("p", 1), ("p/1", 2), ("p/1", 1)]);
        assert_eq!(sights[0].to_string(), format!("p: {} (2 times)", texts[0]));
        assert_eq!(sights[1].to_string(), "p: queue pair 0x47 y: z");
    }
}

//! The journal of a process: the decisions of its cards and the messages that they placed, for a search through
//! schedules (`gdsync soft --explore`).
//!
//! A process may end at any moment, so every line is written at once.

use super::decision::{Decision, Work};
use super::schedule::Rule;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Folder inside a job's in which each card keeps its journal, if it is there.
pub const JOURNALS: &str = "journals";

/// Maximum number of lines of a card. Later decisions are not written.
const LINES: u32 = 100_000;

/// The journal of a card. Its lines are those of [`Entry`].
#[derive(Debug)]
pub(crate) struct CardJournal {
    sink: Sink,
    lines: u32,
    /// Decisions that were written: one that is made again has the same result.
    known: HashSet<Decision>,
}

/// Where a journal goes.
#[derive(Debug)]
enum Sink {
    File(File),
    Memory(Arc<Mutex<String>>),
}

/// The journals of this process's cards, by name, while they are kept in memory.
type Kept = Vec<(String, Arc<Mutex<String>>)>;

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// Journals of cards of this process, kept in memory from [`keep_in_memory`] on.
pub(crate) struct KeptJournals(());

/// Keeps the journals of the cards that this process starts from now on in memory.
pub(crate) fn keep_in_memory() -> KeptJournals {
    *KEPT.lock() = Some(Vec::new());
    KeptJournals(())
}

impl KeptJournals {
    /// Returns the names of the cards and the texts of their journals.
    pub(crate) fn end(self) -> Vec<(String, String)> {
        let kept = KEPT.lock().take().unwrap_or_default();
        kept.into_iter().map(|(card, text)| (card, text.lock().clone())).collect()
    }
}

/// Returns the name of a process without a job, while journals are kept in memory.
pub(super) fn name_in_memory() -> Option<String> {
    KEPT.lock().is_some().then(|| "this".to_owned())
}

/// Starts the journal of a card, if one is kept and the card has a name.
pub(super) fn of_card(name: Option<&str>, job: Option<&Path>) -> Option<CardJournal> {
    if let Some(kept) = &mut *KEPT.lock() {
        let text = Arc::<Mutex<String>>::default();
        kept.push((name?.to_owned(), text.clone()));
        return Some(CardJournal::new(Sink::Memory(text)));
    }
    let journals = job?.join(JOURNALS);
    if !journals.is_dir() {
        return None;
    }
    let path = journals.join(name?.replace('/', "@"));
    match File::options().create(true).append(true).open(&path) {
        Ok(file) => Some(CardJournal::new(Sink::File(file))),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the card keeps no journal");
            None
        }
    }
}

/// A line of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The card decided. `taken`: it differs from a prompt and orderly card.
    Decided {
        /// The decision.
        decision: Decision,
        /// True if it takes the liberty.
        taken: bool,
    },
    /// The card made a queue pair: its number among those of the card, and its QPN.
    Made {
        /// The number.
        qp: u32,
        /// The QPN.
        qpn: u32,
    },
    /// The card executes a packet of a message: from here on its bytes are in memory, unless a decision holds them back.
    Placed {
        /// The packet.
        work: Work,
        /// A description for people: for example `RDMA write of 8 bytes to 0x7f..`.
        text: String,
        /// QPN of the sender.
        from: u32,
        /// Earlier messages of the queue pair of which bytes are still held back.
        passed: Vec<u32>,
    },
    /// The card takes a work request from a send queue.
    Fetched {
        /// The request.
        work: Work,
        /// A description for people.
        text: String,
    },
    /// A check of the card has found something.
    Found {
        /// The finding, for people.
        text: String,
    },
    /// The journal ends here, as it is too long.
    Full,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Decided { decision, taken } => write!(f, "{} {decision}", if *taken { '+' } else { '-' }),
            Entry::Made { qp, qpn } => write!(f, "q {qp} {qpn:#x}"),
            Entry::Placed { work, text, from, passed } => {
                let passed: Vec<_> = passed.iter().map(u32::to_string).collect();
                write!(f, "p {work} from {from:#x} past [{}] {text}", passed.join(","))
            }
            Entry::Fetched { work, text } => write!(f, "f {work}: {text}"),
            Entry::Found { text } => write!(f, "! {text}"),
            Entry::Full => f.write_str("full"),
        }
    }
}

impl FromStr for Entry {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        if line == "full" {
            return Ok(Entry::Full);
        }
        let (letter, rest) = line.split_once(' ').ok_or(())?;
        match letter {
            "+" | "-" => {
                let rule: Rule = rest.parse().map_err(drop)?;
                Ok(Entry::Decided { decision: rule.decision().ok_or(())?, taken: letter == "+" })
            }
            "!" => Ok(Entry::Found { text: rest.to_owned() }),
            "q" => {
                let (qp, qpn) = rest.split_once(' ').ok_or(())?;
                Ok(Entry::Made { qp: qp.parse().map_err(drop)?, qpn: hexadecimal(qpn)? })
            }
            "f" => {
                let (work, text) = rest.split_once(": ").ok_or(())?;
                Ok(Entry::Fetched { work: work.parse()?, text: text.to_owned() })
            }
            "p" => {
                let (work, rest) = rest.split_once(" from ").ok_or(())?;
                let (from, rest) = rest.split_once(" past [").ok_or(())?;
                let (passed, text) = rest.split_once("] ").ok_or(())?;
                let passed = passed.split(',').filter(|number| !number.is_empty());
                Ok(Entry::Placed {
                    work: work.parse()?,
                    from: hexadecimal(from)?,
                    passed: passed.map(|number| number.parse().map_err(drop)).collect::<Result<_, ()>>()?,
                    text: text.to_owned(),
                })
            }
            _ => Err(()),
        }
    }
}

fn hexadecimal(text: &str) -> Result<u32, ()> {
    u32::from_str_radix(text.strip_prefix("0x").ok_or(())?, 16).map_err(drop)
}

impl CardJournal {
    fn new(sink: Sink) -> Self {
        CardJournal { sink, lines: 0, known: HashSet::new() }
    }

    /// Returns a journal in memory, and its text.
    #[cfg(test)]
    pub(crate) fn in_memory() -> (Self, Arc<Mutex<String>>) {
        let text = Arc::<Mutex<String>>::default();
        (CardJournal::new(Sink::Memory(text.clone())), text)
    }

    /// Writes a line, unless there are too many.
    pub(crate) fn write(&mut self, entry: &Entry) {
        let entry = match self.lines {
            _ if matches!(entry, Entry::Found { .. }) => entry,
            LINES => &Entry::Full,
            more if more > LINES => return,
            _ => entry,
        };
        self.lines = self.lines.saturating_add(1);
        match &mut self.sink {
            // A line that is missing is a decision that the search does not know.
            Sink::File(file) => _ = file.write_all(format!("{entry}\n").as_bytes()),
            Sink::Memory(text) => _ = writeln!(text.lock(), "{entry}"),
        }
    }

    pub(super) fn decided(&mut self, decision: Decision, taken: bool) {
        if self.known.insert(decision) {
            self.write(&Entry::Decided { decision, taken });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::liberties::{LibertyKinds, Subject};

    #[test]
    fn lines_come_back() {
        let work = Work { qp: 3, subject: Subject::Message(12), packet: 4 };
        let completion = Work { subject: Subject::Completion(7), packet: 0, ..work };
        let decided = |kind, work, taken| Entry::Decided { decision: Decision { kind, work }, taken };
        let text = "RDMA write of 8 bytes to 0x7f00".to_owned();
        for entry in [
            decided(LibertyKinds::RELAXED, work, true),
            decided(LibertyKinds::COMPLETIONS, completion, false),
            Entry::Made { qp: 3, qpn: 0x47 },
            Entry::Placed { work, text: text.clone(), from: 0x49, passed: vec![] },
            Entry::Placed { work, text, from: 0x49, passed: vec![3, 5] },
            Entry::Fetched { work, text: "send of 4 bytes".to_owned() },
            Entry::Found { text: "queue pair 0x47 WQE 3 x: y".to_owned() },
            Entry::Full,
        ] {
            assert_eq!(entry.to_string().parse(), Ok(entry));
        }
        for line in
            ["", "+", "+ relaxed", "+ relaxed qp 3 message 1..2 packet 0", "q 3", "p x from 0x3 past [] y"]
        {
            assert_eq!(line.parse::<Entry>(), Err(()), "{line}");
        }
    }
}

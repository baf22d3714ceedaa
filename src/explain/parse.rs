//! Parser of a batch in text, one descriptor per line.

use gdsync::memop::Condition;
use gdsync::outline::{Descriptor, MAX_NUMBER, PaperSend, PaperWait};
use std::fmt;

pub(super) const MAX_DESCRIPTORS: usize = 100_000;

/// The conditions of waits, and their signs.
const SIGNS: [(&str, Condition); 4] =
    [(">=", Condition::Geq), ("==", Condition::Eq), ("and", Condition::And), ("nor", Condition::Nor)];

pub(super) fn sign(condition: Condition) -> &'static str {
    SIGNS.iter().find(|(_, known)| *known == condition).map_or("?", |(sign, _)| sign)
}

/// Names of one kind; a name's position is its number.
#[derive(Debug, Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        let known = self.0.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        }) as u32
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.0.get(number as usize).map_or("?", String::as_str)
    }
}

#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) queue_pairs: Names,
    pub(super) queues: Names,
    pub(super) words: Names,
    pub(super) triggers: Names,
    /// The trigger of each queue pair, or none.
    released_by: Vec<Option<u32>>,
    /// Tickets of each trigger so far.
    tickets: Vec<u32>,
    /// Sends of each queue pair and waits of each queue so far.
    sends: Vec<u32>,
    waits: Vec<u32>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) line: usize,
    /// In characters, from 1.
    pub(super) column: usize,
    pub(super) what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

impl std::error::Error for Mistake {}

/// The words of a line, and their positions.
struct Line<'a> {
    words: std::vec::IntoIter<(usize, &'a str)>,
    end: usize,
}

type LineMistake = (usize, String);

impl<'a> Line<'a> {
    fn new(text: &'a str) -> Self {
        let text = text.split('#').next().unwrap_or_default();
        let column = |word: &str| {
            let bytes = word.as_ptr() as usize - text.as_ptr() as usize;
            text[..bytes].chars().count() + 1
        };
        let words: Vec<_> = text.split_whitespace().map(|word| (column(word), word)).collect();
        Line { words: words.into_iter(), end: text.trim_end().chars().count() + 1 }
    }

    fn next(&mut self, wanted: &str) -> Result<(usize, &'a str), LineMistake> {
        self.words.next().ok_or_else(|| (self.end, format!("{wanted} is missing")))
    }

    fn name(&mut self, wanted: &str) -> Result<&'a str, LineMistake> {
        let (column, name) = self.next(wanted)?;
        let good = |letter: char| letter.is_alphanumeric() || "._-:".contains(letter);
        if name.chars().all(good) {
            return Ok(name);
        }
        Err((column, format!("{name} is no name of {wanted}: letters, digits and . _ - : make one")))
    }

    fn number(&mut self, wanted: &str, limit: u64) -> Result<u64, LineMistake> {
        let (column, text) = self.next(wanted)?;
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        match number {
            Ok(number) if number <= limit => Ok(number),
            _ => Err((column, format!("{text} is no {wanted}: a number from 0 to {limit}"))),
        }
    }

    /// Returns a name's number, adding the name to `names` if it is new.
    fn named(&mut self, wanted: &str, names: &mut Names) -> Result<u32, LineMistake> {
        Ok(names.number(self.name(wanted)?))
    }

    /// Parses the trigger of a send: `by TRIGGER`, or none.
    fn by(&mut self, names: &mut Names) -> Result<Option<u32>, LineMistake> {
        if !matches!(self.words.as_slice().first(), Some((_, "by"))) {
            return Ok(None);
        }
        self.words.next();
        self.named("a trigger", names).map(Some)
    }

    fn value32(&mut self) -> Result<u32, LineMistake> {
        Ok(self.number("32-bit value", u32::MAX.into())? as u32)
    }

    fn value64(&mut self) -> Result<u64, LineMistake> {
        self.number("64-bit value", u64::MAX)
    }

    fn condition(&mut self) -> Result<Condition, LineMistake> {
        let (column, text) = self.next("a condition (>=, ==, and, nor)")?;
        let known = SIGNS.iter().find(|(sign, _)| *sign == text).map(|(_, condition)| *condition);
        known.ok_or_else(|| (column, format!("{text} is no condition: it is one of >=, ==, and, nor")))
    }

    /// Parses a repetition: `xN` at the end, or once.
    fn times(&mut self) -> Result<usize, LineMistake> {
        let Some((column, text)) = self.words.next() else { return Ok(1) };
        let times = text.strip_prefix('x').and_then(|digits| digits.parse().ok());
        if let Some((column, text)) = self.words.next() {
            return Err((column, format!("{text} is too much")));
        }
        match times {
            Some(times) if (1..=MAX_DESCRIPTORS).contains(&times) => Ok(times),
            _ => Err((column, format!("{text} is too much: only x1 to x{MAX_DESCRIPTORS} may follow"))),
        }
    }
}

/// Returns the count of a number, and increments it.
fn count(counts: &mut Vec<u32>, number: u32) -> u32 {
    let number = number as usize;
    if counts.len() <= number {
        counts.resize(number + 1, 0);
    }
    counts[number] += 1;
    counts[number] - 1
}

impl Text {
    pub(super) fn parse(text: &str) -> Result<Self, Mistake> {
        let mut batch = Text::default();
        for (i, line) in text.lines().enumerate() {
            batch.line(line).map_err(|(column, what)| Mistake { line: i + 1, column, what })?;
        }
        if batch.descriptors.is_empty() {
            let what = "no descriptor: write, for example, `send left` and `wait left`".to_owned();
            return Err(Mistake { line: text.lines().count().max(1), column: 1, what });
        }
        Ok(batch)
    }

    fn line(&mut self, text: &str) -> Result<(), LineMistake> {
        let mut line = Line::new(text);
        let Some((column, word)) = line.words.next() else { return Ok(()) };
        let words = &mut self.words;
        let descriptor = match word {
            "send" => {
                let queue_pair = line.named("a queue pair", &mut self.queue_pairs)?;
                let trigger = line.by(&mut self.triggers)?;
                self.check_way(queue_pair, trigger).map_err(|what| (column, what))?;
                Descriptor::Send(PaperSend { queue_pair, index: 0, trigger: trigger.map(|own| (own, 0)) })
            }
            "wait" | "wait-checked" => {
                let queue = line.named("a completion queue", &mut self.queues)?;
                Descriptor::WaitCq(PaperWait { queue, index: 0, checked: word == "wait-checked" })
            }
            "wait32" => Descriptor::Wait32(line.named("a word", words)?, line.condition()?, line.value32()?),
            "wait64" => Descriptor::Wait64(line.named("a word", words)?, line.condition()?, line.value64()?),
            "write32" => Descriptor::Write32(line.named("a word", words)?, line.value32()?),
            "write64" => Descriptor::Write64(line.named("a word", words)?, line.value64()?),
            "barrier" => Descriptor::Barrier,
            "flush" => Descriptor::Flush,
            _ => {
                let known = "send, wait, wait-checked, wait32, wait64, write32, write64, barrier, flush";
                return Err((column, format!("{word} is no descriptor: it is one of {known}")));
            }
        };
        let times = line.times()?;
        if self.descriptors.len() + times > MAX_DESCRIPTORS {
            return Err((column, format!("more than {MAX_DESCRIPTORS} descriptors")));
        }
        for _ in 0..times {
            let next = self.numbered(descriptor);
            self.descriptors.push(next);
        }
        // There are at most as many names as descriptors.
        debug_assert!(MAX_DESCRIPTORS <= MAX_NUMBER as usize);
        Ok(())
    }

    /// Checks that a queue pair always has the same trigger, or never one.
    fn check_way(&mut self, queue_pair: u32, trigger: Option<u32>) -> Result<(), String> {
        let Some(known) = self.released_by.get(queue_pair as usize) else {
            // Queue pairs are numbered in order of appearance.
            self.released_by.push(trigger);
            return Ok(());
        };
        if *known == trigger {
            return Ok(());
        }
        let way = |trigger: Option<u32>| match trigger {
            Some(trigger) => format!("by {}", self.triggers.name(trigger)),
            None => "by a doorbell".to_owned(),
        };
        let name = self.queue_pairs.name(queue_pair);
        Err(format!(
            "{name} sends {} here and {} before: a queue pair has one trigger, or none",
            way(trigger),
            way(*known)
        ))
    }

    /// Adds a descriptor's index, the next of its queue pair or completion queue, and its ticket.
    fn numbered(&mut self, mut descriptor: Descriptor) -> Descriptor {
        match &mut descriptor {
            Descriptor::Send(send) => {
                send.index = count(&mut self.sends, send.queue_pair);
                if let Some((trigger, ticket)) = &mut send.trigger {
                    *ticket = u64::from(count(&mut self.tickets, *trigger)) + 1;
                }
            }
            Descriptor::WaitCq(wait) => wait.index = count(&mut self.waits, wait.queue),
            _ => {}
        }
        descriptor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn descriptors_are_read() {
        let text =
            Text::parse("# two\nsend a x2\n\nsend b\n  wait a.recv # why\nwait32 go >= 0x10\n").unwrap();
        let expected = [
            Descriptor::Send(PaperSend { queue_pair: 0, index: 0, trigger: None }),
            Descriptor::Send(PaperSend { queue_pair: 0, index: 1, trigger: None }),
            Descriptor::Send(PaperSend { queue_pair: 1, index: 0, trigger: None }),
            Descriptor::WaitCq(PaperWait { queue: 0, index: 0, checked: false }),
            Descriptor::Wait32(0, Condition::Geq, 16),
        ];
        assert_eq!(text.descriptors, expected);
        assert_eq!(
            (text.queue_pairs.name(1), text.queues.name(0), text.words.name(0)),
            ("b", "a.recv", "go")
        );
    }

    #[test]
    fn sends_of_one_trigger_take_tickets_in_turn() {
        let text = Text::parse("send a by go\nsend b by other\nsend c by go x2 # two\nsend d").unwrap();
        let found = text.descriptors.iter().map(|descriptor| match descriptor {
            Descriptor::Send(send) => (send.queue_pair, send.index, send.trigger),
            other => panic!("{other:?}"),
        });
        let expected = [
            (0, 0, Some((0, 1))),
            (1, 0, Some((1, 1))),
            (2, 0, Some((0, 2))),
            (2, 1, Some((0, 3))),
            (3, 0, None),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert_eq!((text.triggers.name(0), text.triggers.name(1)), ("go", "other"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, line, column, said) in [
            ("", 1, 1, "no descriptor"),
            ("send a\n  sent b", 2, 3, "sent is no descriptor"),
            ("send", 1, 5, "a queue pair is missing"),
            ("send ü!", 1, 6, "ü! is no name"),
            ("send a by", 1, 10, "a trigger is missing"),
            ("send a by ! x2", 1, 11, "! is no name of a trigger"),
            ("send a x2 by go", 1, 11, "by is too much"),
            ("send a be go", 1, 11, "go is too much"),
            ("wait a by go", 1, 11, "go is too much"),
            ("send a\n send a by go", 2, 2, "a sends by go here and by a doorbell before"),
            ("send a by go\nsend a by on", 2, 1, "a sends by on here and by go before"),
            ("send a by go\nsend a", 2, 1, "one trigger, or none"),
            ("wait a x0", 1, 8, "only x1 to"),
            ("wait a x2 x3", 1, 11, "x3 is too much"),
            ("wait32 go => 1", 1, 11, "=> is no condition"),
            ("wait32 go nor 0x1ffffffff", 1, 15, "no 32-bit value"),
            ("write64 w -1", 1, 11, "no 64-bit value"),
            ("wait32 go ==", 1, 13, "32-bit value is missing"),
            ("barrier x100000\nflush", 2, 1, "more than 100000"),
        ] {
            let mistake = Text::parse(text).unwrap_err();
            assert_eq!((mistake.line, mistake.column), (line, column), "{text:?}: {mistake}");
            assert!(mistake.what.contains(said), "{text:?}: {mistake}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[ \\nsendwaitby32#x><=09a-]{0,60}|.{0,60}") {
            let _ = Text::parse(&text);
        }
    }
}

//! Schedules: which decisions of which cards differ from those of a prompt and orderly card.

use super::decision::{Decision, Subject, Work};
use super::{LONGEST_PAUSE, Liberties, LibertyKinds};
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// The decisions of a job's cards that differ from those of a prompt and orderly card. Every card decides by the names
/// of its [`Decision`]s alone, so the same schedule makes the same choices in every run.
///
/// The text form has one rule on a line; `#` begins a comment. A rule is a kind of liberty, and then, in this order, as
/// much of the name as is needed: `half` (half of them, drawn from the seed), `in` and the name of a process, `qp` and
/// its number among those of its card, `request`, `message`, `completion` or `answer` and a number or a range `A..B` (B
/// included), `packet` and a number. Three lines are settings: `seed NUMBER`, from which places of cuts and the like are drawn
/// (default 0), and `hold TIME`, for which the card holds back what it may (`us` or `ms`, 1 s at most; default: a random
/// time below 100 us), and `faults KINDS`, which the rules decide about instead of the chances of a fault plan.
///
/// ```
/// use softhca::liberties::Schedule;
/// let text = "seed 7\nhold 5ms\nrelaxed in rank1 qp 3 message 12 packet 0\ncompletions half\n";
/// let schedule: Schedule = text.parse()?;
/// assert_eq!(schedule.to_string(), text);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// The time for which the card holds back what it may; `None`: a random one below 100 µs.
    pub hold: Option<Duration>,
    /// Kinds of faults to which a plan gives chances (`p`), and about which these rules decide instead.
    pub faults: LibertyKinds,
    /// The rules. A liberty is taken if one of them says so.
    pub rules: Vec<Rule>,
}

/// A rule of a [`Schedule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A single kind of liberty.
    pub kind: LibertyKinds,
    /// True if only half of the decisions, drawn from the seed, are meant.
    pub half: bool,
    /// The process; `None` for all.
    pub process: Option<String>,
    /// The queue pair; `None` for all.
    pub qp: Option<u32>,
    /// The work: the first, and the number of the last one. `None` for all.
    pub subjects: Option<(Subject, u32)>,
    /// The packet; `None` for all.
    pub packet: Option<u32>,
}

/// Longest time that a schedule may hold back something. Retransmission timers of programs are longer.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

impl Rule {
    /// The rule for all decisions of a kind.
    pub fn all(kind: LibertyKinds) -> Self {
        Rule { kind, half: false, process: None, qp: None, subjects: None, packet: None }
    }

    /// The rule for a single decision in a process.
    pub fn single(process: &str, Decision { kind, work }: Decision) -> Self {
        Rule {
            process: Some(process.to_owned()),
            qp: Some(work.qp),
            subjects: Some((work.subject, work.subject.number())),
            packet: work.subject.has_packets().then_some(work.packet),
            ..Rule::all(kind)
        }
    }

    /// Returns the decision that it names, if it names a single one.
    pub fn decision(&self) -> Option<Decision> {
        let (subject, last) = self.subjects.filter(|_| !self.half)?;
        let packet = if subject.has_packets() { self.packet? } else { 0 };
        let is_single = last == subject.number();
        let work = Work { qp: self.qp?, subject, packet };
        is_single.then_some(Decision { kind: self.kind, work })
    }

    fn covers(&self, Decision { kind, work }: Decision) -> bool {
        let is_subject = |(first, last): (Subject, u32)| {
            let numbers: RangeInclusive<u32> = first.number()..=last;
            first.word() == work.subject.word() && numbers.contains(&work.subject.number())
        };
        self.kind == kind
            && self.qp.is_none_or(|qp| qp == work.qp)
            && self.subjects.is_none_or(is_subject)
            && self.packet.is_none_or(|packet| packet == work.packet)
    }
}

/// When a liberty is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Never,
    Half,
    Always,
}

/// The rules of a schedule for the cards of one process.
#[derive(Debug)]
pub(super) struct OwnRules {
    pub(super) kinds: LibertyKinds,
    single: HashSet<Decision>,
    others: Vec<Rule>,
}

impl OwnRules {
    pub(super) fn new(schedule: &Schedule, process: Option<&str>) -> Self {
        let is_own = |rule: &&Rule| rule.process.as_deref().is_none_or(|of| process == Some(of));
        let mut own = OwnRules { kinds: LibertyKinds::empty(), single: HashSet::new(), others: Vec::new() };
        for rule in schedule.rules.iter().filter(is_own) {
            own.kinds |= rule.kind;
            match rule.decision() {
                Some(decision) => _ = own.single.insert(decision),
                None => own.others.push(rule.clone()),
            }
        }
        own
    }

    pub(super) fn choice(&self, decision: Decision) -> Choice {
        if !self.kinds.contains(decision.kind) {
            return Choice::Never;
        }
        if self.single.contains(&decision) {
            return Choice::Always;
        }
        let covering = self.others.iter().filter(|rule| rule.covers(decision));
        covering.fold(Choice::Never, |choice, rule| match (choice, rule.half) {
            (Choice::Always, _) | (_, false) => Choice::Always,
            (_, true) => Choice::Half,
        })
    }
}

/// Liberties are half of all decisions of their kinds.
impl From<Liberties> for Schedule {
    fn from(Liberties { seed, kinds }: Liberties) -> Self {
        let rules = kinds.iter().map(|kind| Rule { half: true, ..Rule::all(kind) });
        Schedule { seed, rules: rules.collect(), ..Schedule::default() }
    }
}

impl Schedule {
    /// Reads the text form from a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed: the text names the line, and not the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        fs::read_to_string(path).map_err(|error| error.to_string())?.parse()
    }

    /// The longest time for which something is held back.
    pub(super) fn longest_hold(&self) -> Duration {
        self.hold.unwrap_or(LONGEST_PAUSE)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.seed != 0 {
            writeln!(f, "seed {}", self.seed)?;
        }
        if let Some(hold) = self.hold {
            let micros = hold.as_micros();
            match micros.is_multiple_of(1000) {
                true => writeln!(f, "hold {}ms", micros / 1000)?,
                false => writeln!(f, "hold {micros}us")?,
            }
        }
        if !self.faults.is_empty() {
            writeln!(f, "faults {}", self.faults.words())?;
        }
        self.rules.iter().try_for_each(|rule| writeln!(f, "{rule}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind.words())?;
        if self.half {
            f.write_str(" half")?;
        }
        if let Some(process) = &self.process {
            write!(f, " in {process}")?;
        }
        if let Some(qp) = self.qp {
            write!(f, " qp {qp}")?;
        }
        if let Some((subject, last)) = self.subjects {
            let first = subject.number();
            write!(f, " {} {first}", subject.word())?;
            if last != first {
                write!(f, "..{last}")?;
            }
        }
        match self.packet {
            Some(packet) => write!(f, " packet {packet}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut schedule = Schedule::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                schedule.add(line).map_err(|problem| format!("line {}: {problem}", index + 1))?;
            }
        }
        Ok(schedule)
    }
}

impl Schedule {
    fn add(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("seed") => self.seed = number(words.next(), "seed")?,
            Some("faults") => self.faults = faults(words.next().unwrap_or_default())?,
            Some("hold") => self.hold = Some(hold(words.next().unwrap_or_default())?),
            Some(_) => {
                self.rules.push(line.parse()?);
                return Ok(());
            }
            None => {}
        }
        words.next().map_or(Ok(()), |word| Err(format!("`{word}` follows the value")))
    }
}

fn number<T: FromStr>(word: Option<&str>, of: &str) -> Result<T, String> {
    let word = word.unwrap_or_default();
    word.parse().map_err(|_| format!("`{word}` is no number, which `{of}` has"))
}

fn faults(text: &str) -> Result<LibertyKinds, String> {
    let kinds = LibertyKinds::of_words(text)?;
    let is_right = !kinds.is_empty() && LibertyKinds::FAULTS.contains(kinds);
    is_right.then_some(kinds).ok_or_else(|| format!("`{text}` is not of {}", LibertyKinds::FAULTS.words()))
}

fn hold(text: &str) -> Result<Duration, String> {
    let parsed = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix("us").and_then(|number| number.parse().ok()).map(Duration::from_micros),
    };
    let is_allowed = |time: &Duration| (Duration::from_micros(1)..=LONGEST_HOLD).contains(time);
    parsed.filter(is_allowed).ok_or_else(|| format!("`{text}` is no time from 1us to 1000ms"))
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().peekable();
        let kind = LibertyKinds::of_word(words.next().unwrap_or_default())?;
        let mut rule = Rule::all(kind);
        rule.half = words.next_if_eq(&"half").is_some();
        if words.next_if_eq(&"in").is_some() {
            rule.process = Some(words.next().ok_or("`in` has no process")?.to_owned());
        }
        if words.next_if_eq(&"qp").is_some() {
            rule.qp = Some(number(words.next(), "qp")?);
        }
        if let Some(word) = words.next_if(|word| Subject::WORDS.contains(word)) {
            let range = words.next().unwrap_or_default();
            let (first, last) = range.split_once("..").unwrap_or((range, range));
            let (first, last) = (number(Some(first), word)?, number(Some(last), word)?);
            if last < first {
                return Err(format!("the range {range} has nothing in it"));
            }
            rule.subjects = Subject::new(word, first).map(|subject| (subject, last));
        }
        if words.next_if_eq(&"packet").is_some() {
            rule.packet = Some(number(words.next(), "packet")?);
        }
        match words.next() {
            None => Ok(rule),
            Some(word) => Err(format!(
                "`{word}` is out of place: KIND [half] [in PROCESS] [qp N] [request|message|completion|answer N] [packet N]"
            )),
        }
    }
}

#[cfg(test)]
mod tests;

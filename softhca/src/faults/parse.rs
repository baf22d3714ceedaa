//! Parser of a plan's text form.

use super::plan::{Action, Direction, FaultPlan, Kinds, Rule, SYNDROMES, Side, Which};
use crate::packet::PacketKind;
use gdsync_sys::prm::cqe::Syndrome;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const MAX_TEXT: usize = 64 * 1024;
/// Maximum delay: a longer one would be a hung run.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// A syntax error in a plan's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault plan, line {line}, column {column}, `{found}`: {problem}")]
#[non_exhaustive]
pub struct FaultPlanError {
    /// Line, from 1.
    pub line: usize,
    /// Column in bytes, from 1.
    pub column: usize,
    /// The word at this position.
    pub found: String,
    /// The problem, and the words that are allowed.
    pub problem: String,
}

#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    line: usize,
    column: usize,
}

impl Word<'_> {
    fn wrong(&self, problem: impl fmt::Display) -> FaultPlanError {
        let found = self.text.chars().take(40).collect();
        FaultPlanError { line: self.line, column: self.column, found, problem: problem.to_string() }
    }

    /// Returns the name, and the value after `=`.
    fn split(&self) -> (&str, Option<&str>) {
        self.text.split_once('=').map_or((self.text, None), |(name, value)| (name, Some(value)))
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        if text.len() > MAX_TEXT {
            let whole = Word { text: "", line: 1, column: 1 };
            return Err(whole.wrong(format!("{} bytes are more than the {MAX_TEXT} of a plan", text.len())));
        }
        let mut plan = FaultPlan::default();
        for (line, content) in (1..).zip(text.lines()) {
            let content = content.split('#').next().unwrap_or("");
            let mut start = 0;
            for statement in content.split(';') {
                let words = words(statement, line, start);
                start += statement.len() + 1;
                let Some((first, conditions)) = words.split_first() else { continue };
                if let ("seed", Some(value)) = first.split() {
                    plan.seed = number(first, value)?;
                    if let Some(extra) = conditions.first() {
                        return Err(extra.wrong("a seed stands alone: end it with `;`"));
                    }
                } else {
                    plan.rules.push(rule(first, conditions)?);
                }
            }
        }
        Ok(plan)
    }
}

fn words(statement: &str, line: usize, start: usize) -> Vec<Word<'_>> {
    let place = |text: &str| start + (text.as_ptr() as usize - statement.as_ptr() as usize) + 1;
    statement.split_whitespace().map(|text| Word { text, line, column: place(text) }).collect()
}

fn rule(first: &Word<'_>, conditions: &[Word<'_>]) -> Result<Rule, FaultPlanError> {
    let mut rule = Rule::new(action(first)?);
    let mut seen: Vec<&str> = Vec::new();
    for word in conditions {
        let (name, Some(value)) = word.split() else {
            return Err(word.wrong("a condition is NAME=VALUE"));
        };
        // `nth`, `every` and `p` exclude each other.
        let subject = if matches!(name, "every" | "p") { "nth" } else { name };
        if seen.contains(&subject) {
            return Err(word.wrong("this has been said already"));
        }
        condition(&mut rule, word, name, value)?;
        seen.push(subject);
    }
    check(&rule, first)?;
    Ok(rule)
}

fn action(word: &Word<'_>) -> Result<Action, FaultPlanError> {
    Ok(match word.split() {
        ("drop", None) => Action::Drop,
        ("duplicate", None) => Action::Duplicate,
        ("delay", Some(value)) => Action::Delay(duration(word, value)?),
        ("hold", Some(value)) => match number(word, value)? {
            others @ 1..=0xffff => Action::Hold(others as u32),
            _ => return Err(word.wrong("from 1 to 65535 packets of others can be waited for")),
        },
        ("rnr", None) => Action::Rnr,
        ("fail", Some(value)) => match SYNDROMES.iter().find(|(_, known)| *known == value) {
            Some((syndrome, _)) => Action::Fail(*syndrome),
            None => return Err(word.wrong(format!("a syndrome is one of {}", list(SYNDROMES.map(|s| s.1))))),
        },
        ("late", Some(value)) => Action::Late(duration(word, value)?),
        ("gone", None) => Action::Gone,
        ("die", None) => Action::Die,
        _ => {
            return Err(word.wrong(
                "a rule begins with drop, duplicate, delay=TIME, hold=PACKETS, rnr, fail=SYNDROME, late=TIME, gone or \
                 die; a plan may have seed=NUMBER, too",
            ));
        }
    })
}

fn condition(rule: &mut Rule, word: &Word<'_>, name: &str, value: &str) -> Result<(), FaultPlanError> {
    let positive = || match number(word, value)? {
        0 => Err(word.wrong("counting begins at 1")),
        n => Ok(n),
    };
    let below = |limit: u64| match number(word, value)? {
        n if n < limit => Ok(n as u32),
        _ => Err(word.wrong(format!("it is below {limit:#x}"))),
    };
    match name {
        "nth" => rule.which = Which::Nth(positive()?),
        "every" => rule.which = Which::Every(positive()?),
        "p" => match value.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => rule.which = Which::Chance(p),
            _ => return Err(word.wrong("a probability is a number from 0 to 1")),
        },
        "times" => rule.times = Some(positive()?),
        "dir" => {
            rule.direction = Some(match value {
                "in" => Direction::In,
                "out" => Direction::Out,
                _ => return Err(word.wrong("a direction is `in` or `out`")),
            });
        }
        "kind" => rule.kinds = kinds(word, value)?,
        "qp" => rule.qpn = Some(below(1 << 24)?),
        "key" => rule.key = Some(below(1 << 32)?),
        "access" => {
            rule.side = Some(match value {
                "local" => Side::Local,
                "remote" => Side::Remote,
                _ => return Err(word.wrong("an access is `local` or `remote`")),
            });
        }
        _ => return Err(word.wrong("a condition is nth, every, p, times, dir, kind, qp, key or access")),
    }
    Ok(())
}

fn check(rule: &Rule, first: &Word<'_>) -> Result<(), FaultPlanError> {
    let of_packets = rule.direction.is_some() || rule.kinds != Kinds::empty() || rule.qpn.is_some();
    let of_memory = rule.key.is_some() || rule.side.is_some();
    match rule.action {
        Action::Gone if of_packets => Err(first.wrong("an access has no dir, kind or qp: use key and access")),
        Action::Gone => Ok(()),
        _ if of_memory => Err(first.wrong("only `gone` has key and access")),
        Action::Rnr if rule.direction == Some(Direction::Out) => {
            Err(first.wrong("a receiver that is not ready answers what comes in: leave out dir"))
        }
        Action::Fail(syndrome) if rule.direction == Some(Direction::In) && !is_refusal(syndrome) => Err(first
            .wrong("a responder refuses with remote-access, remote-invalid-request or remote-operation: use dir=out")),
        _ => Ok(()),
    }
}

/// Returns whether a responder can refuse a request with it.
pub(super) fn is_refusal(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::RemoteAccess | Syndrome::RemoteInvalidRequest | Syndrome::RemoteOperation)
}

fn kinds(word: &Word<'_>, value: &str) -> Result<Kinds, FaultPlanError> {
    let mut kinds = Kinds::empty();
    for name in value.split(',') {
        let known = PacketKind::ALL.iter().find(|(_, known)| *known == name);
        let Some((kind, _)) = known else {
            let all = list(PacketKind::ALL.map(|kind| kind.1));
            return Err(word.wrong(format!("a kind is one of {all}, or several with `,` between them")));
        };
        kinds = kinds.with(*kind);
    }
    Ok(kinds)
}

fn list<const N: usize>(words: [&str; N]) -> String {
    words.join(", ")
}

/// Parses a decimal number, or a hexadecimal one with 0x.
fn number(word: &Word<'_>, value: &str) -> Result<u64, FaultPlanError> {
    let is_plain = |digits: &str| !digits.starts_with('+');
    let parsed = match value.strip_prefix("0x") {
        Some(digits) if is_plain(digits) => u64::from_str_radix(digits, 16).ok(),
        None if is_plain(value) => value.parse().ok(),
        _ => None,
    };
    parsed.ok_or_else(|| word.wrong("a number of at most 64 bits is needed, decimal or with 0x"))
}

fn duration(word: &Word<'_>, value: &str) -> Result<Duration, FaultPlanError> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (count, unit) = value.split_at(digits);
    let nanos = match unit {
        "ns" => Some(1),
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        _ => None,
    };
    let time = nanos.zip(count.parse::<u64>().ok()).and_then(|(nanos, count)| count.checked_mul(nanos));
    match time.map(Duration::from_nanos) {
        Some(time) if time <= MAX_DELAY => Ok(time),
        Some(_) => Err(word.wrong(format!("more than {MAX_DELAY:?} would be a hung run"))),
        None => Err(word.wrong("a time is a whole number and ns, us, ms or s")),
    }
}

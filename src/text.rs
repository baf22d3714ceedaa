//! Output of commands: JSON, or tables and units for people.

use crate::failure::Failure;
use crate::{json, progress, terminal};
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::fmt;
use std::io::Write;

/// The style of good results.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// The style of results that could be better.
pub const POOR: Style = AnsiColor::Yellow.on_default().bold();
/// The style of failures and errors.
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints a result: as JSON ([`crate::json`]), or as `text`, coloured if stdout takes colours: on a terminal unless
/// NO_COLOR is set, and with CLICOLOR_FORCE.
pub fn print(json: bool, result: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json { json::print(result) } else { print_text(&text()) }
}

/// Prints a text with colours under the conditions of [`print`], wrapped at a terminal's width.
pub fn print_text(text: &str) -> Result<(), Failure> {
    progress::clear();
    let text = terminal::wrapped(text, terminal::columns());
    Ok(anstream::stdout().lock().write_all(text.as_bytes())?)
}

/// Returns a text in a style, after which the style ends.
pub fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints an error on stderr: a sentence that names its remedy. If stderr itself fails, there is no place to report it.
pub fn complain(what: impl fmt::Display) {
    progress::clear();
    let _ = writeln!(anstream::stderr().lock(), "{} {what}", styled(BAD, "gdsync:"));
}

/// Escapes a text for XML and HTML, in content and quoted attributes. Control characters, which XML forbids, become
/// spaces.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Formats a count: `1 event`, `2 events`.
pub fn count(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// Formats a rate with a decimal prefix.
pub fn rate(per_second: f64, unit: &str) -> String {
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, prefix) = scales.into_iter().find(|(scale, _)| per_second >= *scale).unwrap_or((1.0, ""));
    format!("{:.2} {prefix}{unit}/s", per_second / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_for_xml() {
        assert_eq!(escape("<a href=\"x\">&\u{1}µ</a>"), "&lt;a href=&quot;x&quot;&gt;&amp; µ&lt;/a&gt;");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!([0u64, 1, 2].map(|number| count(number, "event")), ["0 events", "1 event", "2 events"]);
    }

    #[test]
    fn units_are_chosen() {
        assert_eq!(
            [rate(12.0, "msg"), rate(12_345.0, "msg"), rate(2.5e9, "B")],
            ["12.00 msg/s", "12.35 kmsg/s", "2.50 GB/s"]
        );
    }
}

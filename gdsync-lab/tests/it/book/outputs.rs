//! Comparison of a command's output with a page.

/// The line of a page that stands for any number of lines.
const ANY: &str = "...";
/// Units that vary with the figure before them.
const UNITS: [&str; 12] =
    ["ns", "µs", "ms", "s", "msg/s", "kmsg/s", "Mmsg/s", "B/s", "kB/s", "MB/s", "GB/s", "MiB/s"];

/// Placeholder of a figure, and of a name with one: runs differ in them.
const FIGURE: &str = "#";

/// Returns the words of a line, with figures replaced unless `is_exact`. A figure is a word with a digit; the width of
/// columns does not matter.
fn words(line: &str, is_exact: bool) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let varies = !is_exact
            && (word.contains(|letter: char| letter.is_ascii_digit())
                || words.last().is_some_and(|last| last == FIGURE) && UNITS.contains(&word));
        let word = if varies { FIGURE } else { word };
        words.push(word.to_owned());
    }
    words
}

enum Shown {
    Any,
    Words(Vec<String>),
}

/// Returns how many of the shown lines are found, in order, from the begin of the output; all of them if they match the
/// whole output.
fn found(shown: &[Shown], output: &[Vec<String>]) -> usize {
    match shown {
        [] => 0,
        [Shown::Any] => 1,
        [Shown::Any, rest @ ..] => {
            1 + (0..=output.len()).map(|skipped| found(rest, &output[skipped..])).max().unwrap_or(0)
        }
        [Shown::Words(words), rest @ ..] => match output.split_first() {
            // The last shown line must be the last one of the output.
            Some((first, others)) if first == words && (!rest.is_empty() || others.is_empty()) => {
                1 + found(rest, others)
            }
            _ => 0,
        },
    }
}

/// Returns the first line of a page that is missing in the output at its place. Blank lines are ignored.
pub(super) fn missing<'a>(shown: &'a [String], output: &str, is_exact: bool) -> Option<&'a str> {
    let is_full = |line: &&str| !line.trim().is_empty();
    let output: Vec<_> = output.lines().filter(is_full).map(|line| words(line, is_exact)).collect();
    let lines: Vec<&str> = shown.iter().map(String::as_str).filter(is_full).collect();
    let of = |line: &&str| if line.trim() == ANY { Shown::Any } else { Shown::Words(words(line, is_exact)) };
    let shown: Vec<Shown> = lines.iter().map(of).collect();
    lines.get(found(&shown, &output)).copied()
}

#[test]
fn figures_may_differ_and_words_may_not() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let missing_of =
        |shown: &str, output: &str, is_exact| missing(&lines(shown), output, is_exact).map(str::to_owned);
    assert_eq!(missing_of("SIZE  MIN µs\n8 B   3.15 kmsg/s", "SIZE MIN µs\n8 B 444 msg/s\n", false), None);
    assert_eq!(missing_of("8 B", "9 B", true), Some("8 B".into()));
    assert_eq!(missing_of("every byte", "every bit", false), Some("every byte".into()));
    // More output than shown, and less.
    assert_eq!(missing_of("a", "a\nb", false), Some("a".into()));
    assert_eq!(missing_of("a\nb", "a", false), Some("b".into()));
    assert_eq!(missing_of("a\n...\nd\n...", "a\nb\nc\nd\ne", false), None);
    // The first matching line is not the right one.
    assert_eq!(missing_of("a\n...\nb 1\nc", "a\nb 2\nb 3\nc", false), None);
    assert_eq!(missing_of("...\nz", "a\nb", false), Some("z".into()));
    // Nothing shown: nothing is required.
    assert_eq!(missing_of("", "a", false), None);
}

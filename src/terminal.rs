//! The width of the terminal that a command prints on, and text in that width.

use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns of stdout; 0 without limit.
static COLUMNS: AtomicUsize = AtomicUsize::new(0);

/// Text that begins further right, as a part of the width, does not continue below itself.
const MOST_INDENT: f64 = 0.6;

/// From now on tables and texts on stdout fit the terminal that stdout is, if it is one.
pub(crate) fn fit_stdout() {
    COLUMNS.store(columns_of(std::io::stdout()).unwrap_or(0), Ordering::Relaxed);
}

/// Returns the number of columns that output fits; none for a pipe or a file, where lines are as long as they are.
pub fn columns() -> Option<usize> {
    Some(COLUMNS.load(Ordering::Relaxed)).filter(|columns| *columns > 0)
}

/// Returns the number of columns of a terminal; none if it is no terminal, or tells no number.
pub(crate) fn columns_of(stream: impl AsFd + IsTerminal) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    // SAFETY: all-zero bytes are a valid value of this plain C structure.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a valid place of the type that the call fills.
    let told = unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (told == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}

/// Returns the number of columns that a text takes, without its colours.
fn width(text: &str) -> usize {
    let mut is_code = false;
    let visible = |character: &char| {
        let begins = *character == '\x1b';
        let was_code = is_code || begins;
        is_code = begins || is_code && *character != 'm';
        !was_code
    };
    text.chars().filter(visible).count()
}

/// Wraps the lines that are wider than this between words. A line continues below its last column, which two spaces
/// precede.
pub(crate) fn wrapped(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    text.split_inclusive('\n').map(|line| wrapped_line(line, columns)).collect()
}

fn wrapped_line(line: &str, columns: usize) -> String {
    if width(line.trim_end()) <= columns {
        return line.to_owned();
    }
    let (begin, indent) = last_column(line, (columns as f64 * MOST_INDENT) as usize);
    let (mut out, mut used) = (line[..begin].to_owned(), indent);
    for (number, word) in line[begin..].split(' ').enumerate() {
        let wide = width(word.trim_end());
        if number == 0 {
            used += wide;
        } else if used + 1 + wide <= columns {
            out.push(' ');
            used += 1 + wide;
        } else {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            used = indent + wide;
        }
        out += word;
    }
    out
}

/// Returns where the last text begins, up to this column, that begins the line or that two spaces precede: its place in
/// the line, and its column.
fn last_column(line: &str, most: usize) -> (usize, usize) {
    let (mut column, mut spaces, mut is_code, mut found) = (0, 2, false, (0, 0));
    for (place, character) in line.char_indices() {
        match character {
            '\x1b' => is_code = true,
            'm' if is_code => is_code = false,
            _ if is_code => {}
            ' ' => {
                spaces += 1;
                column += 1;
            }
            _ if column > most => break,
            _ => {
                if spaces >= 2 {
                    found = (place, column);
                }
                spaces = 0;
                column += 1;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_continue_below_their_last_column() {
        let text = "Usage: gdsync\n  run   start all the ranks\n          the text alone goes on\nplain words of a line\n";
        let expected = "Usage: gdsync\n  run   start all\n        the ranks\n          the text\n          alone goes\n          on\nplain words of a\nline\n";
        assert_eq!(wrapped(text, Some(20)), expected);
        assert_eq!(wrapped(text, None), text);
    }

    #[test]
    fn colours_take_no_room_and_long_words_stay_whole() {
        let text = "  \x1b[1mrun\x1b[0m   start all ranks\n";
        assert_eq!(wrapped(text, Some(23)), text);
        assert_eq!(wrapped(text, Some(17)), "  \x1b[1mrun\x1b[0m   start all\n        ranks\n");
        assert_eq!(
            wrapped("see https://ui.perfetto.dev for it\n", Some(10)),
            "see\nhttps://ui.perfetto.dev\nfor it\n"
        );
    }
}

//! Tables of left-aligned columns, which fit a width: cells wrap between words, and columns that may be left out are,
//! if that is not enough.

pub use crate::terminal::columns;

/// Cells are not wrapped to less than this.
const LEAST: usize = 16;
const GAP: usize = 2;

/// The lines of the header, and of each row below it.
#[derive(Debug, PartialEq, Eq)]
pub struct Fitted<'a> {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Titles of columns for which the width has no room.
    pub left_out: Vec<&'a str>,
}

/// Formats columns below their titles for the terminal, if stdout is one. `optional`: titles of columns that may be left
/// out, the first one first; those that say something are kept longer.
pub fn of(header: &[&str], rows: &[Vec<String>], optional: &[&str]) -> String {
    let columns = columns();
    let fitted = fit(header, rows, optional, columns);
    let lines = fitted.header.iter().chain(fitted.rows.iter().flatten());
    let mut text: String = lines.flat_map(|line| [line.as_str(), "\n"]).collect();
    if let (Some(columns), false) = (columns, fitted.left_out.is_empty()) {
        text += &format!("({columns} columns leave out {}: --json has all)\n", fitted.left_out.join(", "));
    }
    text
}

/// As [`of`], for this width, if any.
pub fn fit<'a>(
    header: &[&'a str],
    rows: &[Vec<String>],
    optional: &[&str],
    columns: Option<usize>,
) -> Fitted<'a> {
    let all: Vec<Column<'_>> =
        header.iter().enumerate().map(|(at, title)| Column::new(title, at, rows)).collect();
    let mut kept: Vec<&Column<'_>> = all.iter().collect();
    let mut first_out: Vec<&Column<'_>> =
        optional.iter().filter_map(|title| all.iter().find(|column| column.title == *title)).collect();
    first_out.sort_by_key(|column| column.says_something());
    let mut left_out = Vec::new();
    for column in first_out {
        if columns.is_none_or(|columns| room(kept.iter().map(|column| column.least)) <= columns) {
            break;
        }
        kept.retain(|one| one.at != column.at);
        left_out.push(header[column.at]);
    }
    let widths = widths(&kept, columns);
    let lines = |cell: &dyn Fn(&Column<'_>) -> String| {
        let cells: Vec<Vec<String>> =
            kept.iter().zip(&widths).map(|(column, width)| wrap(&cell(column), *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let line = |number: usize| {
            let parts = cells.iter().zip(&widths).map(|(cell, width)| {
                let part = cell.get(number).map_or("", String::as_str);
                format!("{part:width$}")
            });
            parts.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        (0..height).map(line).collect()
    };
    Fitted {
        header: lines(&|column| column.title.to_owned()),
        rows: rows
            .iter()
            .map(|row| lines(&|column| row.get(column.at).cloned().unwrap_or_default()))
            .collect(),
        left_out,
    }
}

struct Column<'a> {
    title: &'a str,
    at: usize,
    cells: Vec<&'a str>,
    /// Widths of its cells, of them and the title, and the least to which they are wrapped.
    content: usize,
    natural: usize,
    least: usize,
}

impl<'a> Column<'a> {
    fn new(title: &'a str, at: usize, rows: &'a [Vec<String>]) -> Self {
        let cells: Vec<&str> = rows.iter().filter_map(|row| row.get(at)).map(String::as_str).collect();
        let content = cells.iter().map(|cell| width(cell)).max().unwrap_or(0);
        let word = |text: &str| parts(text).map(width).max().unwrap_or(0);
        let longest = cells.iter().map(|cell| word(cell)).max().unwrap_or(0);
        let least = content.min(longest.max(LEAST)).max(word(title));
        Column { natural: content.max(width(title)), content, least, title, at, cells }
    }

    /// True if a cell is neither empty nor zero.
    fn says_something(&self) -> bool {
        self.cells.iter().any(|cell| !["", "-", "0"].contains(cell))
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Returns the room of columns of these widths.
fn room(widths: impl Iterator<Item = usize>) -> usize {
    widths.map(|width| width + GAP).sum::<usize>().saturating_sub(GAP)
}

/// Takes from the widest column until all have room, or none can be narrower: first from those whose titles are wider
/// than their cells.
fn widths(kept: &[&Column<'_>], columns: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = kept.iter().map(|column| column.natural).collect();
    while columns.is_some_and(|columns| room(widths.iter().copied()) > columns) {
        let can_shrink = (0..kept.len()).filter(|at| widths[*at] > kept[*at].least);
        match can_shrink.max_by_key(|at| (widths[*at] > kept[*at].content, widths[*at])) {
            Some(widest) => widths[widest] -= 1,
            None => break,
        }
    }
    widths
}

/// Splits a text where a line may end. A number stays with the word after it, which may be its unit.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let ends = |(place, _): &(usize, &str)| !text[..*place].ends_with(|c: char| c.is_ascii_digit());
        match text.match_indices(' ').find(ends) {
            Some((place, _)) => {
                rest = Some(&text[place + 1..]);
                Some(&text[..place])
            }
            None => rest.take(),
        }
    })
}

fn wrap(text: &str, columns: usize) -> Vec<String> {
    if width(text) <= columns {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts(text) {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(part) <= columns => {
                line.push(' ');
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(cells: &[&[&str]]) -> Vec<Vec<String>> {
        cells.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(
            of(&["x", "why"], &rows(&[&["a", "b"], &["longer", "c"]]), &["x"]),
            "x       why\na       b\nlonger  c\n"
        );
    }

    #[test]
    fn the_widest_cells_wrap_and_numbers_keep_their_units() {
        let rows = rows(&[&["7", "a wait for the completion 12 of a queue", "4.01 kpkt/s, 16.04 kB/s"]]);
        let fitted = fit(&["PID", "WAITS FOR", "SENT"], &rows, &[], Some(44));
        assert_eq!(fitted.header, ["PID  WAITS FOR            SENT"]);
        let expected =
            ["7    a wait for the       4.01 kpkt/s,", "     completion 12 of a   16.04 kB/s", "     queue"];
        assert_eq!(fitted.rows[0], expected);
    }

    #[test]
    fn columns_are_left_out_in_order_but_those_without_content_first() {
        let header = ["PID", "TYPE", "RESENT", "RNR", "WAITS FOR"];
        let rows = rows(&[&["7", "RC", "4", "0", "an acknowledgement"]]);
        let titles = |columns| {
            let fitted = fit(&header, &rows, &["TYPE", "RESENT", "RNR"], Some(columns));
            (fitted.header[0].clone(), fitted.left_out.join(" "))
        };
        let of = |header: &str, left_out: &str| (header.to_owned(), left_out.to_owned());
        assert_eq!(titles(40), of("PID  TYPE  RESENT  RNR  WAITS FOR", ""));
        assert_eq!(titles(39), of("PID  TYPE  RESENT  WAITS FOR", "RNR"));
        assert_eq!(titles(34), of("PID  RESENT  WAITS FOR", "RNR TYPE"));
        // What cannot be left out is wider than that.
        assert_eq!(titles(10), of("PID  WAITS FOR", "RNR TYPE RESENT"));
    }

    #[test]
    fn titles_wrap_further_than_cells() {
        let rows = rows(&[&["16 sends and waits", "720.7", "1"]]);
        let fitted = fit(&["BATCH", "CPU ns A DESCRIPTOR, MERGED", "x"], &rows, &[], Some(34));
        assert_eq!(
            fitted.header,
            [
                "BATCH               CPU ns A     x",
                "                    DESCRIPTOR,",
                "                    MERGED"
            ]
        );
    }
}

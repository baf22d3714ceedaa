//! What commands print: JSON, or tables and units for people.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, Write};

/// Prints a result: as a line of JSON, or in the words of `text`.
pub(crate) fn print(
    json: bool,
    result: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let text = if json { serde_json::to_string(result)? + "\n" } else { text() };
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}

/// A table of left-aligned columns under a header line.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> = header
        .iter()
        .enumerate()
        .map(|(column, title)| rows.iter().map(|row| cell(row, column)).max().unwrap_or(0).max(title.len()))
        .collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(header.to_vec());
    for row in rows {
        text += &line(row.iter().map(String::as_str).collect());
    }
    text
}

/// A number of bytes with the largest binary unit that leaves it whole.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0 => "0 B".to_owned(),
        _ if count.is_multiple_of(1 << 30) => format!("{} GiB", count >> 30),
        _ if count.is_multiple_of(1 << 20) => format!("{} MiB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{} KiB", count >> 10),
        _ => format!("{count} B"),
    }
}

/// A rate with a decimal prefix.
pub(crate) fn rate(per_second: f64, unit: &str) -> String {
    let scales = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, prefix) = scales.into_iter().find(|(scale, _)| per_second >= *scale).unwrap_or((1.0, ""));
    format!("{:.2} {prefix}{unit}/s", per_second / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["longer".to_owned(), "c".to_owned()]];
        assert_eq!(table(&["x", "why"], &rows), "x       why\na       b\nlonger  c\n");
    }

    #[test]
    fn units_are_chosen() {
        assert_eq!(
            [bytes(0), bytes(8), bytes(4096), bytes(64 << 20), bytes(1 << 30), bytes(1025)],
            ["0 B", "8 B", "4 KiB", "64 MiB", "1 GiB", "1025 B"]
        );
        assert_eq!(
            [rate(12.0, "msg"), rate(12_345.0, "msg"), rate(2.5e9, "B")],
            ["12.00 msg/s", "12.35 kmsg/s", "2.50 GB/s"]
        );
    }
}

//! What a benchmark has measured, in all forms in which it is shown.

use gdsync_cli::failure::Failure;
use gdsync_cli::plot::Chart;
use gdsync_cli::text;
use serde::Serialize;
use serde_json::Value;

/// Results of a benchmark: for programs, for people, and as pictures.
#[derive(Debug)]
pub(super) struct Outcome {
    /// For programs.
    pub(super) json: Value,
    pub(super) tables: Vec<Table>,
    /// Sentences that stand behind the tables.
    pub(super) notes: Vec<String>,
    /// Empty for a benchmark that has no picture, and where nothing was measured that has one.
    pub(super) charts: Vec<Chart>,
}

/// A line of titles, and rows with a cell for each of them.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str], rows: Vec<Vec<String>>) -> Self {
        Table { header: header.iter().map(|title| (*title).to_owned()).collect(), rows }
    }
}

impl Outcome {
    /// # Errors
    /// The results are no JSON.
    pub(super) fn new(
        results: &impl Serialize,
        tables: impl IntoIterator<Item = Table>,
    ) -> Result<Self, Failure> {
        let json = serde_json::to_value(results)?;
        Ok(Outcome { json, tables: tables.into_iter().collect(), notes: Vec::new(), charts: Vec::new() })
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub(super) fn chart(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }

    /// Tables and notes with an empty line between them.
    pub(super) fn text(&self) -> String {
        let table = |table: &Table| {
            let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
            text::table(&header, &table.rows)
        };
        let notes = self.notes.iter().map(|note| format!("{note}\n"));
        self.tables.iter().map(table).chain(notes).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_notes_stand_apart() {
        let table = || Table::new(&["a", "b"], vec![vec!["1".to_owned(), "2".to_owned()]]);
        let outcome = Outcome::new(&[1, 2], [table(), table()]).unwrap().note("why");
        assert_eq!(outcome.text(), "a  b\n1  2\n\na  b\n1  2\n\nwhy\n");
        assert_eq!(outcome.json, serde_json::json!([1, 2]));
    }
}

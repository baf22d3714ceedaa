//! The results of a benchmark as data: rows of named cells, from which its JSON, its text and its pictures are made.

use super::MEDIAN_US;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series, Values};
use serde_json::{Map, Value};

/// The title of a column of medians of ratios, each of a round or a run. They differ from the ratios of the medians beside
/// them.
pub(super) const MEDIAN_RATIO: &str = "MEDIAN RATIO";

/// A value for programs under its key, its text for people, or both.
#[derive(Clone, Debug)]
struct Cell {
    /// A dot puts the value inside an object: `merged.operations`.
    key: Option<&'static str>,
    value: Value,
    text: Option<String>,
}

/// Named cells, in the order of the text's columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Row(Vec<Cell>);

impl Row {
    /// Creates a row that begins with its name; in JSON this is `what`.
    pub(super) fn named(what: impl Into<String>) -> Self {
        let what = what.into();
        Row::default().cell("what", what.clone(), what)
    }

    fn push(mut self, key: Option<&'static str>, value: impl Into<Value>, text: Option<String>) -> Self {
        self.0.push(Cell { key, value: value.into(), text });
        self
    }

    /// Adds a value for programs only.
    pub(super) fn key(self, key: &'static str, value: impl Into<Value>) -> Self {
        self.push(Some(key), value, None)
    }

    /// Adds a text for people only.
    pub(super) fn text(self, text: impl Into<String>) -> Self {
        self.push(None, Value::Null, Some(text.into()))
    }

    /// Adds a value with its text.
    pub(super) fn cell(self, key: &'static str, value: impl Into<Value>, text: impl Into<String>) -> Self {
        self.push(Some(key), value, Some(text.into()))
    }

    /// Adds a number with this many decimals; a dash if there is none.
    pub(super) fn number(self, key: &'static str, number: impl Into<Option<f64>>, decimals: usize) -> Self {
        let number = number.into();
        let text = number.map_or_else(|| "-".to_owned(), |number| format!("{number:.decimals$}"));
        self.cell(key, number, text)
    }

    /// Compares ours with the reference, measured in pairs: medians in µs, and the median of the rounds' ratios.
    pub(super) fn compared(self, pairs: &[[f64; 2]]) -> Self {
        let [ours, reference] = [0, 1].map(|variant| median(pairs.iter().map(|pair| pair[variant])));
        let ratio = median(pairs.iter().map(|[ours, reference]| ours / reference));
        self.number("gdsync_us", ours, 2).number("reference_us", reference, 2).number("ratio", ratio, 2)
    }

    /// Adds the results of several runs in three columns: the median, minimum and maximum.
    pub(super) fn ratios(self, ratios: &[f64], decimals: usize) -> Self {
        let [ratio, least, most] = spread(ratios);
        self.number("ratio", ratio, decimals).number("least_ratio", least, decimals).number(
            "most_ratio",
            most,
            decimals,
        )
    }

    /// Adds the same in one column, and as an object for programs.
    pub(super) fn spread(self, key: &'static str, values: &[f64]) -> Self {
        let [median, least, most] = spread(values);
        let value = serde_json::json!({ "median": median, "least": least, "most": most });
        self.cell(key, value, format!("{median:.2} ({least:.2} to {most:.2})"))
    }

    pub(super) fn renamed(mut self, what: String) -> Self {
        if let Some(cell) = self.0.first_mut() {
            cell.text = Some(what);
        }
        self
    }

    pub(super) fn and(mut self, other: Row) -> Self {
        self.0.extend(other.0);
        self
    }

    fn cells(&self) -> Vec<String> {
        self.0.iter().filter_map(|cell| cell.text.clone()).collect()
    }

    /// Returns the number of a key, or NaN.
    pub(super) fn get(&self, key: &str) -> f64 {
        let found = self.0.iter().find(|cell| cell.key == Some(key));
        found.and_then(|cell| cell.value.as_f64()).unwrap_or(f64::NAN)
    }

    pub(super) fn name(&self) -> &str {
        self.0.iter().find_map(|cell| cell.text.as_deref()).unwrap_or_default()
    }
}

impl From<Row> for Value {
    fn from(row: Row) -> Value {
        let mut all = Map::new();
        for Cell { key, value, .. } in row.0 {
            match key.map(|key| key.split_once('.').ok_or(key)) {
                None => {}
                Some(Err(key)) => drop(all.insert(key.to_owned(), value)),
                Some(Ok((object, key))) => {
                    all.entry(object).or_insert_with(|| Map::new().into())[key] = value;
                }
            }
        }
        all.into()
    }
}

/// A line of titles, and rows with a cell for each of them.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str], rows: &[Row]) -> Self {
        let header = header.iter().map(|title| (*title).to_owned()).collect();
        Table { header, rows: rows.iter().map(Row::cells).collect() }
    }
}

/// Results of a benchmark: for programs, for people, and as pictures.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) json: Value,
    pub(super) tables: Vec<Table>,
    pub(super) notes: Vec<String>,
    /// Empty if the benchmark has no picture, or measured nothing to draw.
    pub(super) charts: Vec<Chart>,
}

impl Outcome {
    pub(super) fn new(json: impl Into<Value>, tables: impl IntoIterator<Item = Table>) -> Self {
        let tables = tables.into_iter().collect();
        Outcome { json: json.into(), tables, notes: Vec::new(), charts: Vec::new() }
    }

    /// Creates one table. `all`: cells common to all rows; without any, programs get a list of the rows.
    pub(super) fn of(all: Row, header: &[&str], rows: &[Row]) -> Self {
        let json = match all.0.is_empty() {
            true => rows.to_vec().into(),
            false => Value::from(all.key("rows", rows.to_vec())),
        };
        Outcome::new(json, [Table::new(header, rows)])
    }

    /// Creates a table that compares ours with a reference. `titles` are those of the table, of our column and of the
    /// reference's; `picture` is that of the picture.
    pub(super) fn compared(all: Row, titles: [&str; 3], picture: &str, rows: &[Row]) -> Self {
        let [what, ours, reference] = titles;
        Outcome::of(all, &[what, ours, reference, MEDIAN_RATIO], rows).comparison(
            picture,
            [ours, reference],
            rows,
        )
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    fn chart(mut self, title: impl Into<String>, content: Content) -> Self {
        self.charts.push(Chart { title: title.into(), content });
        self
    }

    /// Adds a picture of comparisons below each other. `columns`: the titles of ours and of the reference's.
    pub(super) fn comparison(self, title: &str, columns: [&str; 2], rows: &[Row]) -> Self {
        let [ours, reference] =
            columns.map(|column| column.trim_end_matches(" µs").to_lowercase().replace("gpu", "GPU"));
        self.bars(title, MEDIAN_US, rows, &[(&ours, "gdsync_us"), (&reference, "reference_us")])
    }

    /// Adds a picture of the rows' values below each other. `series`: names, and keys of the values.
    pub(super) fn bars(
        self,
        title: impl Into<String>,
        x: &str,
        rows: &[Row],
        series: &[(&str, &str)],
    ) -> Self {
        let values = |(name, key): &(&str, &str)| Values::new(*name, rows.iter().map(|row| row.get(key)));
        let content = Content::Categories {
            x: Axis::new(x, Scale::Linear),
            names: rows.iter().map(|row| row.name().to_owned()).collect(),
            series: series.iter().map(values).collect(),
        };
        self.chart(title, content)
    }

    /// Adds a picture of lines by a count. `series` returns a row's lines, and the keys of its values in them.
    pub(super) fn lines<'a, const N: usize>(
        self,
        title: impl Into<String>,
        [x, y]: [&str; 2],
        count: &str,
        rows: impl IntoIterator<Item = &'a Row>,
        series: impl Fn(&Row) -> [(String, &'static str); N],
    ) -> Self {
        let mut lines: Vec<Series> = Vec::new();
        for row in rows {
            for (name, key) in series(row) {
                let point = (row.get(count), row.get(key));
                match lines.iter_mut().find(|line| line.name == name) {
                    // A value shared by several rows is one point.
                    Some(line) if line.points.last() == Some(&point) => {}
                    Some(line) => line.points.push(point),
                    None => lines.push(Series::new(name, [point])),
                }
            }
        }
        let [x, y] = [Axis::new(x, Scale::Counts), Axis::new(y, Scale::Log)];
        self.chart(title, Content::Lines { x, y, series: lines })
    }

    /// Returns tables and notes, separated by empty lines.
    pub(super) fn text(&self) -> String {
        let table = |table: &Table| {
            let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
            gdsync_cli::table::of(&header, &table.rows, &[])
        };
        let notes = self.notes.iter().map(|note| format!("{note}\n"));
        self.tables.iter().map(table).chain(notes).collect::<Vec<_>>().join("\n")
    }
}

/// Returns NaN without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(values: &[f64]) -> [f64; 3] {
    let end = |pick: fn(f64, f64) -> f64| values.iter().copied().fold(f64::NAN, pick);
    [median(values.iter().copied()), end(f64::min), end(f64::max)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_and_notes_stand_apart() {
        let table = || Table::new(&["a", "b"], &[Row::default().text("1").text("2")]);
        let outcome = Outcome::new(vec![1, 2], [table(), table()]).note("why");
        assert_eq!(outcome.text(), "a  b\n1  2\n\na  b\n1  2\n\nwhy\n");
        assert_eq!(outcome.json, json!([1, 2]));
    }

    #[test]
    fn a_ratio_is_that_of_the_rounds_and_not_of_the_medians() {
        let row = Row::named("x").compared(&[[2.0, 1.0], [20.0, 10.0], [9.0, 3.0]]);
        assert_eq!(["gdsync_us", "reference_us", "ratio"].map(|key| row.get(key)), [9.0, 3.0, 2.0]);
        assert!(median([]).is_nan());
    }

    #[test]
    fn a_row_is_an_object_and_a_line() {
        let row =
            Row::named("x").key("in.one", 1).key("in.two", 2).number("us", 1.25, 1).number("s", None, 1);
        assert_eq!((row.name(), row.cells().join(" ")), ("x", "x 1.2 -".to_owned()));
        let row = row.spread("of", &[3.0, 1.0, 2.0]).text("only read");
        let of = json!({ "median": 2.0, "least": 1.0, "most": 3.0 });
        let expected = json!({ "what": "x", "in": { "one": 1, "two": 2 }, "us": 1.25, "s": null, "of": of });
        assert_eq!(Value::from(row.clone()), expected);
        assert_eq!(row.cells()[3..], ["2.00 (1.00 to 3.00)", "only read"].map(str::to_owned));
    }

    #[test]
    fn lines_have_the_points_of_all_rows_once() {
        let row =
            |what: &str, at: u32, us: f64| Row::named(what).key("at", at).number("us", us, 1).key("all", 7);
        let rows = [row("a", 1, 2.0), row("b", 1, 3.0), row("a", 2, 4.0)];
        let outcome = Outcome::new(0, []).lines("title", ["x", "y"], "at", &rows, |row| {
            [(row.name().to_owned(), "us"), ("all".to_owned(), "all")]
        });
        let Content::Lines { series, .. } = &outcome.charts[0].content else { panic!("{outcome:?}") };
        let found: Vec<_> = series.iter().map(|one| (one.name.as_str(), one.points.as_slice())).collect();
        let expected: [(&str, &[(f64, f64)]); 3] =
            [("a", &[(1.0, 2.0), (2.0, 4.0)]), ("all", &[(1.0, 7.0), (2.0, 7.0)]), ("b", &[(1.0, 3.0)])];
        assert_eq!(found, expected);
    }
}

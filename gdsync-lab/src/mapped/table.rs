//! Results of copies, for people and for programs.

use super::Absent;
use super::copies::Unit;
use gdsync_cli::failure::Failure;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use gdsync_cli::text;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The GPU.
    pub(super) on: String,
    #[serde(rename = "rows")]
    pub(super) mappings: Vec<Mapping>,
    pub(super) absent: Vec<Absent>,
}

#[derive(Debug, Serialize)]
pub(super) struct Mapping {
    pub(super) backend: String,
    pub(super) caching: String,
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) direction: &'static str,
    pub(super) kernel: String,
    pub(super) cells: Vec<Cell>,
    /// How many times as fast as libc's memcpy through the same mapping.
    pub(super) over_memcpy: Option<f64>,
    /// How many times as fast as the driver's copy.
    pub(super) over_cuda: Option<f64>,
}

/// Bytes, and the median time of a copy in µs.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    #[serde(rename = "size_bytes")]
    pub(super) size: usize,
    pub(super) us: f64,
}

impl Row {
    /// The time that rows are compared by.
    fn time(&self, unit: Unit) -> Option<f64> {
        let cell = match unit {
            Unit::Bandwidth => self.cells.last(),
            Unit::Latency => self.cells.first(),
        };
        cell.map(|cell| cell.us)
    }
}

/// Fills in how rows compare.
pub(super) fn compare(rows: &mut [Row], unit: Unit) {
    let of = |rows: &[Row], direction: &str, kernel: &str| {
        let row = rows.iter().find(|row| row.direction == direction && row.kernel.starts_with(kernel));
        row.and_then(|row| row.time(unit))
    };
    let references: Vec<_> = rows
        .iter()
        .map(|row| (of(rows, row.direction, "memcpy"), of(rows, row.direction, "cuMemcpy")))
        .collect();
    for (row, (memcpy, cuda)) in rows.iter_mut().zip(references) {
        let ours = row.time(unit);
        let over = |reference: Option<f64>| Some(reference? / ours?);
        (row.over_memcpy, row.over_cuda) = (over(memcpy), over(cuda));
    }
}

pub(super) fn print(report: &Report, unit: Unit, json: bool) -> Result<(), Failure> {
    let of = match unit {
        Unit::Bandwidth => "GB/s",
        Unit::Latency => "µs",
    };
    text::print(json, report, || {
        let mut text = String::new();
        for mapping in &report.mappings {
            let (backend, caching) = (&mapping.backend, &mapping.caching);
            text += &format!("{}: mapped by {backend}, {caching}; {of}, medians\n", report.on);
            text += &render(mapping, unit);
            text.push('\n');
        }
        text + &super::absent_lines(&report.absent)
    })
}

/// For each mapping and direction, a line for each way to copy, by size.
pub(super) fn charts(report: &Report, unit: Unit) -> Vec<Chart> {
    let (name, value): (_, fn(&Cell) -> f64) = match unit {
        Unit::Bandwidth => ("Bandwidth, GB/s", |cell| cell.size as f64 / cell.us / 1e3),
        Unit::Latency => ("Median time of a copy, µs", |cell| cell.us),
    };
    let chart = |mapping: &Mapping, direction: &str| {
        let rows = mapping.rows.iter().filter(|row| row.direction == direction);
        let points =
            |row: &Row| row.cells.iter().map(|cell| (cell.size as f64, value(cell))).collect::<Vec<_>>();
        Chart {
            title: format!("{direction} by the CPU, mapped by {}, {}", mapping.backend, report.on),
            content: Content::Lines {
                x: Axis::new("Copy", Scale::Sizes),
                y: Axis::new(name, Scale::Log),
                series: rows.map(|row| Series::new(row.kernel.clone(), points(row))).collect(),
            },
        }
    };
    let both = |mapping| ["write", "read"].map(|direction| chart(mapping, direction));
    report.mappings.iter().flat_map(both).collect()
}

fn render(mapping: &Mapping, unit: Unit) -> String {
    let mut header = vec!["COPY".to_owned(), "BY".to_owned()];
    let cells = mapping.rows.first().map(|row| row.cells.as_slice()).unwrap_or_default();
    header.extend(cells.iter().map(|cell| gdsync_cli::size::text(cell.size as u64)));
    let compared = match unit {
        Unit::Bandwidth => cells.last(),
        Unit::Latency => cells.first(),
    };
    let at = compared.map_or_else(String::new, |cell| gdsync_cli::size::text(cell.size as u64));
    header.extend([format!("MEMCPY x, {at}"), format!("CUDA x, {at}")]);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}"));
    let rows: Vec<Vec<String>> = mapping
        .rows
        .iter()
        .map(|row| {
            let mut line = vec![row.direction.to_owned(), row.kernel.clone()];
            line.extend(row.cells.iter().map(|cell| match unit {
                Unit::Bandwidth => format!("{:.3}", cell.size as f64 / cell.us / 1e3),
                Unit::Latency => format!("{:.3}", cell.us),
            }));
            line.extend([ratio(row.over_memcpy), ratio(row.over_cuda)]);
            line
        })
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    text::table(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(direction: &'static str, kernel: &str, us: [f64; 2]) -> Row {
        let cells = vec![Cell { size: 4, us: us[0] }, Cell { size: 4096, us: us[1] }];
        Row { direction, kernel: kernel.to_owned(), cells, over_memcpy: None, over_cuda: None }
    }

    #[test]
    fn rows_are_compared_with_those_of_their_direction() {
        let rows = || {
            vec![
                row("write", "avx2", [1.0, 2.0]),
                row("write", "memcpy", [2.0, 8.0]),
                row("write", "cuMemcpyHtoD", [20.0, 1.0]),
                row("read", "avx2", [5.0, 6.0]),
                row("read", "memcpy", [5.0, 60.0]),
            ]
        };
        let mut latency = rows();
        compare(&mut latency, Unit::Latency);
        assert_eq!((latency[0].over_memcpy, latency[0].over_cuda), (Some(2.0), Some(20.0)));
        assert_eq!((latency[3].over_memcpy, latency[3].over_cuda), (Some(1.0), None));
        let mut bandwidth = rows();
        compare(&mut bandwidth, Unit::Bandwidth);
        assert_eq!((bandwidth[0].over_memcpy, bandwidth[0].over_cuda), (Some(4.0), Some(0.5)));
        let mapping = Mapping { backend: "x".to_owned(), caching: "y".to_owned(), rows: bandwidth };
        let text = render(&mapping, Unit::Bandwidth);
        assert!(
            text.starts_with("COPY   BY            4 B    4 KiB  MEMCPY x, 4 KiB  CUDA x, 4 KiB\n"),
            "{text}"
        );
        assert!(text.contains("write  avx2          0.004  2.048  4.0              0.5\n"), "{text}");
    }
}

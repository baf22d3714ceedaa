//! `gdsync copybw` and `gdsync copylat`: every copy kernel on every mapping, beside copies without the mapping.

use super::{Absent, Memory, Source, pattern};
use crate::draw;
use gdsync::advanced::mapped::{LoadKernel, MappingBackend, StoreKernel};
use gdsync::cudarc::driver::sys;
use gdsync_cli::cli::CopyOptions;
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt::{self, NothingYet};
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use gdsync_cli::{progress, size, table, text};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Time for the measurements of each cell, and their minimum number.
const SPAN: Duration = Duration::from_millis(30);
const LEAST: usize = 3;
/// Copies this short are measured in groups, so that reading the clock does not count.
const SHORT: usize = 16 << 10;
const BUNCH: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// GB/s; rows are compared at the largest size.
    Bandwidth,
    /// µs; rows are compared at the smallest size.
    Latency,
}

impl Unit {
    fn of(self, cell: &Cell) -> f64 {
        match self {
            Unit::Bandwidth => cell.size as f64 / cell.us / 1e3,
            Unit::Latency => cell.us,
        }
    }

    fn compared(self, cells: &[Cell]) -> Option<&Cell> {
        match self {
            Unit::Bandwidth => cells.last(),
            Unit::Latency => cells.first(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    on: String,
    #[serde(rename = "rows")]
    mappings: Vec<Mapping>,
    absent: Vec<Absent>,
}

#[derive(Debug, Serialize)]
struct Mapping {
    backend: String,
    caching: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    direction: &'static str,
    kernel: String,
    cells: Vec<Cell>,
    /// Speed relative to libc's memcpy through the same mapping.
    over_memcpy: Option<f64>,
    /// Speed relative to the driver's copy.
    over_cuda: Option<f64>,
}

/// Bytes, and the median time of a copy in µs.
#[derive(Debug, Serialize)]
struct Cell {
    #[serde(rename = "size_bytes")]
    size: usize,
    us: f64,
}

pub(crate) fn bandwidth(options: &CopyOptions) -> Result<(), Failure> {
    progress::show(options.mapped.json, "copybw".to_owned());
    let most = options.max_size.unwrap_or(16 << 20);
    let sizes = sizes(&[64, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20], most);
    run(options, Unit::Bandwidth, &sizes)
}

pub(crate) fn latency(options: &CopyOptions) -> Result<(), Failure> {
    progress::show(options.mapped.json, "copylat".to_owned());
    let most = options.max_size.unwrap_or(64 << 10);
    let sizes = sizes(&[4, 8, 16, 64, 256, 1024, 4096, 16 << 10, 64 << 10], most);
    run(options, Unit::Latency, &sizes)
}

/// Returns the usual sizes up to `most`, and `most` itself.
fn sizes(usual: &[usize], most: u64) -> Vec<usize> {
    let most = most as usize;
    let mut sizes: Vec<usize> = usual.iter().copied().filter(|size| *size < most).collect();
    sizes.push(most);
    sizes
}

fn run(options: &CopyOptions, unit: Unit, sizes: &[usize]) -> Result<(), Failure> {
    let picture = options.plot.as_deref().map(Destination::new).transpose()?;
    let source = Source::new(&options.mapped)?;
    let mut report = Report { on: source.name()?, mappings: Vec::new(), absent: Vec::new() };
    for backend in &source.backends {
        report.mappings.push(measure(&source, *backend, unit, sizes)?);
    }
    report.absent = source.absent;
    text::print(options.mapped.json, &report, || tables(&report, unit))?;
    match picture {
        Some(picture) => picture.write(&draw::svg(&charts(&report, unit))?),
        None => Ok(()),
    }
}

fn measure(
    source: &Source,
    backend: MappingBackend,
    unit: Unit,
    sizes: &[usize],
) -> Result<Mapping, Failure> {
    let most = sizes.last().copied().unwrap_or(0);
    let memory = source.allocate(backend, most)?;
    let (from, mut into) = (pattern(most, 1), vec![0; most]);
    let mut rows = Vec::new();
    for kernel in StoreKernel::available() {
        let copy = |size: usize| Ok(memory.copy_to_by(kernel, 0, &from[..size])?);
        rows.push(row("write", kernel.to_string(), sizes, copy)?);
    }
    if memory.gpu().is_some() {
        rows.push(row("write", "cuMemcpyHtoD".to_owned(), sizes, |size| to_gpu(&memory, &from[..size]))?);
    }
    for kernel in LoadKernel::available() {
        let copy = |size: usize| Ok(memory.copy_from_by(kernel, 0, &mut into[..size])?);
        rows.push(row("read", kernel.to_string(), sizes, copy)?);
    }
    if memory.gpu().is_some() {
        rows.push(row("read", "cuMemcpyDtoH".to_owned(), sizes, |size| {
            from_gpu(&memory, &mut into[..size])
        })?);
    }
    compare(&mut rows, unit);
    let caching = memory.info().caching.to_string();
    Ok(Mapping { backend: backend.to_string(), caching, rows })
}

fn row(
    direction: &'static str,
    kernel: String,
    sizes: &[usize],
    mut copy: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Row, Failure> {
    let mut cells = Vec::with_capacity(sizes.len());
    for size in sizes {
        if interrupt::requested() {
            return Err(NothingYet.into());
        }
        cells.push(Cell { size: *size, us: time(|| copy(*size), *size)? });
    }
    Ok(Row { direction, kernel, cells, over_memcpy: None, over_cuda: None })
}

fn time(mut copy: impl FnMut() -> Result<(), Failure>, size: usize) -> Result<f64, Failure> {
    let bunch = if size <= SHORT { BUNCH } else { 1 };
    let (mut times, start) = (Vec::new(), Instant::now());
    copy()?;
    while times.len() < LEAST || start.elapsed() < SPAN {
        let begin = Instant::now();
        for _ in 0..bunch {
            copy()?;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / bunch as f64);
        // One measurement suffices for a copy that takes seconds.
        if start.elapsed() > 20 * SPAN || interrupt::requested() {
            break;
        }
    }
    Ok(crate::bench::median(times))
}

/// The driver's own copy, as a program would call it.
fn to_gpu(memory: &Memory, from: &[u8]) -> Result<(), Failure> {
    let Some(gpu) = memory.gpu() else { return Ok(()) };
    // SAFETY: the memory is as long as the largest measured copy; its context has been current since it was created.
    unsafe { sys::cuMemcpyHtoD_v2(gpu.address(), from.as_ptr().cast(), from.len()) }.result()?;
    Ok(())
}

/// Like [`to_gpu`], in the other direction.
fn from_gpu(memory: &Memory, into: &mut [u8]) -> Result<(), Failure> {
    let Some(gpu) = memory.gpu() else { return Ok(()) };
    // SAFETY: as above.
    unsafe { sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), gpu.address(), into.len()) }.result()?;
    Ok(())
}

fn compare(rows: &mut [Row], unit: Unit) {
    let time = |row: &Row| unit.compared(&row.cells).map(|cell| cell.us);
    let of = |rows: &[Row], direction: &str, kernel: &str| {
        let row = rows.iter().find(|row| row.direction == direction && row.kernel.starts_with(kernel));
        row.and_then(time)
    };
    let references: Vec<_> = rows
        .iter()
        .map(|row| (of(rows, row.direction, "memcpy"), of(rows, row.direction, "cuMemcpy")))
        .collect();
    for (row, (memcpy, cuda)) in rows.iter_mut().zip(references) {
        let ours = time(row);
        let over = |reference: Option<f64>| Some(reference? / ours?);
        (row.over_memcpy, row.over_cuda) = (over(memcpy), over(cuda));
    }
}

fn tables(report: &Report, unit: Unit) -> String {
    let of = if unit == Unit::Bandwidth { "GB/s" } else { "µs" };
    let one = |mapping: &Mapping| {
        let Mapping { backend, caching, .. } = mapping;
        format!(
            "{}: mapped by {backend}, {caching}; {of}, medians; x: ratios of medians\n{}\n",
            report.on,
            table(mapping, unit)
        )
    };
    report.mappings.iter().map(one).collect::<String>() + &super::absent_lines(&report.absent)
}

fn table(mapping: &Mapping, unit: Unit) -> String {
    let cells = mapping.rows.first().map(|row| row.cells.as_slice()).unwrap_or_default();
    let written = |cell: &Cell| size::text(cell.size as u64);
    let at = unit.compared(cells).map_or_else(String::new, written);
    let mut header = vec!["COPY".to_owned(), "BY".to_owned()];
    header.extend(cells.iter().map(written));
    header.extend([format!("MEMCPY x, {at}"), format!("CUDA x, {at}")]);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}"));
    let row = |row: &Row| {
        let mut line = vec![row.direction.to_owned(), row.kernel.clone()];
        line.extend(row.cells.iter().map(|cell| format!("{:.3}", unit.of(cell))));
        line.extend([ratio(row.over_memcpy), ratio(row.over_cuda)]);
        line
    };
    let rows: Vec<Vec<String>> = mapping.rows.iter().map(row).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    table::of(&header, &rows, &[])
}

/// Returns a chart for each mapping and direction, with a line by size for each copy method.
fn charts(report: &Report, unit: Unit) -> Vec<Chart> {
    let name = if unit == Unit::Bandwidth { "Bandwidth, GB/s" } else { "Median time of a copy, µs" };
    let chart = |mapping: &Mapping, direction: &str| {
        let rows = mapping.rows.iter().filter(|row| row.direction == direction);
        let points =
            |row: &Row| row.cells.iter().map(|cell| (cell.size as f64, unit.of(cell))).collect::<Vec<_>>();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_largest_that_was_asked_for() {
        assert_eq!(sizes(&[4, 8, 16], 8), [4, 8]);
        assert_eq!(sizes(&[4, 8, 16], 10), [4, 8, 10]);
        assert_eq!(sizes(&[4, 8, 16], 64), [4, 8, 16, 64]);
    }

    #[test]
    fn a_copy_that_fails_ends_the_measurement() {
        let error = time(|| Err("no".into()), 8).unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert!(time(|| Ok(()), 8).unwrap() >= 0.0);
    }

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
        let text = table(&mapping, Unit::Bandwidth);
        assert!(
            text.starts_with("COPY   BY            4 B    4 KiB  MEMCPY x, 4 KiB  CUDA x, 4 KiB\n"),
            "{text}"
        );
        assert!(text.contains("write  avx2          0.004  2.048  4.0              0.5\n"), "{text}");
    }
}

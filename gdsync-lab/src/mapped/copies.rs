//! `gdsync copybw` and `gdsync copylat`: every copy kernel on every mapping, beside what there
//! would be without.

use super::table::{self, Cell, Report, Row};
use super::{Memory, Source, pattern};
use crate::draw;
use gdsync::cudarc::driver::sys;
use gdsync::mapped::{LoadKernel, MappingBackend, StoreKernel};
use gdsync_cli::cli::CopyOptions;
use gdsync_cli::destination::Destination;
use gdsync_cli::failure::Failure;
use gdsync_cli::progress;
use std::time::{Duration, Instant};

/// Time for the measurements of each cell, and their least number.
const SPAN: Duration = Duration::from_millis(30);
const LEAST: usize = 3;
/// Copies this short are measured in bunches, so that reading the clock does not count.
const SHORT: usize = 16 << 10;
const BUNCH: usize = 32;

/// The quantity of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// GB/s; rows are compared at the largest size.
    Bandwidth,
    /// µs; rows are compared at the smallest size.
    Latency,
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

/// Those up to the largest that was asked for, and that one.
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
    table::print(&report, unit, options.mapped.json)?;
    match picture {
        Some(picture) => picture.write(&draw::svg(&table::charts(&report, unit))?),
        None => Ok(()),
    }
}

fn measure(
    source: &Source,
    backend: MappingBackend,
    unit: Unit,
    sizes: &[usize],
) -> Result<table::Mapping, Failure> {
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
    table::compare(&mut rows, unit);
    let caching = memory.info().caching.to_string();
    Ok(table::Mapping { backend: backend.to_string(), caching, rows })
}

fn row(
    direction: &'static str,
    kernel: String,
    sizes: &[usize],
    mut copy: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Row, Failure> {
    let mut cells = Vec::with_capacity(sizes.len());
    for size in sizes {
        cells.push(Cell { size: *size, us: time(|| copy(*size), *size)? });
    }
    Ok(Row { direction, kernel, cells, over_memcpy: None, over_cuda: None })
}

/// Median of one copy, in µs.
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
        // One measurement suffices for a copy of seconds.
        if start.elapsed() > 20 * SPAN {
            break;
        }
    }
    Ok(crate::bench::median(times))
}

/// The driver's own copy, as a program would call it.
fn to_gpu(memory: &Memory, from: &[u8]) -> Result<(), Failure> {
    let Some(gpu) = memory.gpu() else { return Ok(()) };
    // SAFETY: the memory is as long (it is the largest that is measured); its context is current
    // since it was made.
    unsafe { sys::cuMemcpyHtoD_v2(gpu.address(), from.as_ptr().cast(), from.len()) }.result()?;
    Ok(())
}

/// As [`to_gpu`], the other way.
fn from_gpu(memory: &Memory, into: &mut [u8]) -> Result<(), Failure> {
    let Some(gpu) = memory.gpu() else { return Ok(()) };
    // SAFETY: as above.
    unsafe { sys::cuMemcpyDtoH_v2(into.as_mut_ptr().cast(), gpu.address(), into.len()) }.result()?;
    Ok(())
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
}

//! What each kind of stream memory operation costs.

use super::gpu::Gpu;
use super::{median, print, print_json};
use crate::cli::BenchOptions;
use crate::failure::Failure;
use gdsync::cuda::GpuMemory;
use gdsync::memop::{Condition, MemOp, MemOpStream};
use gdsync::memory::StreamAddr;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Repetitions of each measurement.
const ROUNDS: usize = 60;
/// Operations in a batch: their cost is the difference to an empty batch.
const MANY: usize = 100;

/// Lines of the shared words: what starts the stream, what ends it, and what operations work on.
const START: usize = 0;
const END: usize = 1;
const WORK: usize = 2;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    us: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let gpu = Gpu::new(options.gpu)?;
    let results = Results { gpu: gpu.name()?, rows: measure(&gpu)? };
    if options.json {
        return print_json(&results);
    }
    let rows: Vec<_> =
        results.rows.iter().map(|row| vec![row.what.to_owned(), format!("{:.2} µs", row.us)]).collect();
    print(&[&format!("STREAM MEMORY OPERATIONS, {}", results.gpu), "MEDIAN"], &rows)
}

fn measure(gpu: &Gpu) -> Result<Vec<Row>, Failure> {
    let memory = GpuMemory::allocate(&gpu.context, 4096)?;
    let (host, device) = (gpu.addr(WORK)?, StreamAddr::new(memory.address()));
    let none = span(gpu, None, 0)?;
    let write32 = |addr| MemOp::Write32 { addr, value: 1 };
    let write64 = |addr| MemOp::Write64 { addr, value: 1 };
    let wait = |addr| MemOp::Wait32 { addr, condition: Condition::Geq, value: 0 };
    let nor = |addr| MemOp::Wait32 { addr, condition: Condition::Nor, value: 0xfeff_ffff };
    let kinds = [
        ("one more 32-bit write, host memory", write32(host)),
        ("one more 64-bit write, host memory", write64(host)),
        ("one more 32-bit write, GPU memory", write32(device)),
        ("one more 64-bit write, GPU memory", write64(device)),
        ("one more satisfied wait, host memory", wait(host)),
        ("one more satisfied wait for NOR, host memory", nor(host)),
        ("one more satisfied wait, GPU memory", wait(device)),
        ("one more barrier", MemOp::Barrier),
    ];
    let mut rows = vec![Row { what: "a word flips, the stream wakes and writes a word", us: none }];
    for (what, op) in kinds {
        rows.push(Row { what, us: (span(gpu, Some(op), MANY)? - none) / MANY as f64 });
    }
    rows.push(Row { what: "submitting two writes, the stream idle", us: submit(gpu, host)? });
    rows.push(Row { what: "from there until the CPU sees the second", us: visible(gpu)? });
    Ok(rows)
}

fn enqueue(gpu: &Gpu, ops: &[MemOp]) -> Result<(), Failure> {
    // SAFETY: the addresses are words that `gpu` holds, or of GPU memory that is held by `measure`; all are waited for before
    // those go.
    unsafe { gpu.stream.submit(ops) }?;
    Ok(())
}

/// From the flip of the word that a stream waits for, until the CPU sees what it writes after `count` operations.
fn span(gpu: &Gpu, op: Option<MemOp>, count: usize) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let value = u32::try_from(round)? + 1;
        gpu.word(START).store(0, std::sync::atomic::Ordering::Relaxed);
        gpu.word(WORK).store(0, std::sync::atomic::Ordering::Relaxed);
        let mut ops = vec![MemOp::Wait32 { addr: gpu.addr(START)?, condition: Condition::Eq, value }];
        ops.extend(op.iter().cycle().take(count));
        ops.push(MemOp::Write32 { addr: gpu.addr(END)?, value });
        enqueue(gpu, &ops)?;
        std::thread::sleep(Duration::from_micros(200));
        let start = Instant::now();
        gpu.word(START).store(value, std::sync::atomic::Ordering::Release);
        gpu.await_word(END, value)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        gpu.synchronize()?;
    }
    Ok(median(times))
}

fn submit(gpu: &Gpu, host: StreamAddr) -> Result<f64, Failure> {
    let ops = [MemOp::Write32 { addr: host, value: 1 }, MemOp::Write64 { addr: host, value: 1 }];
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        gpu.synchronize()?;
        std::thread::sleep(Duration::from_micros(50));
        let start = Instant::now();
        enqueue(gpu, &ops)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    gpu.synchronize()?;
    Ok(median(times))
}

fn visible(gpu: &Gpu) -> Result<f64, Failure> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let value = u32::try_from(round)? + 1;
        let ops = [
            MemOp::Write32 { addr: gpu.addr(WORK)?, value },
            MemOp::Write64 { addr: gpu.addr(END)?, value: value.into() },
        ];
        gpu.synchronize()?;
        std::thread::sleep(Duration::from_micros(50));
        let start = Instant::now();
        enqueue(gpu, &ops)?;
        gpu.await_word(END, value)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    gpu.synchronize()?;
    Ok(median(times))
}

//! `gdsync bench memops`: the cost of each kind of stream memory operation.

use super::gpu::{END, Gpu, START};
use super::table::{Outcome, Row};
use super::{MEDIAN_US, median, timed};
use gdsync::cuda::GpuMemory;
use gdsync::memop::{Condition, MemOp, MemOpStream};
use gdsync::memory::StreamAddr;
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ROUNDS: u32 = 60;
/// Operations in a batch: their cost is the difference to an empty batch.
const MANY: usize = 100;

const WORK: usize = 2;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let (name, rows) = (gpu.name()?, measure(&gpu)?);
    let titles = [&*format!("STREAM MEMORY OPERATIONS, {name}"), "MEDIAN"];
    let picture = format!("Stream memory operations, {name}");
    let outcome = Outcome::of(Row::default().key("gpu", name), &titles, &rows);
    Ok(outcome.bars(picture, MEDIAN_US, &rows, &[("median", "us")]))
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
    let row = |what: &str, us: f64| Row::named(what).cell("us", us, format!("{us:.2} µs"));
    let mut rows = vec![row("a word flips, the stream wakes and writes a word", none)];
    for (what, op) in kinds {
        rows.push(row(what, (span(gpu, Some(op), MANY)? - none) / MANY as f64));
    }
    rows.push(row("submitting two writes, the stream idle", submit(gpu, host)?));
    rows.push(row("from there until the CPU sees the second", visible(gpu)?));
    Ok(rows)
}

fn enqueue(gpu: &Gpu, ops: &[MemOp]) -> Result<(), Failure> {
    // SAFETY: the addresses are words of `gpu`, or of GPU memory held by `measure`; both wait for the operations before
    // they are dropped.
    unsafe { gpu.stream.submit(ops) }?;
    Ok(())
}

/// Returns the median of `ROUNDS` measurements, each with its own value.
fn median_of(gpu: &Gpu, measure: impl FnMut(u32) -> Result<f64, Failure>) -> Result<f64, Failure> {
    let times = interrupt::rounds(1..=ROUNDS).map(measure).collect::<Result<Vec<_>, _>>()?;
    gpu.synchronize()?;
    Ok(median(times))
}

/// Returns the time from the flip of the word that a stream waits for until the CPU sees its write after `count`
/// operations.
fn span(gpu: &Gpu, op: Option<MemOp>, count: usize) -> Result<f64, Failure> {
    median_of(gpu, |value| {
        [START, WORK].iter().for_each(|line| gpu.word(*line).store(0, Ordering::Relaxed));
        let mut ops = vec![MemOp::Wait32 { addr: gpu.addr(START)?, condition: Condition::Eq, value }];
        ops.extend(op.iter().cycle().take(count));
        ops.push(MemOp::Write32 { addr: gpu.addr(END)?, value });
        enqueue(gpu, &ops)?;
        gpu.flip(value, Duration::from_micros(200))
    })
}

/// Returns the time of a call that finds the stream idle, in µs.
fn on_idle(gpu: &Gpu, call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    gpu.synchronize()?;
    std::thread::sleep(Duration::from_micros(50));
    timed(call)
}

fn submit(gpu: &Gpu, host: StreamAddr) -> Result<f64, Failure> {
    let ops = [MemOp::Write32 { addr: host, value: 1 }, MemOp::Write64 { addr: host, value: 1 }];
    median_of(gpu, |_| on_idle(gpu, || enqueue(gpu, &ops)))
}

fn visible(gpu: &Gpu) -> Result<f64, Failure> {
    let (work, end) = (gpu.addr(WORK)?, gpu.addr(END)?);
    median_of(gpu, |value| {
        let ops = [MemOp::Write32 { addr: work, value }, MemOp::Write64 { addr: end, value: value.into() }];
        on_idle(gpu, || enqueue(gpu, &ops).and_then(|()| gpu.await_word(END, value)))
    })
}

//! When a stream is idle after the CPU has seen what it wrote last, against the driver's calls alone.

use super::gpu::{END, Gpu, START, by_hand};
use super::outcome::Outcome;
use super::pair::Pair;
use super::{Comparison, comparison_chart, in_turn, micros_since, outcome};
use gdsync::cudarc::driver::sys;
use gdsync::memop::MemOpStream;
use gdsync::{Batch, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use serde::Serialize;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Writes of each kind, unless the user ends them.
const ROUNDS: u32 = 10_000;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Writes of each.
    rounds: u32,
    /// Times from the write that was seen to the idle stream.
    until_idle: Comparison,
    /// How often the first `cuStreamQuery` behind a write that was seen found the stream idle.
    gdsync_at_once: u32,
    reference_at_once: u32,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let bench = Bench { gpu: Gpu::new(options.gpu())?, pair: Pair::new(options.hca.as_ref())? };
    let results = Results { gpu: bench.gpu.name()?, rows: bench.rows()? };
    let row = |row: &Row| {
        let of = |count: u32| format!("{count} of {}", row.rounds);
        let mut cells = row.until_idle.row();
        cells.splice(1..1, [of(row.gdsync_at_once), of(row.reference_at_once)]);
        cells
    };
    let rows = results.rows.iter().map(row).collect();
    let heading = format!("{}, WRITTEN LAST", results.gpu);
    let header =
        [&heading, "IDLE AT ONCE", "BY THE DRIVER ALONE", "IDLE AFTER µs", "BY THE DRIVER ALONE µs", "RATIO"];
    let times = results.rows.iter().map(|row| &row.until_idle);
    let chart = comparison_chart(
        "From the last write until the stream is idle",
        ["GDSYNC", "THE DRIVER ALONE"],
        times,
    );
    Ok(outcome(&results, &header, rows)?.chart(chart))
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
}

impl Bench {
    fn rows(&self) -> Result<Vec<Row>, Failure> {
        let (gpu, end) = (&self.gpu, self.gpu.handle(END)?);
        let write = |value| Ok(Batch::new().write_value32(&end, value));
        let exchange = |merged: bool| {
            let end = end.clone();
            move |value| Ok(self.exchange()?.write_value32(&end, value).merged(merged))
        };
        let (start, last) = (gpu.addr(START)?, gpu.addr(END)?);
        let batch_of_one = |value: u32| {
            // SAFETY: the address is that of a word of `gpu`.
            unsafe { gpu.submit_by_hand(&mut [by_hand::write(last, value.into(), false)]) }
        };
        let single = |value: u32| {
            // SAFETY: as above; the stream is alive.
            unsafe { sys::cuStreamWriteValue32_v2(gpu.stream.raw(), last.get(), value, 0) }.result()?;
            Ok(())
        };
        let behind_wait = |value: u32| {
            let mut ops = [by_hand::wait(start, 0), by_hand::write(last, value.into(), false)];
            // SAFETY: as above.
            unsafe { gpu.submit_by_hand(&mut ops) }
        };
        type Measure<'a> = &'a dyn Fn() -> Result<Row, Failure>;
        let all: [Measure<'_>; 4] = [
            &|| self.row("a word, against a batch of one operation", write, batch_of_one),
            &|| self.row("a word, against cuStreamWriteValue32", write, single),
            &|| {
                let what = "a word behind an exchange, merged, against a wait and a write";
                self.row(what, exchange(true), behind_wait)
            },
            &|| self.row("the same, plain", exchange(false), behind_wait),
        ];
        interrupt::rounds(all).map(|measure| measure()).collect()
    }

    /// A message, and the waits for both completions.
    fn exchange(&self) -> Result<Batch, Failure> {
        let Pair { left, right, .. } = &self.pair;
        right.post_recv(&[], 0)?;
        let send = left.prepare(WorkRequest::send(&[]))?;
        Ok(Batch::new().send(send).wait(left.send_cq().prepare_wait()?).wait(right.recv_cq().prepare_wait()?))
    }

    /// `ours` and `reference` write a number into the last word.
    fn row(
        &self,
        what: &str,
        ours: impl Fn(u32) -> Result<Batch, Failure>,
        reference: impl Fn(u32) -> Result<(), Failure>,
    ) -> Result<Row, Failure> {
        let (mut pairs, at_once) = (Vec::new(), [Cell::new(0), Cell::new(0)]);
        for round in interrupt::rounds(0..ROUNDS) {
            let number = 2 * round + 1;
            pairs.push(in_turn(
                round % 2 == 1,
                || {
                    let batch = ours(number)?;
                    let exchanges = u64::from(batch.len() > 1);
                    self.gpu.stream.post(batch).map_err(|error| error.to_string())?;
                    let time = self.until_idle(number, &at_once[0])?;
                    self.pair.collect(exchanges)?;
                    Ok(time)
                },
                || {
                    reference(number + 1)?;
                    self.until_idle(number + 1, &at_once[1])
                },
            )?);
        }
        let [gdsync_at_once, reference_at_once] = at_once.map(Cell::into_inner);
        let rounds = u32::try_from(pairs.len())?;
        Ok(Row { rounds, until_idle: Comparison::new(what, pairs), gdsync_at_once, reference_at_once })
    }

    /// From the moment at which the CPU sees a number to that at which the driver says that the stream is
    /// idle, in µs.
    fn until_idle(&self, number: u32, at_once: &Cell<u32>) -> Result<f64, Failure> {
        self.gpu.await_word(END, number)?;
        let start = Instant::now();
        let is_idle = self.gpu.stream.wait_idle(Duration::ZERO)?;
        at_once.set(at_once.get() + u32::from(is_idle));
        while !self.gpu.stream.wait_idle(Duration::ZERO)? {}
        Ok(micros_since(start))
    }
}

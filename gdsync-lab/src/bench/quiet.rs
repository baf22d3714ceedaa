//! `gdsync bench quiet`: the time from the CPU's sight of a stream's last write until the stream is idle, against the
//! driver's calls alone.

use super::gpu::by_hand::Bare;
use super::gpu::{END, Gpu, START};
use super::pair::Pair;
use super::table::{MEDIAN_RATIO, Outcome, Row};
use super::{MEDIAN_US, in_turns, micros_since};
use gdsync::cudarc::driver::sys;
use gdsync::memop::{Condition, MemOpStream};
use gdsync::{Batch, CudaStream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 10_000;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let bench = TimeToIdle { gpu: Gpu::new(options.gpu())?, pair: Pair::new(options.hca.as_ref())? };
    let (name, rows) = (bench.gpu.name()?, bench.rows()?);
    let heading = format!("{name}, WRITTEN LAST");
    let header = [
        &*heading,
        "IDLE AT ONCE",
        "BY THE DRIVER ALONE",
        "IDLE AFTER µs",
        "BY THE DRIVER ALONE µs",
        MEDIAN_RATIO,
    ];
    let series = [("gdsync", "until_idle.gdsync_us"), ("the driver alone", "until_idle.reference_us")];
    let picture = "From the last write until the stream is idle";
    Ok(Outcome::of(Row::default().key("gpu", name), &header, &rows).bars(picture, MEDIAN_US, &rows, &series))
}

struct TimeToIdle {
    gpu: Gpu,
    pair: Pair,
}

impl TimeToIdle {
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
            unsafe { gpu.stream.enqueue(&mut [CudaStream::write32(last, value)]) }
        };
        let single = |value: u32| {
            // SAFETY: as above; the stream is alive.
            unsafe { sys::cuStreamWriteValue32_v2(gpu.stream.raw(), last.get(), value, 0) }.result()?;
            Ok(())
        };
        let behind_wait = |value: u32| {
            let mut ops = [CudaStream::wait32(start, Condition::Geq, 0), CudaStream::write32(last, value)];
            // SAFETY: as above.
            unsafe { gpu.stream.enqueue(&mut ops) }
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

    /// Returns a message, and the waits for both completions.
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
        // How often the first `cuStreamQuery` after an observed write found the stream idle.
        let (mut number, mut at_once) = (0, [0u32; 2]);
        let pairs = in_turns(interrupt::rounds(0..ROUNDS), |variant, _| {
            number += 1;
            let mut exchanges = 0;
            if variant == 0 {
                let batch = ours(number)?;
                exchanges = u64::from(batch.len() > 1);
                self.gpu.stream.post(batch).map_err(|error| error.to_string())?;
            } else {
                reference(number)?;
            }
            let time = self.until_idle(number, &mut at_once[variant])?;
            self.pair.collect(exchanges)?;
            Ok(time)
        })?;
        let (rounds, time) = (pairs.len(), Row::default().compared(&pairs));
        let count = |row: Row, key, count: u32| row.cell(key, count, format!("{count} of {rounds}"));
        let row = Row::default().key("rounds", rounds).cell("until_idle.what", what, what);
        let row = count(row, "gdsync_at_once", at_once[0]);
        Ok(count(row, "reference_at_once", at_once[1])
            .number("until_idle.gdsync_us", time.get("gdsync_us"), 2)
            .number("until_idle.reference_us", time.get("reference_us"), 2)
            .number("until_idle.ratio", time.get("ratio"), 2))
    }

    /// Returns the time from the CPU's sight of a number until the driver reports the stream idle, in µs.
    fn until_idle(&self, number: u32, at_once: &mut u32) -> Result<f64, Failure> {
        self.gpu.await_word(END, number)?;
        let start = Instant::now();
        let is_idle = self.gpu.stream.wait_idle(Duration::ZERO)?;
        *at_once += u32::from(is_idle);
        while !self.gpu.stream.wait_idle(Duration::ZERO)? {}
        Ok(micros_since(start))
    }
}

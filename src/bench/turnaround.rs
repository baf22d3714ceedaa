//! Waking and posting, against the same memory operations written by hand.

use super::gpu::{END, Gpu, START, by_hand};
use super::pair::Pair;
use super::{Comparison, in_turn, print_comparisons, timed};
use crate::cli::BenchOptions;
use crate::failure::Failure;
use gdsync::memop::Condition;
use gdsync::{Batch, PreparedSend, WorkRequest};
use serde::Serialize;
use std::time::Duration;

/// Turnarounds that are measured.
const TURNS: u32 = 2000;
/// Sends whose posting is measured, one after the other on an idle stream, and in bursts.
const IDLE_POSTS: u32 = 4000;
const POSTS: u32 = 20_000;
const BURST: u32 = 16;

/// The shared words that stand in for a doorbell record and a doorbell register.
const RECORD: usize = 2;
const REGISTER: usize = 3;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    doorbells: String,
    rows: Vec<Comparison>,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let bench = Bench { gpu: Gpu::new(options.gpu())?, pair: Pair::new(options.hca.as_ref())? };
    let results = Results {
        gpu: bench.gpu.name()?,
        doorbells: bench.gpu.stream.doorbells(&bench.pair.left)?.to_string(),
        rows: vec![bench.turnaround()?, bench.posting(IDLE_POSTS, 1)?, bench.posting(POSTS, BURST)?],
    };
    let heading = format!("{}, DOORBELLS {}", results.gpu, results.doorbells);
    print_comparisons(options, &results, [&heading, "GDSYNC µs", "BY HAND µs"], &results.rows)
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
}

impl Bench {
    fn prepare(&self) -> Result<PreparedSend, Failure> {
        self.pair.right.post_recv(&[], 0)?;
        Ok(self.pair.left.prepare(WorkRequest::send(&[]))?)
    }

    /// From the flip of a word that the stream waits for, until the CPU sees what it writes after
    /// the doorbell.
    fn turnaround(&self) -> Result<Comparison, Failure> {
        let gpu = &self.gpu;
        let (start, end) = (gpu.handle(START)?, gpu.handle(END)?);
        let mut pairs = Vec::new();
        for turn in 0..TURNS {
            let value = 2 * turn + 1;
            let send = self.prepare()?;
            let batch = Batch::new()
                .wait_value32(&start, Condition::Geq, value)
                .send(send)
                .write_value32(&end, value);
            gpu.stream.post(batch).map_err(|error| error.to_string())?;
            let ours = self.turn(value)?;
            self.pair.collect(1)?;
            let value = value + 1;
            let mut ops = [
                by_hand::wait(gpu.addr(START)?, value),
                by_hand::write(gpu.addr(RECORD)?, value.into(), false),
                by_hand::write(gpu.addr(REGISTER)?, value.into(), true),
                by_hand::write(gpu.addr(END)?, value.into(), false),
            ];
            // SAFETY: the addresses are words of `gpu`.
            unsafe { gpu.submit_by_hand(&mut ops) }?;
            pairs.push((ours, self.turn(value)?));
        }
        Ok(Comparison::new("a word flips, the stream wakes, the doorbell is visible", pairs))
    }

    fn turn(&self, value: u32) -> Result<f64, Failure> {
        self.gpu.flip(value, Duration::from_micros(30))
    }

    /// What it costs the CPU to post one prepared send: with `burst` of them between two
    /// synchronizations.
    fn posting(&self, posts: u32, burst: u32) -> Result<Comparison, Failure> {
        let gpu = &self.gpu;
        let (record, register) = (gpu.addr(RECORD)?, gpu.addr(REGISTER)?);
        let by_hand = |value: u32| {
            let mut ops =
                [by_hand::write(record, value.into(), false), by_hand::write(register, value.into(), true)];
            // SAFETY: the addresses are words of `gpu`.
            unsafe { gpu.submit_by_hand(&mut ops) }
        };
        let mut pairs = Vec::new();
        for post in 0..posts {
            // Preparing evicts the driver's memory from the nearest caches, and the first of the
            // two calls brings it back.
            let send = self.prepare()?;
            let post_send = || gpu.stream.post_send(send).map(drop).map_err(|error| error.to_string().into());
            pairs.push(in_turn(
                post % 2 == 1,
                || self.rest(burst).and_then(|()| timed(post_send)),
                || self.rest(burst).and_then(|()| timed(|| by_hand(post))),
            )?);
            if post % burst == burst - 1 {
                gpu.synchronize()?;
                self.pair.collect(burst.into())?;
            }
        }
        let what = if burst == 1 { "an idle stream" } else { "a busy stream" };
        Ok(Comparison::new(format!("the CPU posts one prepared send, {what}"), pairs))
    }

    /// Waits until the stream is idle, where each post is to find it so.
    fn rest(&self, burst: u32) -> Result<(), Failure> {
        if burst == 1 { self.gpu.synchronize() } else { Ok(()) }
    }
}

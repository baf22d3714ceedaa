//! Waking and posting, against the same memory operations written by hand.

use super::gpu::{Gpu, Pair, by_hand};
use super::{Comparison, print, print_json};
use crate::cli::BenchOptions;
use crate::failure::Failure;
use gdsync::memop::Condition;
use gdsync::{Batch, PreparedSend, WorkRequest};
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Turnarounds that are measured.
const TURNS: u32 = 2000;
/// Sends whose posting is measured, one after the other on an idle stream, and in bursts.
const IDLE_POSTS: u32 = 4000;
const POSTS: u32 = 20_000;
const BURST: u32 = 16;

/// Lines of the shared words.
const START: usize = 0;
const END: usize = 1;
const RECORD: usize = 2;
const REGISTER: usize = 3;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    doorbells: String,
    rows: Vec<Comparison>,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let bench = Bench { gpu: Gpu::new(options.gpu)?, pair: Pair::new(options.hca.as_ref())? };
    let results = Results {
        gpu: bench.gpu.name()?,
        doorbells: bench.gpu.stream.doorbells(&bench.pair.left)?.to_string(),
        rows: vec![bench.turnaround()?, bench.posting(IDLE_POSTS, 1)?, bench.posting(POSTS, BURST)?],
    };
    if options.json {
        return print_json(&results);
    }
    let heading = format!("{}, DOORBELLS {}", results.gpu, results.doorbells);
    let rows: Vec<_> = results.rows.iter().map(Comparison::row).collect();
    print(&[&heading, "GDSYNC µs", "BY HAND µs", "RATIO"], &rows)
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
}

/// How long a call takes, in µs.
fn timed(call: impl FnOnce() -> Result<(), Failure>) -> Result<f64, Failure> {
    let start = Instant::now();
    call()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

impl Bench {
    fn prepare(&self) -> Result<PreparedSend, Failure> {
        self.pair.right.post_recv(&[], 0)?;
        Ok(self.pair.left.prepare(WorkRequest::send(&[]))?)
    }

    /// Takes the completions of `count` sends and their receives.
    fn collect(&self, count: u32) -> Result<(), Failure> {
        for queue in [self.pair.left.send_cq(), self.pair.right.recv_cq()] {
            let mut left = count;
            while left > 0 {
                match queue.poll()? {
                    Some(completion) => {
                        completion.status?;
                        left -= 1;
                    }
                    None => std::hint::spin_loop(),
                }
            }
        }
        Ok(())
    }

    /// From the flip of a word that the stream waits for, until the CPU sees what it writes after the doorbell.
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
            self.collect(1)?;
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
        std::thread::sleep(Duration::from_micros(30));
        let start = Instant::now();
        self.gpu.word(START).store(value, Ordering::Release);
        self.gpu.await_word(END, value)?;
        let time = start.elapsed().as_secs_f64() * 1e6;
        self.gpu.synchronize()?;
        Ok(time)
    }

    /// What it costs the CPU to post one prepared send: with `burst` of them between two synchronizations.
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
            // The first of two calls finds the driver's memory out of the nearest caches, after what preparing has
            // touched; the second finds it there. They take turns.
            let send = self.prepare()?;
            let post_send = || gpu.stream.post_send(send).map(drop).map_err(|error| error.to_string().into());
            self.rest(burst)?;
            let (ours, reference) = if post % 2 == 0 {
                let reference = timed(|| by_hand(post))?;
                self.rest(burst)?;
                (timed(post_send)?, reference)
            } else {
                let ours = timed(post_send)?;
                self.rest(burst)?;
                (ours, timed(|| by_hand(post))?)
            };
            pairs.push((ours, reference));
            if post % burst == burst - 1 {
                gpu.synchronize()?;
                self.collect(burst)?;
            }
        }
        let what = if burst == 1 { "an idle stream" } else { "a busy stream" };
        Ok(Comparison::new(&format!("the CPU posts one prepared send, {what}"), pairs))
    }

    /// Where each post is to find an idle stream: waits until it is.
    fn rest(&self, burst: u32) -> Result<(), Failure> {
        if burst == 1 { self.gpu.synchronize() } else { Ok(()) }
    }
}

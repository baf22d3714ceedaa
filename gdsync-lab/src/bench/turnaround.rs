//! Waking and posting, against the same memory operations written by hand.

use super::gpu::by_hand::Bare;
use super::gpu::{END, Gpu, START};
use super::pair::Pair;
use super::table::{Outcome, Row};
use super::{in_turns, micros_since, timed};
use gdsync::memop::Condition;
use gdsync::{Batch, CudaStream, PreparedSend, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use std::time::{Duration, Instant};

/// Turnarounds that are measured, unless the user ends them.
const TURNS: u32 = 2000;
/// Sends whose posting is measured, one after the other on an idle stream, and in bursts.
const IDLE_POSTS: u32 = 4000;
const POSTS: u32 = 20_000;
const BURST: u32 = 16;

/// The shared words that stand in for a doorbell record and a doorbell register.
const RECORD: usize = 2;
const REGISTER: usize = 3;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut bench = Bench::new(options)?;
    let mut rows = vec![bench.turnaround()?];
    let posting = [
        (Poster::Any, IDLE_POSTS, 1),
        (Poster::Any, POSTS, BURST),
        (Poster::Owner, IDLE_POSTS, 1),
        (Poster::Owner, POSTS, BURST),
    ];
    // After an interrupt, what has been measured is all.
    for (by, posts, burst) in posting.into_iter().take_while(|_| !interrupt::requested()) {
        rows.push(bench.posting(by, posts, burst)?);
    }
    let (name, doorbells) = bench.gpu.described(&bench.pair)?;
    let titles = [&*format!("{name}, DOORBELLS {doorbells}"), "GDSYNC µs", "BY HAND µs"];
    let all = Row::default().key("gpu", name).key("doorbells", doorbells);
    Ok(Outcome::compared(all, titles, "Waking and posting", &rows))
}

/// Who posts: any thread, or the only owner of a stream that nothing captures.
#[derive(Clone, Copy)]
enum Poster {
    Any,
    Owner,
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
    /// The stream of [`Poster::Owner`].
    owned: Stream<CudaStream>,
}

impl Bench {
    fn new(options: &BenchOptions) -> Result<Self, Failure> {
        let (gpu, pair) = (Gpu::new(options.gpu())?, Pair::new(options.hca.as_ref())?);
        let stream = CudaStream::new(gpu.context.new_stream()?)?;
        // SAFETY: the bench captures no stream.
        let owned = Stream::new(unsafe { stream.never_captured() })?;
        Ok(Bench { gpu, pair, owned })
    }

    fn prepare(&self) -> Result<PreparedSend, Failure> {
        self.pair.right.post_recv(&[], 0)?;
        Ok(self.pair.left.prepare(WorkRequest::send(&[]))?)
    }

    /// From the flip of a word that the stream waits for, until the CPU sees what it writes after
    /// the doorbell.
    fn turnaround(&self) -> Result<Row, Failure> {
        let gpu = &self.gpu;
        let (start, end) = (gpu.handle(START)?, gpu.handle(END)?);
        let mut value = 0;
        let pairs = in_turns(interrupt::rounds(0..TURNS), |way, _| {
            value += 1;
            if way == 0 {
                let batch = Batch::new()
                    .wait_value32(&start, Condition::Geq, value)
                    .send(self.prepare()?)
                    .write_value32(&end, value);
                gpu.stream.post(batch).map_err(|error| error.to_string())?;
            } else {
                let mut ops = [
                    CudaStream::wait32(gpu.addr(START)?, Condition::Geq, value),
                    CudaStream::write32(gpu.addr(RECORD)?, value),
                    CudaStream::write64(gpu.addr(REGISTER)?, value.into()),
                    CudaStream::write32(gpu.addr(END)?, value),
                ];
                // SAFETY: the addresses are words of `gpu`.
                unsafe { gpu.stream.enqueue(&mut ops) }?;
            }
            let time = gpu.flip(value, Duration::from_micros(30))?;
            if way == 0 {
                self.pair.collect(1)?;
            }
            Ok(time)
        })?;
        Ok(Row::named("a word flips, the stream wakes, the doorbell is visible").compared(&pairs))
    }

    /// What it costs the CPU to post one prepared send: with `burst` of them between two
    /// synchronizations.
    fn posting(&mut self, by: Poster, posts: u32, burst: u32) -> Result<Row, Failure> {
        let (record, register) = (self.gpu.addr(RECORD)?, self.gpu.addr(REGISTER)?);
        let by_hand = |stream: &CudaStream, value: u32| {
            let mut ops = [CudaStream::write32(record, value), CudaStream::write64(register, value.into())];
            // SAFETY: the addresses are words of `gpu`, which both streams' context has registered.
            unsafe { stream.enqueue(&mut ops) }
        };
        let mut pairs = Vec::new();
        // A burst that has begun is ended.
        let bursts = interrupt::rounds(0..posts / burst);
        for post in bursts.flat_map(|number| number * burst..(number + 1) * burst) {
            // Preparing evicts the driver's memory from the nearest caches, and the first of the
            // two calls brings it back.
            let mut send = Some(self.prepare()?);
            let stream = match by {
                Poster::Any => &mut self.gpu.stream,
                Poster::Owner => &mut self.owned,
            };
            let (mut ours, mut reference) = (f64::NAN, f64::NAN);
            for is_ours in [post % 2 == 1, post % 2 == 0] {
                if burst == 1 {
                    stream.synchronize()?;
                }
                match send.take_if(|_| is_ours) {
                    None => reference = timed(|| by_hand(stream, post))?,
                    Some(send) => {
                        let start = Instant::now();
                        let posted = match by {
                            Poster::Any => stream.post_send(send),
                            Poster::Owner => stream.post_send_mut(send),
                        };
                        ours = micros_since(start);
                        posted.map_err(|error| error.to_string())?;
                    }
                }
            }
            pairs.push([ours, reference]);
            if post % burst == burst - 1 {
                stream.synchronize()?;
                self.pair.collect(burst.into())?;
            }
        }
        let what = if burst == 1 { "an idle stream" } else { "a busy stream" };
        let who = match by {
            Poster::Any => "the CPU posts one prepared send",
            Poster::Owner => "the stream's owner does, uncaptured",
        };
        Ok(Row::named(format!("{who}, {what}")).compared(&pairs))
    }
}

//! `gdsync bench turnaround`: waking and posting, against the same memory operations written by hand. With `--gpu 0,1`,
//! streams of two GPUs wake each other by words in host memory and in either GPU's.

use super::gpu::by_hand::Bare;
use super::gpu::{END, Gpu, START};
use super::pair::Pair;
use super::table::{MEDIAN_RATIO, Outcome, Row, Table};
use super::{in_turns, micros_since, timed};
use gdsync::cuda::{self, GpuList, GpuMemory};
use gdsync::memop::{Condition, GpuWord32, MemOpStream, StreamWord, Word32};
use gdsync::memory::StreamAddr;
use gdsync::{Batch, CudaStream, PinnedMemory, PreparedSend, Stream, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{child, interrupt};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TURNS: u32 = 2000;
/// Measured posts: one after the other on an idle stream, and in bursts.
const IDLE_POSTS: u32 = 4000;
const POSTS: u32 = 20_000;
const BURST: u32 = 16;

/// The shared words used as a doorbell record and a doorbell register.
const RECORD: usize = 2;
const REGISTER: usize = 3;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let mut bench = Turnaround::new(options)?;
    let mut rows = vec![bench.turnaround()?];
    let posting = [Poster::Any, Poster::Uncaptured, Poster::Owner]
        .into_iter()
        .flat_map(|by| [(by, IDLE_POSTS, 1), (by, POSTS, BURST)]);
    // After an interrupt, the results so far are all.
    for (by, posts, burst) in posting.take_while(|_| !interrupt::requested()) {
        rows.push(bench.posting(by, posts, burst)?);
    }
    let (name, doorbells) = bench.gpu.described(&bench.pair)?;
    let titles = [&*format!("{name}, DOORBELLS {doorbells}"), "GDSYNC µs", "BY HAND µs"];
    let all = Row::default().key("gpu", name).key("doorbells", doorbells);
    Ok(Outcome::compared(all, titles, "Waking and posting", &rows))
}

/// The posting thread: any thread, on a stream that may be captured or one that never is; or the only owner of the latter.
#[derive(Clone, Copy)]
enum Poster {
    Any,
    Uncaptured,
    Owner,
}

struct Turnaround {
    gpu: Gpu,
    pair: Pair,
    owned: Stream<CudaStream>,
}

impl Turnaround {
    fn new(options: &BenchOptions) -> Result<Self, Failure> {
        let (gpu, pair) = (Gpu::new(options.gpu())?, Pair::new(options.hca.as_ref())?);
        let stream = CudaStream::new(gpu.context.new_stream()?)?;
        // SAFETY: the benchmark captures no stream.
        let owned = Stream::new(unsafe { stream.never_captured() })?;
        Ok(Turnaround { gpu, pair, owned })
    }

    fn prepare(&self) -> Result<PreparedSend, Failure> {
        self.pair.right.post_recv(&[], 0)?;
        Ok(self.pair.left.prepare(WorkRequest::send(&[]))?)
    }

    /// Measures from the flip of a word that the stream waits for until the CPU sees the write after the doorbell.
    fn turnaround(&self) -> Result<Row, Failure> {
        let gpu = &self.gpu;
        let (start, end) = (gpu.handle(START)?, gpu.handle(END)?);
        let mut value = 0;
        let pairs = in_turns(interrupt::rounds(0..TURNS), |variant, _| {
            value += 1;
            if variant == 0 {
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
            if variant == 0 {
                self.pair.collect(1)?;
            }
            Ok(time)
        })?;
        Ok(Row::named("a word flips, the stream wakes, the doorbell is visible").compared(&pairs))
    }

    /// Measures the CPU's cost of posting one prepared send, with `burst` of them between two synchronizations.
    fn posting(&mut self, by: Poster, posts: u32, burst: u32) -> Result<Row, Failure> {
        let (record, register) = (self.gpu.addr(RECORD)?, self.gpu.addr(REGISTER)?);
        let by_hand = |stream: &CudaStream, value: u32| {
            let mut ops = [CudaStream::write32(record, value), CudaStream::write64(register, value.into())];
            // SAFETY: the addresses are words of `gpu`, registered with the context of both streams.
            unsafe { stream.enqueue(&mut ops) }
        };
        let mut pairs = Vec::new();
        // A burst that has begun is completed.
        let bursts = interrupt::rounds(0..posts / burst);
        for post in bursts.flat_map(|number| number * burst..(number + 1) * burst) {
            // Preparing evicts the driver's memory from the nearest caches, and the first of the two calls reloads it.
            let mut send = Some(self.prepare()?);
            let stream = match by {
                Poster::Any => &mut self.gpu.stream,
                Poster::Uncaptured | Poster::Owner => &mut self.owned,
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
                            Poster::Any | Poster::Uncaptured => stream.post_send(send),
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
            Poster::Uncaptured => "the CPU posts one prepared send, uncaptured",
            Poster::Owner => "the stream's owner does, uncaptured",
        };
        Ok(Row::named(format!("{who}, {what}")).compared(&pairs))
    }
}

/// Round trips of wakes enqueued at a time: two operations each for a stream; by hand, one call for all.
const WAKES: u32 = 60;
/// Measurements of this many round trips.
const WAKE_RUNS: u32 = 200;
/// Bytes between the words: each has its own cache line.
const LINE: usize = 128;

pub(super) fn run_between(options: &BenchOptions) -> Result<Outcome, Failure> {
    // Streams of one GPU that wait for each other need a channel each.
    child::with_channels()?;
    let gpus = options.gpu.as_ref().map_or_else(|| GpuList::from(0).resolve(), GpuList::resolve)?;
    let (mut rows, mut lines, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for pair in gpus.pairs() {
        let (all, not_measured) = between(pair)?;
        let what = |what: &str| format!("GPU {} and GPU {}, {what}", pair[0], pair[1]);
        rows.extend(all.iter().map(|row| row.clone().renamed(what(row.name()))));
        lines.extend_from_slice(&rows[rows.len() - all.len()..]);
        lines.extend(not_measured.iter().map(|why| {
            let dash = |row: Row, _| row.text("-");
            (0..3).fold(Row::default().text(what(&format!("words in GPU memory: {why}"))), dash)
        }));
        pairs.push(json!({ "gpus": pair, "rows": Value::from(all), "not_measured": not_measured }));
    }
    let heading = format!("{gpus}, A WAKE THERE AND BACK");
    let table = Table::new(&[&heading, "GDSYNC µs", "BY HAND µs", MEDIAN_RATIO], &lines);
    let outcome = Outcome::new(json!({ "on": gpus.to_string(), "pairs": pairs }), [table]);
    Ok(outcome.comparison("A wake there and back", ["GDSYNC", "BY HAND"], &rows))
}

/// Returns a row for each kind of memory, and why words in GPU memory were not measured.
fn between(gpus: [u32; 2]) -> Result<(Vec<Row>, Option<String>), Failure> {
    let sides = [Gpu::new(gpus[0])?, Gpu::new(gpus[1])?];
    let host = PinnedMemory::allocate(2 * LINE)?;
    let words = [Word32::new(&host, 0)?, Word32::new(&host, LINE)?];
    let reached = |side: usize| -> Result<_, Failure> {
        let at = |word: &Word32| sides[side].stream.translate(word.addr(), 4);
        Ok([at(&words[0])?, at(&words[1])?])
    };
    let addresses = [reached(0)?, reached(1)?];
    let mut rows = vec![compare("words in host memory", &sides, [&words[0], &words[1]], addresses)?];
    let [one, other] = [&sides[0].context, &sides[1].context];
    let access = cuda::enable_peer_access(one, other).and_then(|()| cuda::enable_peer_access(other, one));
    if access.is_ok() {
        // Each word is written by one side and awaited by the other; side 0 writes word 0.
        for (of_waiter, what) in [(true, "waits"), (false, "writes")] {
            let owner = |word: usize| &sides[if of_waiter { 1 - word } else { word }].context;
            let memory = [GpuMemory::allocate(owner(0), 4)?, GpuMemory::allocate(owner(1), 4)?];
            let words = [GpuWord32::new(&memory[0], 0)?, GpuWord32::new(&memory[1], 0)?];
            let address = |word: &GpuWord32| StreamAddr::new(word.address());
            let addresses = [[address(&words[0]), address(&words[1])]; 2];
            let what = format!("words in the memory of the GPU that {what}");
            rows.push(compare(&what, &sides, [&words[0], &words[1]], addresses)?);
        }
    }
    Ok((rows, access.err().map(|error| error.to_string())))
}

/// `addresses`: each side's addresses of the words.
fn compare<W: StreamWord<u32>>(
    what: &str,
    sides: &[Gpu; 2],
    words: [&W; 2],
    addresses: [[StreamAddr; 2]; 2],
) -> Result<Row, Failure> {
    let mut next = 1;
    let pairs = in_turns(interrupt::rounds(0..WAKE_RUNS), |variant, _| {
        let first = next;
        next += WAKES + 1;
        match variant {
            0 => wakes(sides, words, first),
            _ => wakes_by_hand(sides, addresses, first),
        }
    })?;
    Ok(Row::named(what).compared(&pairs))
}

/// Returns µs of a round trip: each stream waits for the peer's word and writes its own. The CPU flips the word that
/// the first waits for, and sees its last write.
fn wakes<W: StreamWord<u32>>(sides: &[Gpu; 2], words: [&W; 2], first: u32) -> Result<f64, Failure> {
    let turns = first..first + WAKES;
    let [one, other] = sides;
    let gate = Batch::new().wait_value32(&one.handle(START)?, Condition::Eq, first);
    let there = turns.clone().fold(gate, |batch, turn| {
        batch.write_value32(words[0], turn).wait_value32(words[1], Condition::Geq, turn)
    });
    let back = turns.fold(Batch::new(), |batch, turn| {
        batch.wait_value32(words[0], Condition::Geq, turn).write_value32(words[1], turn)
    });
    let post = |gpu: &Gpu, batch| gpu.stream.post(batch).map(drop).map_err(|error| error.to_string());
    post(one, there.write_value32(&one.handle(END)?, first))?;
    post(other, back)?;
    flip(sides, first)
}

fn wakes_by_hand(sides: &[Gpu; 2], [one, other]: [[StreamAddr; 2]; 2], first: u32) -> Result<f64, Failure> {
    let turns = first..first + WAKES;
    let mut there = vec![CudaStream::wait32(sides[0].addr(START)?, Condition::Eq, first)];
    there.extend(turns.clone().flat_map(|turn| {
        [CudaStream::write32(one[0], turn), CudaStream::wait32(one[1], Condition::Geq, turn)]
    }));
    there.push(CudaStream::write32(sides[0].addr(END)?, first));
    let back = turns.flat_map(|turn| {
        [CudaStream::wait32(other[0], Condition::Geq, turn), CudaStream::write32(other[1], turn)]
    });
    let mut back: Vec<_> = back.collect();
    // SAFETY: the words live until both streams are synchronized (`flip`), and the streams reach them: the caller has
    // their addresses from the streams, or has enabled access.
    unsafe {
        sides[0].stream.enqueue(&mut there)?;
        sides[1].stream.enqueue(&mut back)?;
    }
    flip(sides, first)
}

fn flip(sides: &[Gpu; 2], value: u32) -> Result<f64, Failure> {
    let time = sides[0].flip(value, Duration::from_micros(50))?;
    sides[1].synchronize()?;
    Ok(time / f64::from(WAKES))
}

//! `gdsync bench fanout`: sends to many queue pairs by one word that the card waits for, and waits that the card
//! collects, against doorbells and waits of the stream. On a GPU's stream by the GPU's clock; without a GPU on a
//! software stream.

use super::gpu::Gpu;
use super::table::{MEDIAN_RATIO, Outcome, Row};
use super::{MEDIAN_US, in_turns, median, pair};
use gdsync::cuda::Placement;
use gdsync::cudarc::driver::CudaEvent;
use gdsync::cudarc::driver::sys::CUevent_flags;
use gdsync::memop::{Condition, MemOpStream, Word32};
use gdsync::stream::{Event, StreamOptions};
use gdsync::{
    Batch, ConnectOptions, CudaStream, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_cli::cli::{BenchOptions, Memory};
use gdsync_cli::failure::Failure;
use gdsync_cli::{hca, interrupt};
use std::time::Duration;

const SIZES: [u32; 4] = [1, 8, 64, 512];
const ROUNDS: u64 = 200;
/// The time that the card may need until the completions of a round have arrived, and for each further peer; the stream
/// waits for a word meanwhile.
const REST: Duration = Duration::from_micros(300);
const REST_EACH: Duration = Duration::from_micros(10);

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    match (Gpu::new(options.gpu()), options.arrivals) {
        (Ok(gpu), memory) => {
            let arrivals =
                if memory == Memory::Gpu { Placement::Gpu(options.gpu()) } else { Placement::Host };
            measure(options, gpu.name()?, arrivals, || Ok(CudaStream::new(gpu.context.new_stream()?)?))
        }
        (Err(_), Memory::Host) => {
            measure(options, "a software stream".to_owned(), Placement::Host, || Ok(SoftStream::new()?))
        }
        (Err(error), Memory::Gpu) => Err(error),
    }
}

fn measure<B: Clocked>(
    options: &BenchOptions,
    on: String,
    arrivals: Placement,
    backend: impl Fn() -> Result<B, Failure>,
) -> Result<Outcome, Failure> {
    let mut bench = FanOut::new(options, arrivals, [backend()?, backend()?])?;
    let (mut rows, mut empty) = (Vec::new(), Vec::new());
    for peers in SIZES {
        bench.gather(peers)?;
        for kind in [BatchKind::Sends, BatchKind::Waits, BatchKind::Step] {
            rows.push(bench.compare(kind, peers, &mut empty)?);
        }
    }
    let doorbells = bench.streams.plain.doorbells(&bench.by_doorbells[0])?.to_string();
    let heading = format!("{on}, DOORBELLS {doorbells}");
    let header = [&*heading, "PEERS", "WORD µs", "DOORBELLS µs", MEDIAN_RATIO, "OPERATIONS", "BY DOORBELLS"];
    let lines = |outcome: Outcome, what: &str, y: &str, keys: [&'static str; 2]| {
        outcome.lines(format!("{what} by peers, {on}"), ["Peers", y], "peers", &rows, |row| {
            let part = row.name();
            [(format!("{part}, word"), keys[0]), (format!("{part}, doorbells"), keys[1])]
        })
    };
    // All rows exclude the median of an empty round.
    let all = Row::default().key("on", &*on).key("doorbells", doorbells).key("empty_us", median(empty));
    let outcome = Outcome::of(all, &header, &rows);
    let keys = ["gdsync_operations", "reference_operations"];
    let outcome = lines(outcome, "Memory operations", "Memory operations of a batch", keys);
    Ok(lines(outcome, "Time", MEDIAN_US, ["gdsync_us", "reference_us"]))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchKind {
    Sends,
    /// A wait for a message that each queue pair has received.
    Waits,
    /// The sends, then waits for their messages, so that the time includes the card's.
    Step,
}

impl BatchKind {
    fn name(self) -> &'static str {
        match self {
            BatchKind::Sends => "sends",
            BatchKind::Waits => "waits for completions that have come",
            BatchKind::Step => "sends and waits for them: the card, too",
        }
    }
}

struct FanOut<B: Clocked> {
    pd: ProtectionDomain,
    port: u8,
    trigger: Trigger,
    /// Queue pairs that are connected to themselves, one for each peer.
    by_word: Vec<QueuePair>,
    by_doorbells: Vec<QueuePair>,
    streams: Streams<B>,
    posts: u64,
}

impl<B: Clocked> FanOut<B> {
    /// `arrivals`: the memory of the word that the card writes.
    fn new(options: &BenchOptions, arrivals: Placement, backends: [B; 2]) -> Result<Self, Failure> {
        let (device, port) = hca::open(options.hca.as_ref())?;
        let pd = ProtectionDomain::new(&device)?;
        Ok(FanOut {
            trigger: Trigger::new(&pd)?,
            pd,
            port,
            by_word: Vec::new(),
            by_doorbells: Vec::new(),
            streams: Streams::new(backends, arrivals)?,
            posts: options.posts(),
        })
    }

    /// Creates queue pairs only when needed: a software card polls all that exist.
    fn gather(&mut self, peers: u32) -> Result<(), Failure> {
        let config = QueuePairConfig::default().send_depth(2).recv_depth(2).port(self.port);
        let own = |config| -> Result<QueuePair, Failure> {
            let queue_pair = QueuePair::new(&self.pd, config)?;
            queue_pair.connect(&queue_pair.endpoint()?, ConnectOptions::default())?;
            Ok(queue_pair)
        };
        for _ in self.by_word.len()..peers as usize {
            self.by_word.push(own(config.trigger(&self.trigger))?);
            self.by_doorbells.push(own(config)?);
        }
        Ok(())
    }

    /// Measures rounds of both variants, and empty ones, whose time is subtracted.
    fn compare(&mut self, kind: BatchKind, peers: u32, empty: &mut Vec<f64>) -> Result<Row, Failure> {
        let rounds = (self.posts / u64::from(peers)).clamp(1, ROUNDS);
        let mut operations = [0; 2];
        let times: Vec<[f64; 3]> = in_turns(interrupt::rounds(0..rounds), |variant, _| {
            let Some(variant) = [Variant::Word, Variant::Doorbells].get(variant).copied() else {
                return Ok(self.streams.time(Variant::Doorbells, Batch::new(), Duration::ZERO)?.0);
            };
            let (time, count) = self.round(kind, variant, peers)?;
            operations[variant as usize] = count;
            Ok(time)
        })?;
        empty.extend(times.iter().map(|[.., none]| none));
        let net = |[word, doorbells, none]: &[f64; 3]| [word - none, doorbells - none];
        let [ours, reference] = operations.map(|count: usize| (count, count.to_string()));
        Ok(Row::named(kind.name())
            .cell("peers", peers, peers.to_string())
            .compared(&times.iter().map(net).collect::<Vec<_>>())
            .cell("gdsync_operations", ours.0, ours.1)
            .cell("reference_operations", reference.0, reference.1))
    }

    /// Returns the time of a batch in µs, and its memory operations.
    fn round(&mut self, kind: BatchKind, variant: Variant, peers: u32) -> Result<(f64, usize), Failure> {
        let all = if variant == Variant::Word { &self.by_word } else { &self.by_doorbells };
        let queue_pairs = &all[..peers as usize];
        let mut batch = Batch::new();
        for queue_pair in queue_pairs {
            queue_pair.post_recv(&[], 0)?;
            if kind == BatchKind::Waits {
                queue_pair.post_send(WorkRequest::send(&[]))?;
            } else {
                batch = batch.send(queue_pair.prepare(WorkRequest::send(&[]))?);
            }
        }
        if kind != BatchKind::Sends {
            for queue_pair in queue_pairs {
                batch = batch.wait(queue_pair.recv_cq().prepare_wait()?);
            }
        }
        let result = self.streams.time(variant, batch, REST + REST_EACH * peers)?;
        for queue_pair in queue_pairs {
            pair::collect(&queue_pair.send_cq(), 1)?;
            pair::collect(&queue_pair.recv_cq(), 1)?;
        }
        Ok(result)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The card waits: one word releases the sends, and one reports all completions.
    Word,
    /// The stream rings and waits for each queue pair.
    Doorbells,
}

struct Streams<B: Clocked> {
    collecting: Stream<B>,
    plain: Stream<B>,
    /// The word that they wait for until everything is enqueued, and its value.
    gate: Word32,
    value: u32,
    marks: [B::Mark; 2],
}

impl<B: Clocked> Streams<B> {
    fn new([collecting, plain]: [B; 2], arrivals: Placement) -> Result<Self, Failure> {
        let options = StreamOptions::default().collect_from(Some(1)).collect_in(arrivals);
        let plain = Stream::new(plain)?;
        Ok(Streams {
            collecting: Stream::with_options(collecting, options)?,
            marks: [B::mark(&plain)?, B::mark(&plain)?],
            plain,
            gate: Word32::new(&PinnedMemory::allocate(size_of::<u32>())?, 0)?,
            value: 0,
        })
    }

    /// Enqueues a batch after the gate, and opens the gate after `rest`. Returns the time of the batch in µs, and its
    /// memory operations.
    fn time(&mut self, variant: Variant, batch: Batch, rest: Duration) -> Result<(f64, usize), Failure> {
        let stream = if variant == Variant::Word { &self.collecting } else { &self.plain };
        self.value += 1;
        let [start, end] = &mut self.marks;
        stream.post(Batch::new().wait_value32(&self.gate, Condition::Geq, self.value))?;
        B::record(stream, start)?;
        let posted = stream.post(batch).map_err(|error| error.to_string())?;
        B::record(stream, end)?;
        std::thread::sleep(rest);
        self.gate.store(self.value);
        stream.synchronize()?;
        Ok((B::between(start, end)?, posted.operations))
    }
}

/// A stream that reports when it has passed a point.
trait Clocked: MemOpStream + Sized {
    /// A point of a stream, which has a time once the stream has passed it.
    type Mark;

    /// Creates a reusable mark while the stream is idle, as a driver may require.
    fn mark(stream: &Stream<Self>) -> Result<Self::Mark, Failure>;

    fn record(stream: &Stream<Self>, mark: &mut Self::Mark) -> Result<(), Failure>;

    /// Returns the time between two passed points, in µs.
    fn between(start: &Self::Mark, end: &Self::Mark) -> Result<f64, Failure>;
}

/// By the clock of the CPU, which performs the stream.
impl Clocked for SoftStream {
    type Mark = Option<Event>;

    fn mark(_: &Stream<Self>) -> Result<Self::Mark, Failure> {
        Ok(None)
    }

    fn record(stream: &Stream<Self>, mark: &mut Self::Mark) -> Result<(), Failure> {
        *mark = Some(stream.record()?);
        Ok(())
    }

    fn between(start: &Self::Mark, end: &Self::Mark) -> Result<f64, Failure> {
        let passed = |mark: &Self::Mark| {
            mark.as_ref().and_then(Event::completed_at).ok_or("the stream has not passed a mark")
        };
        Ok(passed(end)?.duration_since(passed(start)?).as_secs_f64() * 1e6)
    }
}

/// By the clock of the GPU, which writes the times.
impl Clocked for CudaStream {
    type Mark = CudaEvent;

    fn mark(stream: &Stream<Self>) -> Result<CudaEvent, Failure> {
        let queue = stream.cudarc().ok_or("a stream of another library")?;
        Ok(queue.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
    }

    fn record(stream: &Stream<Self>, mark: &mut CudaEvent) -> Result<(), Failure> {
        let queue = stream.cudarc().ok_or("a stream of another library")?;
        Ok(mark.record(queue)?)
    }

    fn between(start: &CudaEvent, end: &CudaEvent) -> Result<f64, Failure> {
        Ok(f64::from(start.elapsed_ms(end)?) * 1e3)
    }
}

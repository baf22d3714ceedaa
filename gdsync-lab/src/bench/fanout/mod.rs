//! `gdsync bench fanout`: sends to many queue pairs by one word that the card waits for, and waits
//! that the card collects, against doorbells and waits of the stream. On a GPU's stream, by the clock
//! of the GPU; without a GPU on a software stream.

mod clock;
mod streams;

use super::gpu::Gpu;
use super::outcome::Outcome;
use super::{Comparison, median, outcome, pair};
use clock::Clocked;
use gdsync::cuda::Placement;
use gdsync::{
    Batch, ConnectOptions, CudaStream, ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Trigger,
    WorkRequest,
};
use gdsync_cli::cli::{BenchOptions, Memory};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_cli::interrupt;
use gdsync_cli::plot::{Axis, Chart, Content, Scale, Series};
use serde::Serialize;
use std::time::Duration;
use streams::{Streams, Way};

/// Peers of each measurement.
const SIZES: [u32; 4] = [1, 8, 64, 512];
/// Most rounds of each measurement.
const ROUNDS: u64 = 200;
/// What the card may need for the completions of a round until they are there, and for one more
/// peer: the stream stands at a word meanwhile.
const REST: Duration = Duration::from_micros(300);
const REST_EACH: Duration = Duration::from_micros(10);

#[derive(Debug, Serialize)]
struct Results {
    /// The GPU, or that there is none.
    on: String,
    /// How doorbells reach the card.
    doorbells: String,
    /// Median of a round without anything, which is taken off in all rows.
    empty_us: f64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    peers: u32,
    #[serde(flatten)]
    time: Comparison,
    /// Memory operations of the batch.
    gdsync_operations: usize,
    reference_operations: usize,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let results = match (Gpu::new(options.gpu()), options.arrivals) {
        (Ok(gpu), memory) => {
            let arrivals =
                if memory == Memory::Gpu { Placement::Gpu(options.gpu()) } else { Placement::Host };
            measure(options, gpu.name()?, arrivals, || Ok(CudaStream::new(gpu.context.new_stream()?)?))
        }
        (Err(_), Memory::Host) => {
            measure(options, "a software stream".to_owned(), Placement::Host, || Ok(SoftStream::new()?))
        }
        (Err(error), Memory::Gpu) => Err(error),
    }?;
    let heading = format!("{}, DOORBELLS {}", results.on, results.doorbells);
    let cells = |row: &Row| {
        let mut cells = row.time.row();
        cells.insert(1, row.peers.to_string());
        cells.extend([row.gdsync_operations, row.reference_operations].map(|count| count.to_string()));
        cells
    };
    let header = [&heading, "PEERS", "WORD µs", "DOORBELLS µs", "RATIO", "OPERATIONS", "BY DOORBELLS"];
    let charts = results.charts();
    let outcome = outcome(&results, &header, results.rows.iter().map(cells).collect())?;
    Ok(charts.into_iter().fold(outcome, Outcome::chart))
}

impl Results {
    /// Memory operations, and times, by the number of peers.
    fn charts(&self) -> [Chart; 2] {
        let lines = |pick: fn(&Row) -> [f64; 2]| -> Vec<Series> {
            let parts = [Part::Sends, Part::Waits, Part::Step].map(Part::name);
            let line = |part: &'static str, way: usize, name: &str| {
                let rows = self.rows.iter().filter(move |row| row.time.what == part);
                Series::new(format!("{part}, {name}"), rows.map(|row| (f64::from(row.peers), pick(row)[way])))
            };
            parts.into_iter().flat_map(|part| [line(part, 0, "word"), line(part, 1, "doorbells")]).collect()
        };
        let chart = |title: String, y: &str, pick| Chart {
            title,
            content: Content::Lines {
                x: Axis::new("Peers", Scale::Counts),
                y: Axis::new(y, Scale::Log),
                series: lines(pick),
            },
        };
        [
            chart(
                format!("Memory operations by peers, {}", self.on),
                "Memory operations of a batch",
                |row| [row.gdsync_operations, row.reference_operations].map(|count| count as f64),
            ),
            chart(format!("Time by peers, {}", self.on), "Median time, µs", |row| {
                [row.time.gdsync_us, row.time.reference_us]
            }),
        ]
    }
}

fn measure<B: Clocked>(
    options: &BenchOptions,
    on: String,
    arrivals: Placement,
    backend: impl Fn() -> Result<B, Failure>,
) -> Result<Results, Failure> {
    let mut bench = Bench::new(options, arrivals, [backend()?, backend()?])?;
    let (mut rows, mut empty) = (Vec::new(), Vec::new());
    for peers in SIZES {
        bench.gather(peers)?;
        for part in [Part::Sends, Part::Waits, Part::Step] {
            rows.push(bench.compare(part, peers, &mut empty)?);
        }
    }
    let doorbells = bench.streams.plain.doorbells(&bench.by_doorbells[0])?.to_string();
    Ok(Results { on, doorbells, empty_us: median(empty), rows })
}

/// What a batch has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A send of each queue pair.
    Sends,
    /// A wait for a message that each queue pair has received.
    Waits,
    /// These sends, and then waits for their messages: the card's time is in it.
    Step,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Sends => "sends",
            Part::Waits => "waits for completions that have come",
            Part::Step => "sends and waits for them: the card, too",
        }
    }
}

struct Bench<B: Clocked> {
    pd: ProtectionDomain,
    port: u8,
    trigger: Trigger,
    /// Queue pairs that are connected to themselves, a peer each.
    by_word: Vec<QueuePair>,
    by_doorbells: Vec<QueuePair>,
    streams: Streams<B>,
    posts: u64,
}

impl<B: Clocked> Bench<B> {
    /// `arrivals`: where the word lies that the card writes.
    fn new(options: &BenchOptions, arrivals: Placement, backends: [B; 2]) -> Result<Self, Failure> {
        let (device, port) = hca::open(options.hca.as_ref())?;
        let pd = ProtectionDomain::new(&device)?;
        Ok(Bench {
            trigger: Trigger::new(&pd)?,
            pd,
            port,
            by_word: Vec::new(),
            by_doorbells: Vec::new(),
            streams: Streams::new(backends, arrivals)?,
            posts: options.posts,
        })
    }

    /// Makes queue pairs only when a part needs them: a software card polls all that exist.
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

    /// Rounds by both ways, and empty ones, whose time is taken off.
    fn compare(&mut self, part: Part, peers: u32, empty: &mut Vec<f64>) -> Result<Row, Failure> {
        let rounds = (self.posts / u64::from(peers)).clamp(1, ROUNDS);
        let (mut times, mut operations) = (Vec::new(), [0; 2]);
        for round in interrupt::rounds(0..rounds) {
            let (none, _) = self.streams.time(Way::Doorbells, Batch::new(), Duration::ZERO)?;
            empty.push(none);
            // The first may find caches colder.
            let first = if round % 2 == 0 { Way::Word } else { Way::Doorbells };
            let mut both = [0.0; 2];
            for way in [first, first.other()] {
                let (time, count) = self.round(part, way, peers)?;
                (both[way as usize], operations[way as usize]) = (time - none, count);
            }
            times.push(both.into());
        }
        let [gdsync_operations, reference_operations] = operations;
        let time = Comparison::new(part.name(), times);
        Ok(Row { peers, time, gdsync_operations, reference_operations })
    }

    /// The time of a batch in µs, and its memory operations.
    fn round(&mut self, part: Part, way: Way, peers: u32) -> Result<(f64, usize), Failure> {
        let all = if way == Way::Word { &self.by_word } else { &self.by_doorbells };
        let queue_pairs = &all[..peers as usize];
        let mut batch = Batch::new();
        for queue_pair in queue_pairs {
            queue_pair.post_recv(&[], 0)?;
            if part == Part::Waits {
                queue_pair.post_send(WorkRequest::send(&[]))?;
            } else {
                batch = batch.send(queue_pair.prepare(WorkRequest::send(&[]))?);
            }
        }
        if part != Part::Sends {
            for queue_pair in queue_pairs {
                batch = batch.wait(queue_pair.recv_cq().prepare_wait()?);
            }
        }
        let result = self.streams.time(way, batch, REST + REST_EACH * peers)?;
        for queue_pair in queue_pairs {
            pair::collect(&queue_pair.send_cq(), 1)?;
            pair::collect(&queue_pair.recv_cq(), 1)?;
        }
        Ok(result)
    }
}

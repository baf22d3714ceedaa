//! Launching a graph with fresh sends and waits, against posting the same on the stream; and one
//! that needs no updates, as its sends are released by a trigger.

mod triggered;

use super::gpu::Gpu;
use super::outcome::Outcome;
use super::pair::Pair;
use super::{Comparison, compared};
use gdsync::batch::BatchShape;
use gdsync::graph::CudaGraph;
use gdsync::{Access, Batch, MemoryRegion, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use serde::Serialize;
use std::time::Instant;

/// Exchanges of each kind.
const EXCHANGES: usize = 10_000;
/// Exchanges between two looks at what has arrived.
const BURST: usize = 16;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    exchanges: usize,
    /// What arrived was what was sent, each time.
    verified: bool,
    rows: Vec<Comparison>,
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let name = gpu.name()?;
    let bench = Bench::new(gpu, options.hca.as_ref())?;
    let mut rows = bench.measure()?;
    rows.extend(triggered::measure(&bench.gpu, options.hca.as_ref())?);
    let results = Results { gpu: name, exchanges: EXCHANGES, verified: true, rows };
    let heading = format!("{} EXCHANGES EACH, VERIFIED, {}", results.exchanges, results.gpu);
    compared(
        &results,
        [&heading, "GRAPH µs", "STREAM µs"],
        "Launching a graph and posting on a stream",
        &results.rows,
    )
}

struct Bench {
    gpu: Gpu,
    pair: Pair,
    /// A number in each of `BURST` places; each exchange writes one place and sends it.
    source: MemoryRegion,
    target: MemoryRegion,
}

impl Bench {
    fn new(gpu: Gpu, hca: Option<&Hca>) -> Result<Self, Failure> {
        let pair = Pair::new(hca)?;
        let source = MemoryRegion::allocate(&pair.pd, 8 * BURST, Access::empty())?;
        let target = MemoryRegion::allocate(&pair.pd, 8 * BURST, Access::LOCAL_WRITE)?;
        Ok(Bench { gpu, pair, source, target })
    }

    /// The stream writes a number, sends it, and waits until it has arrived.
    fn exchange(&self, number: usize) -> Result<Batch, Failure> {
        let at = 8 * (number % BURST);
        self.pair.right.post_recv(&[self.target.slice(at..at + 8)?], 0)?;
        let slices = [self.source.slice(at..at + 8)?];
        let send = self.pair.left.prepare(WorkRequest::send(&slices))?;
        let arrival = self.pair.right.recv_cq().prepare_wait()?;
        Ok(Batch::new().write_value64(&self.source.word64(at)?, number as u64).send(send).wait(arrival))
    }

    /// Exchanges numbers from `first` on, `BURST` of them; `enqueue` does it. Returns the CPU's
    /// time for each in µs, from preparation to posting, and the time until all have arrived.
    fn burst(
        &self,
        first: usize,
        enqueue: &mut dyn FnMut(Batch) -> Result<(), Failure>,
    ) -> Result<(f64, f64), Failure> {
        let start = Instant::now();
        for number in first..first + BURST {
            enqueue(self.exchange(number)?)?;
        }
        let posted = start.elapsed();
        self.gpu.synchronize()?;
        let arrived = start.elapsed();
        for number in first..first + BURST {
            self.pair.collect(1)?;
            let found = self.target.word64(8 * (number % BURST))?.load();
            if found != number as u64 {
                return Err(format!("exchange {number} brought {found}").into());
            }
        }
        let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / BURST as f64;
        Ok((each(posted), each(arrived)))
    }

    fn measure(&self) -> Result<Vec<Comparison>, Failure> {
        let stream = &self.gpu.stream;
        let shape = BatchShape::new().write_value64().send().wait();
        let mut graph: CudaGraph = stream.capture(|capture| Ok(capture.batch(&shape)?))?;
        let (mut posted, mut arrived) = (Vec::new(), Vec::new());
        let mut number = 0;
        while number < 2 * EXCHANGES {
            let by_graph = self.burst(number, &mut |batch| {
                stream.launch(&mut graph, [batch]).map(drop).map_err(|error| error.to_string().into())
            })?;
            let by_stream = self.burst(number + BURST, &mut |batch| {
                stream.post(batch).map(drop).map_err(|error| error.to_string().into())
            })?;
            number += 2 * BURST;
            posted.push((by_graph.0, by_stream.0));
            arrived.push((by_graph.1, by_stream.1));
        }
        Ok(vec![
            Comparison::new("the CPU prepares and enqueues an exchange", posted),
            Comparison::new("an exchange, from preparation to arrival", arrived),
        ])
    }
}

//! Launching a graph with fresh sends and waits, against posting the same on the stream; and one
//! that needs no updates, as its sends are released by a trigger.

mod triggered;

use super::gpu::Gpu;
use super::in_turns;
use super::pair::Pair;
use super::table::{Outcome, Row};
use gdsync::batch::BatchShape;
use gdsync::graph::CudaGraph;
use gdsync::{Access, Batch, MemoryRegion, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use std::time::Instant;

/// Exchanges of each kind.
const EXCHANGES: usize = 10_000;
/// Exchanges between two looks at what has arrived.
const BURST: usize = 16;
const BURSTS: u32 = (EXCHANGES / BURST) as u32;

/// The CPU's time for an exchange in µs, from preparation to posting, and the time until all of its burst have arrived.
type Times = (f64, f64);

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let name = gpu.name()?;
    let bench = Bench::new(gpu, options.hca.as_ref())?;
    let mut rows = bench.measure()?;
    rows.extend(triggered::measure(&bench.gpu, options.hca.as_ref())?);
    let titles = [&*format!("{EXCHANGES} EXCHANGES EACH, VERIFIED, {name}"), "GRAPH µs", "STREAM µs"];
    // What arrived was what was sent, each time.
    let all = Row::default().key("gpu", name).key("exchanges", EXCHANGES).key("verified", true);
    Ok(Outcome::compared(all, titles, "Launching a graph and posting on a stream", &rows))
}

/// A row of one of the times of bursts.
fn row(what: &str, bursts: &[[Times; 2]], pick: fn(&Times) -> f64) -> Row {
    Row::named(what).compared(&bursts.iter().map(|both| both.each_ref().map(pick)).collect::<Vec<_>>())
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

    /// Exchanges numbers from `first` on, `BURST` of them; `enqueue` does it.
    fn burst(
        &self,
        first: usize,
        enqueue: &mut dyn FnMut(Batch) -> Result<(), Failure>,
    ) -> Result<Times, Failure> {
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

    fn measure(&self) -> Result<Vec<Row>, Failure> {
        let stream = &self.gpu.stream;
        let shape = BatchShape::new().write_value64().send().wait();
        let mut graph: CudaGraph = stream.capture(|capture| Ok(capture.batch(&shape)?))?;
        let mut number = 0;
        let bursts = in_turns(0..BURSTS, |way, _| {
            number += BURST;
            self.burst(number - BURST, &mut |batch| {
                let posted = match way {
                    0 => stream.launch(&mut graph, [batch]).map(drop).map_err(|error| error.to_string()),
                    _ => stream.post(batch).map(drop).map_err(|error| error.to_string()),
                };
                Ok(posted?)
            })
        })?;
        Ok(vec![
            row("the CPU prepares and enqueues an exchange", &bursts, |times| times.0),
            row("an exchange, from preparation to arrival", &bursts, |times| times.1),
        ])
    }
}

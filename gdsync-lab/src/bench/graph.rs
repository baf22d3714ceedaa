//! `gdsync bench graph`: launching a graph with fresh sends and waits, against posting the same on the stream; and a
//! graph that needs no updates, as a trigger releases its sends.

use super::device::config;
use super::device::trigger::{Board, kernel, said};
use super::gpu::Gpu;
use super::in_turns;
use super::pair::{self, Pair};
use super::table::{Outcome, Row};
use gdsync::batch::BatchShape;
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::{CudaFunction, PushKernelArg};
use gdsync::device::TriggerData;
use gdsync::graph::CudaGraph;
use gdsync::{
    Access, Batch, CudaStream, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Trigger,
    WorkRequest,
};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use std::time::Instant;

const EXCHANGES: usize = 10_000;
/// Exchanges between two polls of completions.
const BURST: usize = 16;
const BURSTS: u32 = (EXCHANGES / BURST) as u32;

/// The CPU's time for an exchange in µs, from preparation to posting, and the time until its whole burst has arrived.
type Times = (f64, f64);

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let name = gpu.name()?;
    let bench = GraphLaunch::new(gpu, options.hca.as_ref())?;
    let mut rows = bench.measure()?;
    rows.extend(triggered(&bench.gpu, options.hca.as_ref())?);
    let titles = [&*format!("{EXCHANGES} EXCHANGES EACH, VERIFIED, {name}"), "GRAPH µs", "STREAM µs"];
    // Every message arrived as sent.
    let all = Row::default().key("gpu", name).key("exchanges", EXCHANGES).key("verified", true);
    Ok(Outcome::compared(all, titles, "Launching a graph and posting on a stream", &rows))
}

/// Returns a row of one of the times of bursts.
fn row(what: &str, bursts: &[[Times; 2]], pick: fn(&Times) -> f64) -> Row {
    Row::named(what).compared(&bursts.iter().map(|both| both.each_ref().map(pick)).collect::<Vec<_>>())
}

struct GraphLaunch {
    gpu: Gpu,
    pair: Pair,
    /// A number in each of `BURST` places; each exchange writes one place and sends it.
    source: MemoryRegion,
    target: MemoryRegion,
}

impl GraphLaunch {
    fn new(gpu: Gpu, hca: Option<&Hca>) -> Result<Self, Failure> {
        let pair = Pair::new(hca)?;
        let source = MemoryRegion::allocate(&pair.pd, 8 * BURST, Access::empty())?;
        let target = MemoryRegion::allocate(&pair.pd, 8 * BURST, Access::LOCAL_WRITE)?;
        Ok(GraphLaunch { gpu, pair, source, target })
    }

    /// Makes the stream write a number, send it, and wait until it has arrived.
    fn exchange(&self, number: usize) -> Result<Batch, Failure> {
        let at = 8 * (number % BURST);
        self.pair.right.post_recv(&[self.target.slice(at..at + 8)?], 0)?;
        let slices = [self.source.slice(at..at + 8)?];
        let send = self.pair.left.prepare(WorkRequest::send(&slices))?;
        let arrival = self.pair.right.recv_cq().prepare_wait()?;
        Ok(Batch::new().write_value64(&self.source.word64(at)?, number as u64).send(send).wait(arrival))
    }

    /// Exchanges `BURST` numbers from `first` on by `enqueue`.
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
        let bursts = in_turns(0..BURSTS, |variant, _| {
            number += BURST;
            self.burst(number - BURST, &mut |batch| {
                let posted = match variant {
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

#[derive(Clone, Copy, Debug)]
enum Variant {
    /// By a graph, whose kernel writes the message and releases it.
    Graph,
    /// By a post of an existing message.
    Post,
    /// By a kernel, which writes the message, and a post.
    KernelAndPost,
}

/// A send that a graph, launched without updates, releases by a separate ticket, against the same send posted on the
/// stream.
struct Triggered<'a> {
    gpu: &'a Gpu,
    /// Released by the trigger, and by doorbells.
    pairs: [(QueuePair, QueuePair); 2],
    board: Board,
    kernel: CudaFunction,
    /// Counts the messages of [`Variant::KernelAndPost`].
    counter: GpuMemory,
    nothing: GpuMemory,
}

/// Returns rows of 10,000 sends each, verified; none if the card does not wait for words.
fn triggered(gpu: &Gpu, hca: Option<&Hca>) -> Result<Vec<Row>, Failure> {
    let (device, port) = hca::open(hca)?;
    if !device.card_waits()?.data {
        return Ok(Vec::new());
    }
    let pd = ProtectionDomain::new(&device)?;
    let trigger = Trigger::new(&pd)?;
    let bench = Triggered::new(gpu, &pd, port, &trigger)?;
    let tickets = zeroed(gpu)?;
    let mut graph = bench.graph(trigger.for_kernels(&*gpu.stream)?, &tickets)?;
    bench.measure(&mut graph)
}

impl<'a> Triggered<'a> {
    fn new(gpu: &'a Gpu, pd: &ProtectionDomain, port: u8, trigger: &Trigger) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().port(port).send_depth(512);
        let pairs = [pair::connected(pd, config.trigger(trigger))?, pair::connected(pd, config)?];
        let board = Board::new(gpu, pd, BURST)?;
        let (kernel, counter, nothing) = (kernel(gpu, "release_next")?, zeroed(gpu)?, zeroed(gpu)?);
        Ok(Triggered { gpu, pairs, board, kernel, counter, nothing })
    }

    /// Launches a kernel that writes the next message and releases it.
    fn launch(&self, stream: &CudaStream, trigger: TriggerData, counter: &GpuMemory) -> Result<(), Failure> {
        let mut launch = stream.cudarc().ok_or("the stream is not cudarc's")?.launch_builder(&self.kernel);
        let ticket = counter.address();
        launch.arg(&trigger).arg(&ticket).arg(&self.board.messages);
        // SAFETY: these are the kernel's parameters; their memory lives until the stream is synchronized.
        unsafe { launch.launch(config(1, 1)) }?;
        Ok(())
    }

    fn nothing(&self) -> TriggerData {
        TriggerData { word: self.nothing.address() }
    }

    fn graph(&self, trigger: TriggerData, tickets: &GpuMemory) -> Result<CudaGraph, Failure> {
        // The kernel must be loaded before it is recorded.
        self.launch(&self.gpu.stream, self.nothing(), &zeroed(self.gpu)?)?;
        self.gpu.synchronize()?;
        let record = |stream: &CudaStream| self.launch(stream, trigger, tickets);
        let graph = self
            .gpu
            .stream
            .capture(|capture| record(capture.stream()).map_err(|error| error.to_string().into()))?;
        Ok(graph)
    }

    fn left(&self, variant: Variant) -> &QueuePair {
        &self.pairs[usize::from(!matches!(variant, Variant::Graph))].0
    }

    /// Sends `BURST` messages from `first` on.
    fn burst(&self, variant: Variant, first: u64, graph: &mut CudaGraph) -> Result<Times, Failure> {
        let (stream, messages) = (&self.gpu.stream, first..first + BURST as u64);
        if matches!(variant, Variant::Post) {
            for message in messages.clone() {
                self.board.source.word64(self.board.place(message))?.store(said(message));
            }
        }
        let start = Instant::now();
        for message in messages.clone() {
            let send = self.board.prepare(self.left(variant), message)?;
            match variant {
                Variant::Graph => {
                    send.into_ticket()?;
                    stream.launch(graph, [])?;
                }
                Variant::Post => drop(stream.post_send(send)?),
                Variant::KernelAndPost => {
                    self.launch(stream, self.nothing(), &self.counter)?;
                    stream.post_send(send)?;
                }
            }
        }
        let enqueued = start.elapsed();
        pair::collect(&self.left(variant).send_cq(), BURST as u64)?;
        let arrived = start.elapsed();
        self.gpu.synchronize()?;
        self.board.check(messages).map_err(|error| format!("{variant:?}: {error}"))?;
        let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / BURST as f64;
        Ok((each(enqueued), each(arrived)))
    }

    fn measure(&self, graph: &mut CudaGraph) -> Result<Vec<Row>, Failure> {
        let variants = [Variant::Graph, Variant::Post, Variant::KernelAndPost];
        let bursts: Vec<[Times; 3]> = in_turns(0..BURSTS, |variant, burst| {
            // The kernels count from 1.
            self.burst(variants[variant], 1 + u64::from(burst) * BURST as u64, graph)
        })?;
        let beside =
            |variant: usize| -> Vec<_> { bursts.iter().map(|burst| [burst[0], burst[variant]]).collect() };
        let (post, both) = (beside(1), beside(2));
        Ok(vec![
            row("the CPU: a send with its kernel in a graph, against the post alone", &post, |times| times.0),
            row("the CPU: the same, against the kernel and the post", &both, |times| times.0),
            row("the same, from preparation to arrival", &both, |times| times.1),
        ])
    }
}

fn zeroed(gpu: &Gpu) -> Result<GpuMemory, Failure> {
    let memory = GpuMemory::allocate(&gpu.context, 8)?;
    memory.write(0, &[0; 8])?;
    Ok(memory)
}

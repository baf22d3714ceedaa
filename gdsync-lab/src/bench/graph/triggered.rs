//! A send that a graph releases by a ticket of its own, launched without updates, against the same
//! send posted on the stream.

use super::super::device::trigger::{Board, kernel, said};
use super::super::gpu::Gpu;
use super::super::table::Row;
use super::super::{in_turns, pair};
use super::{BURST, BURSTS, Times, row};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use gdsync::device::TriggerData;
use gdsync::graph::CudaGraph;
use gdsync::{CudaStream, ProtectionDomain, QueuePair, QueuePairConfig, Trigger};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use std::time::Instant;

/// One thread, in the kernels of this bench.
const ALONE: LaunchConfig = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// How a send is enqueued.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By a graph, whose kernel writes the message and releases it.
    Graph,
    /// By a post; the message is there already.
    Post,
    /// By a kernel, which writes the message, and a post.
    KernelAndPost,
}

struct Bench<'a> {
    gpu: &'a Gpu,
    /// Released by the trigger, and by doorbells.
    pairs: [(QueuePair, QueuePair); 2],
    board: Board,
    kernel: CudaFunction,
    /// Counts the messages of [`Way::KernelAndPost`].
    counter: GpuMemory,
    /// The word of a trigger that releases nothing.
    nothing: GpuMemory,
}

/// Rows of 10,000 sends each, verified; none where the card does not wait for words.
pub(super) fn measure(gpu: &Gpu, hca: Option<&Hca>) -> Result<Vec<Row>, Failure> {
    let (device, port) = hca::open(hca)?;
    if !device.card_waits()?.data {
        return Ok(Vec::new());
    }
    let pd = ProtectionDomain::new(&device)?;
    let trigger = Trigger::new(&pd)?;
    let bench = Bench::new(gpu, &pd, port, &trigger)?;
    let tickets = zeroed(gpu)?;
    let mut graph = bench.graph(trigger.for_kernels(&*gpu.stream)?, &tickets)?;
    bench.measure(&mut graph)
}

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu, pd: &ProtectionDomain, port: u8, trigger: &Trigger) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().port(port).send_depth(512);
        let pairs = [pair::connected(pd, config.trigger(trigger))?, pair::connected(pd, config)?];
        let board = Board::new(gpu, pd, BURST)?;
        let (kernel, counter, nothing) = (kernel(gpu, "release_next")?, zeroed(gpu)?, zeroed(gpu)?);
        Ok(Bench { gpu, pairs, board, kernel, counter, nothing })
    }

    /// A kernel that writes the next message and releases it.
    fn launch(&self, stream: &CudaStream, trigger: TriggerData, counter: &GpuMemory) -> Result<(), Failure> {
        let mut launch = stream.cudarc().ok_or("the stream is not cudarc's")?.launch_builder(&self.kernel);
        let ticket = counter.address();
        launch.arg(&trigger).arg(&ticket).arg(&self.board.messages);
        // SAFETY: these are the kernel's parameters; what they name lives until the stream is
        // synchronized.
        unsafe { launch.launch(ALONE) }?;
        Ok(())
    }

    /// A trigger that releases nothing.
    fn nothing(&self) -> TriggerData {
        TriggerData { word: self.nothing.address() }
    }

    fn graph(&self, trigger: TriggerData, tickets: &GpuMemory) -> Result<CudaGraph, Failure> {
        // The kernel is loaded before it is recorded.
        self.launch(&self.gpu.stream, self.nothing(), &zeroed(self.gpu)?)?;
        self.gpu.synchronize()?;
        let record = |stream: &CudaStream| self.launch(stream, trigger, tickets);
        let graph = self
            .gpu
            .stream
            .capture(|capture| record(capture.stream()).map_err(|error| error.to_string().into()))?;
        Ok(graph)
    }

    fn left(&self, way: Way) -> &QueuePair {
        &self.pairs[usize::from(!matches!(way, Way::Graph))].0
    }

    /// Sends messages from `first` on, `BURST` of them.
    fn burst(&self, way: Way, first: u64, graph: &mut CudaGraph) -> Result<Times, Failure> {
        let (stream, messages) = (&self.gpu.stream, first..first + BURST as u64);
        if matches!(way, Way::Post) {
            for message in messages.clone() {
                self.board.source.word64(self.board.place(message))?.store(said(message));
            }
        }
        let start = Instant::now();
        for message in messages.clone() {
            let send = self.board.prepare(self.left(way), message)?;
            match way {
                Way::Graph => {
                    send.into_ticket()?;
                    stream.launch(graph, [])?;
                }
                Way::Post => drop(stream.post_send(send)?),
                Way::KernelAndPost => {
                    self.launch(stream, self.nothing(), &self.counter)?;
                    stream.post_send(send)?;
                }
            }
        }
        let enqueued = start.elapsed();
        pair::collect(&self.left(way).send_cq(), BURST as u64)?;
        let arrived = start.elapsed();
        self.gpu.synchronize()?;
        self.board.check(messages).map_err(|error| format!("{way:?}: {error}"))?;
        let each = |time: std::time::Duration| time.as_secs_f64() * 1e6 / BURST as f64;
        Ok((each(enqueued), each(arrived)))
    }

    fn measure(&self, graph: &mut CudaGraph) -> Result<Vec<Row>, Failure> {
        let ways = [Way::Graph, Way::Post, Way::KernelAndPost];
        let bursts: Vec<[Times; 3]> = in_turns(0..BURSTS, |way, burst| {
            // The kernels count from 1 on.
            self.burst(ways[way], 1 + u64::from(burst) * BURST as u64, graph)
        })?;
        let beside = |way: usize| -> Vec<_> { bursts.iter().map(|burst| [burst[0], burst[way]]).collect() };
        let (post, both) = (beside(1), beside(2));
        Ok(vec![
            row("the CPU: a send with its kernel in a graph, against the post alone", &post, |times| times.0),
            row("the CPU: the same, against the kernel and the post", &both, |times| times.0),
            row("the same, from preparation to arrival", &both, |times| times.1),
        ])
    }
}

/// A word of the GPU's memory that is 0.
fn zeroed(gpu: &Gpu) -> Result<GpuMemory, Failure> {
    let memory = GpuMemory::allocate(&gpu.context, 8)?;
    memory.write(0, &[0; 8])?;
    Ok(memory)
}

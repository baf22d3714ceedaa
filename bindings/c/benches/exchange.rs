//! Exchanges of two threads by the C interface, beside the same by the Rust one: `cargo bench -p gdsync-c --bench exchange -- [GPU]`.
//!
//! An exchange is a send, a wait of the stream for its completion, and a wait for the other side's message. Each side has a stream and a
//! queue pair of a software card for each interface; streams are software ones, or those of the GPU with that number. C passes its CUDA
//! streams as they are, and once more after `gdsync_stream_keep`. `gdsync lab bench exchange` compares Rust with the same operations by hand.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod pair;

use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::MemOpStream;
use gdsync::{
    Access, CompletionQueue, ConnectOptions, CudaStream, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairConfig, SoftStream, Stream,
};
use gdsync_c::api::ext;
use gdsync_c::types::{CUstream, GDSYNC_STREAM_NEVER_CAPTURED};
use pair::{InC, InRust, POSTS, Pair, Shape, post_in_rust, prepare_in_rust};
use std::io::Write;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const RUNS: usize = 10;
/// Chunks of [`POSTS`] exchanges in a run.
const CHUNKS: usize = 6;
const SHAPES: [(Shape, &str); 3] = [
    (Shape::Calls, "three calls that prepare"),
    (Shape::Prepared, "three calls, prepared"),
    (Shape::Batch, "one call, prepared"),
];

/// One side's exchanges by one interface.
trait Side: Send {
    /// Posts receives, and prepares what the shape prepares.
    fn prepare(&mut self, shape: Shape);
    fn post(&mut self, shape: Shape);
    fn synchronize(&self);
    /// Takes all completions.
    fn collect(&self);
}

struct InterfaceC {
    pair: Pair,
    stream: usize,
    /// Keeps a CUDA stream.
    _stream: Option<Arc<gdsync::cudarc::driver::CudaStream>>,
    prepared: InC,
}

// SAFETY: requests of the C interface may be posted by any thread.
unsafe impl Send for InterfaceC {}

impl InterfaceC {
    fn new(gpu: Option<u32>, context: Option<&Arc<CudaContext>>, keep: bool) -> Self {
        let cuda = context.map(|context| context.new_stream().unwrap());
        let stream: CUstream = match &cuda {
            Some(stream) => stream.cu_stream().cast(),
            None => ext::gdsync_soft_stream_create(),
        };
        if keep {
            // SAFETY: the stream lives to the end, and nothing captures it.
            assert_eq!(unsafe { ext::gdsync_stream_keep(stream, GDSYNC_STREAM_NEVER_CAPTURED) }, 0);
        }
        InterfaceC { pair: Pair::new(gpu), stream: stream as usize, _stream: cuda, prepared: Vec::new() }
    }

    fn stream(&self) -> CUstream {
        self.stream as CUstream
    }
}

impl Side for InterfaceC {
    fn prepare(&mut self, shape: Shape) {
        self.pair.receive();
        self.prepared = self.pair.prepare_in_c(shape);
    }

    fn post(&mut self, shape: Shape) {
        let stream = self.stream();
        self.pair.post_in_c(stream, shape, &mut self.prepared);
    }

    fn synchronize(&self) {
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { ext::gdsync_stream_synchronize(self.stream(), 60_000) }, 0);
    }

    fn collect(&self) {
        self.pair.queues().into_iter().for_each(|queue| self.pair.poll(queue));
    }
}

struct InterfaceRust<B: MemOpStream> {
    queue_pair: QueuePair,
    region: MemoryRegion,
    stream: Stream<B>,
    prepared: InRust,
}

impl<B: MemOpStream> InterfaceRust<B> {
    fn new(pd: &ProtectionDomain, backend: B) -> Self {
        let config = QueuePairConfig::default().send_depth(2 * POSTS).recv_depth(2 * POSTS);
        InterfaceRust {
            queue_pair: QueuePair::new(pd, config).unwrap(),
            region: MemoryRegion::allocate(pd, 4096, Access::LOCAL_WRITE).unwrap(),
            stream: Stream::new(backend).unwrap(),
            prepared: Vec::new(),
        }
    }
}

fn take(queue: &CompletionQueue) {
    let mut left = POSTS;
    while left > 0 {
        match queue.poll().unwrap() {
            Some(completion) => {
                completion.status.unwrap();
                left -= 1;
            }
            None => std::thread::yield_now(),
        }
    }
}

impl<B: MemOpStream> Side for InterfaceRust<B> {
    fn prepare(&mut self, shape: Shape) {
        for _ in 0..POSTS {
            self.queue_pair.post_recv(&[self.region.slice(8..16).unwrap()], 0).unwrap();
        }
        self.prepared = prepare_in_rust(&self.queue_pair, &[self.region.slice(..8).unwrap()], shape);
    }

    fn post(&mut self, shape: Shape) {
        let (slices, prepared) = ([self.region.slice(..8).unwrap()], std::mem::take(&mut self.prepared));
        post_in_rust(&self.stream, &self.queue_pair, &slices, shape, prepared);
    }

    fn synchronize(&self) {
        assert!(self.stream.synchronize_timeout(Duration::from_secs(60)).unwrap());
    }

    fn collect(&self) {
        take(&self.queue_pair.send_cq());
        take(&self.queue_pair.recv_cq());
    }
}

/// Both sides of an interface.
type Sides = [Box<dyn Side>; 2];

fn rust<B: MemOpStream + 'static>(pd: &ProtectionDomain, backend: impl Fn() -> B) -> Sides {
    let [left, right] = [(); 2].map(|()| InterfaceRust::new(pd, backend()));
    left.queue_pair.connect(&right.queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.queue_pair.connect(&left.queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    [Box::new(left), Box::new(right)]
}

fn c(gpu: Option<u32>, context: Option<&Arc<CudaContext>>, keep: bool) -> Sides {
    let [left, right] = [(); 2].map(|()| InterfaceC::new(gpu, context, keep));
    left.pair.connect(&right.pair);
    right.pair.connect(&left.pair);
    [Box::new(left), Box::new(right)]
}

/// Returns, by shape, the runs' µs of an exchange by each interface.
fn play(
    mut ways: Vec<Box<dyn Side>>,
    context: Option<&CudaContext>,
    barrier: &Barrier,
) -> [Vec<Vec<f64>>; SHAPES.len()] {
    if let Some(context) = context {
        context.bind_to_thread().unwrap();
    }
    let mut chunk = |way: usize, shape| {
        let way = &mut ways[way];
        way.prepare(shape);
        barrier.wait();
        let start = Instant::now();
        way.post(shape);
        way.synchronize();
        let took = start.elapsed();
        way.collect();
        barrier.wait();
        took.as_secs_f64() * 1e6 / f64::from(POSTS)
    };
    let count = if context.is_some() { 3 } else { 2 };
    SHAPES.map(|(shape, _)| {
        (0..count).for_each(|way| _ = chunk(way, shape));
        let run = |run: usize| {
            let mut times = vec![0.0; count];
            for turn in 0..count {
                let way = (turn + run) % count;
                times[way] = (0..CHUNKS).map(|_| chunk(way, shape)).sum::<f64>() / CHUNKS as f64;
            }
            times
        };
        (0..RUNS).map(run).collect()
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let gpu: Option<u32> = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let context = gpu.map(|gpu| gdsync::cuda::context(gpu).unwrap());
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let mut ways = vec![match &context {
        Some(context) => rust(&pd, || CudaStream::new(context.new_stream().unwrap()).unwrap()),
        None => rust(&pd, || SoftStream::new().unwrap()),
    }];
    ways.push(c(gpu, context.as_ref(), false));
    if context.is_some() {
        ways.push(c(gpu, context.as_ref(), true));
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for [one, other] in ways {
        left.push(one);
        right.push(other);
    }
    let barrier = Barrier::new(2);
    let figures = std::thread::scope(|scope| {
        scope.spawn(|| play(right, context.as_deref(), &barrier));
        play(left, context.as_deref(), &barrier)
    });
    let mut out = std::io::stdout();
    writeln!(out, "an exchange, medians of {RUNS} runs: Rust µs, and C: µs, ratio of the same run").unwrap();
    for ((_, name), runs) in SHAPES.iter().zip(&figures) {
        write!(out, "{name:<26} {:>7.2}", median(runs.iter().map(|run| run[0]))).unwrap();
        for way in 1..runs[0].len() {
            let [us, ratio] = [0, 1].map(|what| {
                median(runs.iter().map(|run| if what == 0 { run[way] } else { run[way] / run[0] }))
            });
            write!(out, "   {}: {us:>7.2} {ratio:>5.2}", ["C", "C, kept"][way - 1]).unwrap();
        }
        writeln!(out).unwrap();
    }
}

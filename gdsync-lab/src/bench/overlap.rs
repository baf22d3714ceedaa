//! `gdsync bench overlap`: a stream that computes and a stream that communicates together take as long as the longer
//! one, while the CPU idles.

use super::device::config;
use super::gpu::Gpu;
use super::pair::Pair;
use super::table::{Outcome, Row};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::{CudaFunction, CudaStream, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, Batch, WorkRequest};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::Hca;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Exchanges of 8 bytes, from GPU memory to GPU memory.
const EXCHANGES: usize = 10_000;
/// Exchanges of a batch, and batches enqueued at a time.
const BATCH: usize = 50;
const AHEAD: usize = 4;
/// Kernels of the computing stream, and the time of each.
const KERNELS: usize = 200;
const KERNEL_NS: u64 = 2_000_000;

/// Computes for a number of nanoseconds: `spin(ns)`.
const SPIN: &str = r"
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 ns) {
    .reg .pred %p<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
";

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let bench = Overlap::new(Gpu::new(options.gpu())?, options.hca.as_ref())?;
    let name = bench.gpu.name()?;
    let rows = [
        bench.measure("computing", true, false)?,
        bench.measure("communicating", false, true)?,
        bench.measure("both at once", true, true)?,
    ];
    let heading = format!("{EXCHANGES} EXCHANGES, {KERNELS} KERNELS, {name}");
    let header = [&*heading, "WALL ms", "PROGRAM'S CPU ms", "CARD'S CPU ms"];
    let series = [
        ("wall", "wall_ms"),
        ("the program's CPU time", "program_cpu_ms"),
        ("the card's CPU time", "card_cpu_ms"),
    ];
    let all = Row::default().key("gpu", name).key("exchanges", EXCHANGES).key("kernels", KERNELS);
    let picture = "A stream that computes and one that communicates";
    Ok(Outcome::of(all, &header, &rows).bars(picture, "Time, ms", &rows, &series))
}

struct Overlap {
    gpu: Gpu,
    pair: Pair,
    computing: Arc<CudaStream>,
    spin: CudaFunction,
    source: GpuMemoryRegion,
    target: GpuMemoryRegion,
}

impl Overlap {
    fn new(gpu: Gpu, hca: Option<&Hca>) -> Result<Self, Failure> {
        let computing = gpu.context.new_stream()?;
        let spin = gpu.context.load_module(Ptx::from_src(SPIN))?.load_function("spin")?;
        let pair = Pair::new(hca)?;
        let region = |access| -> Result<_, Failure> {
            Ok(GpuMemoryRegion::register(&pair.pd, GpuMemory::allocate(&gpu.context, 8)?, access)?)
        };
        let (source, target) = (region(Access::empty())?, region(Access::LOCAL_WRITE)?);
        let bench = Overlap { gpu, pair, computing, spin, source, target };
        bench.compute(1)?;
        bench.computing.synchronize()?;
        Ok(bench)
    }

    fn compute(&self, ns: u64) -> Result<(), Failure> {
        let mut launch = self.computing.launch_builder(&self.spin);
        launch.arg(&ns);
        // SAFETY: the kernel takes a number of nanoseconds, and touches no memory.
        unsafe { launch.launch(config(1, 32)) }?;
        Ok(())
    }

    fn batch(&self) -> Result<Batch, Failure> {
        let mut batch = Batch::new();
        for _ in 0..BATCH {
            self.pair.right.post_recv(&[self.target.slice(..)?], 0)?;
            let slices = [self.source.slice(..)?];
            let send = self.pair.left.prepare(WorkRequest::send(&slices))?;
            batch = batch.send(send).wait(self.pair.right.recv_cq().prepare_wait()?);
        }
        Ok(batch)
    }

    /// Takes the completions of batches that the stream has passed. Returns their number.
    fn collect(&self) -> Result<usize, Failure> {
        let mut received = 0;
        for (queue, counted) in [(self.pair.left.send_cq(), 0), (self.pair.right.recv_cq(), 1)] {
            while let Some(completion) = queue.poll()? {
                completion.status?;
                received += counted;
            }
        }
        Ok(received)
    }

    fn communicate(&self) -> Result<(), Failure> {
        let (mut posted, mut received) = (0, 0);
        while received < EXCHANGES {
            while posted < EXCHANGES && posted - received <= (AHEAD - 1) * BATCH {
                self.gpu.stream.post(self.batch()?).map_err(|error| error.to_string())?;
                posted += BATCH;
            }
            // Nothing needs the CPU until the stream runs dry.
            std::thread::sleep(Duration::from_millis(1));
            received += self.collect()?;
        }
        Ok(())
    }

    /// Measures a program's and its card's CPU time. A real card would not need the threads of the software card.
    fn measure(&self, what: &str, compute: bool, communicate: bool) -> Result<Row, Failure> {
        let before = cpu_times()?;
        let start = Instant::now();
        if compute {
            (0..KERNELS).try_for_each(|_| self.compute(KERNEL_NS))?;
        }
        if communicate {
            self.communicate()?;
        }
        while !self.is_idle()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (wall, after) = (start.elapsed(), cpu_times()?);
        let [program, card] = [0, 1].map(|whose| after[whose].saturating_sub(before[whose]) as f64 / 1e6);
        let row = Row::named(what).number("wall_ms", wall.as_secs_f64() * 1e3, 1);
        Ok(row.number("program_cpu_ms", program, 1).number("card_cpu_ms", card, 1))
    }

    fn is_idle(&self) -> Result<bool, Failure> {
        let done = self.computing.record_event(None)?;
        Ok(done.is_complete() && self.gpu.stream.synchronize_timeout(Duration::ZERO)?)
    }
}

/// Returns the CPU time in ns of this process's threads: of the program's, and of the software card's.
fn cpu_times() -> Result<[u64; 2], Failure> {
    let mut times = [0; 2];
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        // A thread may end meanwhile.
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let is_card = read("comm").starts_with("gdsync-softhca");
        let ns = read("schedstat").split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        times[usize::from(is_card)] += ns;
    }
    Ok(times)
}

//! `gdsync bench device`: the cost and rate of posts by kernels, with queues and their indices in host memory and in
//! the GPU's.

pub(crate) mod once;
pub(super) mod trigger;

use super::gpu::Gpu;
use super::table::{Outcome, Row, Table};
use super::{median, pair};
use gdsync::cuda::{self, GpuMemory, Placement, QueuePlacement};
use gdsync::cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions, STATE_BYTES, nvrtc};
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::{hca, interrupt};
use std::sync::atomic::Ordering;
use std::time::Duration;

const ROUNDS: u32 = 200;
/// The steps of a put. They are measured as often as the results have room for.
const STEPS: [&str; 6] = [
    "of it: reservation",
    "of it: request",
    "of it: publication",
    "of it: record, and its order",
    "of it: doorbell",
    "of it: the next one may ring",
];
const STEP_ROUNDS: u32 = 80;
const QUEUES: usize = 30;
/// Most posts of a thread in one kernel.
const MOST_OF_KERNEL: u64 = 100_000;
/// Time limit for everything posted to complete.
const LONG: Duration = Duration::from_secs(20);
/// Words of the results that kernels use themselves: failures, and the error.
const FIRST_RESULT: usize = 2;

/// Sections of quantities: the key of their rows, and their unit.
const SECTIONS: [(&str, &str); 6] = [
    // GPU clock cycles of a call; then the steps of the first kind of call.
    ("posting_cycles", "cycles"),
    // 32 puts by a warp, against 32 by a thread that rings for each, and against a thread that rings once.
    ("warp_speedup", "times"),
    // Cycles of releasing a send by a trigger, and by a fence and a store by hand, each measured with the puts of its
    // column; none if the card does not wait for words.
    ("triggers_cycles", "cycles"),
    // The trigger's cycles divided by those of a put and of a store by hand.
    ("trigger_ratios", "times"),
    // From the post of 8 bytes until the kernel knows that they have arrived.
    ("latency_us", "µs"),
    ("rate_mputs_per_s", "million a second"),
];

/// The results of one layout: for each of [`SECTIONS`] always the same quantities.
type Measured = [Vec<(&'static str, f64)>; SECTIONS.len()];

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let kernels = Kernels::load(&gpu)?;
    let (mut measured, mut layouts, mut left_out) = (Vec::new(), Vec::new(), None);
    let mut doorbells = None;
    for layout in Layout::all(options.gpu()) {
        let bench = match DevicePosts::new(options, &gpu, &kernels, layout) {
            Err(error) if layout.queues_in_gpu() => {
                left_out = Some(error.to_string());
                continue;
            }
            bench => bench?,
        };
        let (by, of_layout) = bench.measure(options)?;
        measured.push(of_layout);
        layouts.push(layout.name);
        doorbells.get_or_insert(by);
    }
    let (name, doorbells) = (gpu.name()?, doorbells.unwrap_or_default());
    let title = format!("{name}, DOORBELLS {doorbells}");
    let header = [&[&*title], &layouts[..]].concat();
    let mut all = Row::default()
        .key("gpu", name)
        .key("doorbells", doorbells)
        .key("layouts", layouts.clone())
        .key("left_out", left_out.clone());
    let mut lines = Vec::new();
    for (section, (key, unit)) in SECTIONS.into_iter().enumerate() {
        let mut rows = Vec::new();
        for (at, (what, _)) in measured.first().map_or(&[][..], |one| &one[section]).iter().enumerate() {
            let values: Vec<f64> = measured.iter().filter_map(|one| Some(one[section].get(at)?.1)).collect();
            let line = Row::default().text(format!("{what}, {unit}"));
            lines.push(values.iter().fold(line, |line, value| line.text(format!("{value:.2}"))));
            rows.push(Row::default().key("what", *what).key("values", values));
        }
        all = all.key(key, rows);
    }
    let outcome = Outcome::new(all, [Table::new(&header, &lines)]);
    Ok(match left_out {
        Some(why) => outcome.note(format!("no queues in the GPU's memory: {why}")),
        None => outcome,
    })
}

/// The placement of queues, and of the indices that threads share.
#[derive(Clone, Copy, Debug)]
struct Layout {
    name: &'static str,
    queues: QueuePlacement,
    indices_in_gpu: bool,
}

impl Layout {
    /// Returns all layouts: everything in host memory; then, with the indices in GPU memory, each placement of the send
    /// queue and its completion queue.
    fn all(gpu: u32) -> [Layout; 5] {
        let place = |in_gpu| if in_gpu { Placement::Gpu(gpu) } else { Placement::Host };
        [
            ("ALL HOST", false, false, false),
            ("INDICES GPU", true, false, false),
            ("+ QP GPU", true, true, false),
            ("+ CQ GPU", true, false, true),
            ("+ QP, CQ GPU", true, true, true),
        ]
        .map(|(name, indices_in_gpu, queue_pair, completions)| {
            // A send queue's record is written together with its ring.
            let queues = QueuePlacement {
                work: place(queue_pair),
                completions: place(completions),
                records: place(queue_pair),
            };
            Layout { name, queues, indices_in_gpu }
        })
    }

    fn queues_in_gpu(&self) -> bool {
        self.queues != QueuePlacement::HOST
    }
}

struct DevicePosts<'a> {
    gpu: &'a Gpu,
    kernels: &'a Kernels,
    layout: Layout,
    pd: ProtectionDomain,
    pairs: Vec<(QueuePair, QueuePair)>,
    results: PinnedMemory,
    results_at: u64,
}

impl<'a> DevicePosts<'a> {
    fn new(
        options: &BenchOptions,
        gpu: &'a Gpu,
        kernels: &'a Kernels,
        layout: Layout,
    ) -> Result<Self, Failure> {
        let (device, port) = hca::open(options.hca.as_ref())?;
        let pd = ProtectionDomain::new(&device)?;
        let config = QueuePairConfig::default().port(port).send_depth(512).access(Access::all());
        let config = config.placement(layout.queues);
        let pairs = (0..QUEUES).map(|_| pair::connected(&pd, config)).collect::<Result<_, _>>()?;
        let results = PinnedMemory::allocate(4096)?;
        let results_at = cuda::pin(&gpu.context, &results)?;
        Ok(DevicePosts { gpu, kernels, layout, pd, pairs, results, results_at })
    }

    fn attach(&self, (left, _): &(QueuePair, QueuePair)) -> Result<DeviceQp, Failure> {
        let mut options = DeviceQpOptions::default();
        if self.layout.indices_in_gpu {
            options = options.state(&GpuMemory::allocate(&self.gpu.context, STATE_BYTES)?);
        }
        Ok(left.attach_device(&*self.gpu.stream, &options)?)
    }

    /// Returns a kernel's memory, and the regions that keep it alive.
    fn places(&self) -> Result<(Places, [MemoryRegion; 2]), Failure> {
        let region = || MemoryRegion::allocate(&self.pd, 1 << 16, Access::all());
        let (local, remote) = (region()?, region()?);
        let address = |region: &MemoryRegion| region.memory().addr().get();
        let places = Places {
            local: address(&local),
            remote: address(&remote),
            results: self.results_at,
            lkey: local.lkey(),
            rkey: remote.rkey(),
        };
        Ok((places, [local, remote]))
    }

    fn result(&self, at: usize) -> u64 {
        self.results.words64()[at].load(Ordering::Acquire)
    }

    /// Waits for a kernel and reads its report. Fails if one of its calls failed.
    fn finish(&self) -> Result<(), Failure> {
        self.gpu.synchronize()?;
        match self.result(0) {
            0 => Ok(()),
            failed => {
                let (status, error) = (self.result(1) >> 56, self.result(1) & !(0xff << 56));
                Err(format!("{failed} calls failed in a kernel, status {status}, error {error:#x}").into())
            }
        }
    }

    /// Returns how doorbells reach the card, and all quantities.
    fn measure(&self, options: &BenchOptions) -> Result<(String, Measured), Failure> {
        let device_qp = self.attach(&self.pairs[0])?;
        let (places, _keep) = self.places()?;
        let mut posting = Vec::new();
        for (which, threads, what) in [
            (0, 1, "one put"),
            (1, 1, "one thread, 32 puts, 32 doorbells"),
            (2, 1, "one thread, 32 puts, one doorbell"),
            (3, 32, "a warp, 32 puts"),
            (4, 128, "a block, 128 puts"),
        ] {
            // SAFETY: the queue pair is handed over, and its memory lives, until the kernel has ended, which `finish`
            // waits for.
            unsafe { self.kernels.cycles(self.gpu, device_qp.data(), which, threads, ROUNDS, places)? };
            self.finish()?;
            let cycles = (0..ROUNDS as usize).map(|round| self.result(FIRST_RESULT + round) as f64);
            posting.push((what, median(cycles)));
        }
        // SAFETY: as above.
        unsafe { self.kernels.steps(self.gpu, device_qp.data(), STEP_ROUNDS, places)? };
        self.finish()?;
        for (step, what) in STEPS.into_iter().enumerate() {
            let at = |round: usize| FIRST_RESULT + STEPS.len() * round + step;
            let cycles = (0..STEP_ROUNDS as usize).map(|round| self.result(at(round)) as f64);
            posting.push((what, median(cycles)));
        }
        let triggers = trigger::measure(options, self.gpu)?;
        let doorbells = device_qp.doorbells().to_string();
        device_qp.detach_device(LONG)?;
        // Queues of each block, threads of a block that share one, and blocks.
        let shapes = [
            ("1 thread, 1 queue pair", [1, 1, 1]),
            ("32 threads, 1 queue pair", [1, 32, 1]),
            ("30 threads of a block, 30 queue pairs", [30, 1, 1]),
            ("30 blocks of a thread, a queue pair each", [1, 1, 30]),
        ];
        let (mut latency, mut rate) = (Vec::new(), Vec::new());
        for (what, shape) in shapes {
            let threads = u64::from(shape.iter().product::<u32>());
            let each = (options.posts() / 100 / threads).max(10);
            let (time, each) = self.drive_all(shape, each, true)?;
            latency.push((what, time / 1e3 / each as f64));
            let each = (options.posts() / threads).max(10);
            let (time, each) = self.drive_all(shape, each, false)?;
            rate.push((what, (each * threads) as f64 * 1e3 / time));
        }
        let [_, by_doorbells, by_one, by_warp, ..] = posting[..] else {
            return Err("a put was not measured".into());
        };
        let warp_speedup = vec![
            ("a warp is faster than 32 puts with 32 doorbells", by_doorbells.1 / by_warp.1),
            ("a warp is faster than 32 puts with one doorbell", by_one.1 / by_warp.1),
        ];
        let put = posting[0].1;
        let trigger_ratios = match triggers[..] {
            [by_hand, host, by_hand_in_gpu, in_gpu] => vec![
                ("a trigger in host memory, of one put", host.1 / put),
                ("a trigger in GPU memory, of one put", in_gpu.1 / put),
                ("a trigger in host memory, of a store by hand", host.1 / by_hand.1),
                ("a trigger in GPU memory, of a store by hand", in_gpu.1 / by_hand_in_gpu.1),
            ],
            _ => Vec::new(),
        };
        Ok((doorbells, [posting, warp_speedup, triggers, trigger_ratios, latency, rate]))
    }

    /// Drives queue pairs by as many kernels as it takes until an interrupt, as a kernel cannot be interrupted. Returns the
    /// nanoseconds of all of them together, and the posts of each thread.
    fn drive_all(&self, shape: Shape, each: u64, wait_each: bool) -> Result<(f64, u64), Failure> {
        let (mut time, mut done) = (0.0, 0);
        for first in interrupt::rounds((0..each).step_by(MOST_OF_KERNEL as usize)) {
            let count = (each - first).min(MOST_OF_KERNEL);
            time += self.drive(shape, count, wait_each)?;
            done += count;
        }
        Ok((time, done))
    }

    /// Returns the nanoseconds from the first thread's begin to the last one's end.
    fn drive(&self, shape: Shape, each: u64, wait_each: bool) -> Result<f64, Failure> {
        let [of_block, _, blocks] = shape;
        let count = (of_block * blocks) as usize;
        let device_qps: Vec<DeviceQp> =
            self.pairs[..count].iter().map(|pair| self.attach(pair)).collect::<Result<_, _>>()?;
        let (places, _keep) = self.places()?;
        let data: Vec<DeviceQpData> = device_qps.iter().map(DeviceQp::data).collect();
        let list = list(&data)?;
        let words = self.results.words64();
        words[FIRST_RESULT].store(u64::MAX, Ordering::Relaxed);
        words[FIRST_RESULT + 1].store(0, Ordering::Relaxed);
        let address = cuda::pin(&self.gpu.context, &list)?;
        // SAFETY: as in `measure`; the list lives as long.
        unsafe { self.kernels.rate(self.gpu, address, shape, each, wait_each, places)? };
        self.finish()?;
        for device_qp in device_qps {
            device_qp.detach_device(LONG)?;
        }
        Ok((self.result(FIRST_RESULT + 1) - self.result(FIRST_RESULT)) as f64)
    }
}

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/bench.cu"));

/// The targets of a kernel's requests: `struct places` of `kernels/bench.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Places {
    local: u64,
    remote: u64,
    results: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: plain integers, laid out as in the kernels.
unsafe impl DeviceRepr for Places {}

/// How threads share queue pairs: queue pairs of a block, threads of each, and blocks.
type Shape = [u32; 3];

struct Kernels {
    cycles: CudaFunction,
    steps: CudaFunction,
    rate: CudaFunction,
}

impl Kernels {
    fn load(gpu: &Gpu) -> Result<Self, Failure> {
        // SAFETY: kernels get raw addresses here, so cudarc has nothing to track.
        unsafe { gpu.context.disable_event_tracking() };
        let module = nvrtc::load(&gpu.context, "bench.cu", SOURCE)?;
        let function = |name| module.load_function(name);
        Ok(Kernels { cycles: function("cycles")?, steps: function("steps")?, rate: function("rate")? })
    }

    /// Measures one method of posting.
    ///
    /// # Safety
    /// Until the kernel has ended, the queue pair is handed over to the GPU, and the places are memory of the GPU and
    /// the card.
    unsafe fn cycles(
        &self,
        gpu: &Gpu,
        qp: DeviceQpData,
        which: u32,
        threads: u32,
        rounds: u32,
        places: Places,
    ) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let mut launch = stream.launch_builder(&self.cycles);
        launch.arg(&qp).arg(&which).arg(&rounds).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's promise.
        unsafe { launch.launch(config(1, threads)) }?;
        Ok(())
    }

    /// Measures the steps of a put.
    ///
    /// # Safety
    /// As for [`Self::cycles`].
    unsafe fn steps(&self, gpu: &Gpu, qp: DeviceQpData, rounds: u32, places: Places) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let mut launch = stream.launch_builder(&self.steps);
        launch.arg(&qp).arg(&rounds).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's promise.
        unsafe { launch.launch(config(1, 1)) }?;
        Ok(())
    }

    /// Measures the post rate of many threads. `qps`: the address of their descriptions.
    ///
    /// # Safety
    /// As for [`Self::cycles`], for all of them.
    unsafe fn rate(
        &self,
        gpu: &Gpu,
        qps: u64,
        shape: Shape,
        count: u64,
        wait_each: bool,
        places: Places,
    ) -> Result<(), Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let ([of_block, sharers, blocks], wait_each) = (shape, u32::from(wait_each));
        let mut launch = stream.launch_builder(&self.rate);
        launch.arg(&qps).arg(&sharers).arg(&of_block).arg(&count).arg(&wait_each).arg(&places);
        // SAFETY: these are the kernel's parameters; the rest is the caller's promise.
        unsafe { launch.launch(config(blocks, of_block * sharers)) }?;
        Ok(())
    }
}

pub(super) fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Returns an array of queue pair descriptions that kernels can read.
fn list(qps: &[DeviceQpData]) -> Result<PinnedMemory, Failure> {
    let memory = PinnedMemory::allocate(size_of_val(qps))?;
    // SAFETY: structures of integers without padding.
    let bytes = unsafe { std::slice::from_raw_parts(qps.as_ptr().cast::<u8>(), size_of_val(qps)) };
    memory.write(0, bytes);
    Ok(memory)
}

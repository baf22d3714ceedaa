//! What posting costs a kernel, and how fast kernels post: with queues and their indices in host
//! memory and in the GPU's.

mod kernels;
mod layout;
pub(super) mod trigger;

use super::gpu::Gpu;
use super::outcome::{Outcome, Table};
use super::{median, pair};
use gdsync::cuda::{self, GpuMemory};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions, STATE_BYTES};
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use kernels::{Kernels, Places};
use layout::Layout;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Measurements of each kind.
const ROUNDS: u32 = 200;
/// The steps of a put, and how often they are measured: as often as the results have room for.
const STEPS: [&str; 6] = [
    "of it: reservation",
    "of it: request",
    "of it: publication",
    "of it: record, and its order",
    "of it: doorbell",
    "of it: the next one may ring",
];
const STEP_ROUNDS: u32 = 80;
/// Queue pairs at a time.
const QUEUES: usize = 30;
/// Until everything that was posted has completed.
const LONG: Duration = Duration::from_secs(20);
/// Words of the results that kernels use for themselves: failures, and the error.
const FIRST_RESULT: usize = 2;

#[derive(Debug, Serialize)]
struct Results {
    gpu: String,
    doorbells: String,
    /// Where queues and indices lie: what each column of the rows is about.
    layouts: Vec<&'static str>,
    /// Why there are no columns of queues in GPU memory.
    left_out: Option<String>,
    /// Cycles of the GPU's clock that a call takes; then the steps of the first kind of call.
    #[serde(rename = "posting_cycles")]
    posting: Vec<Row>,
    /// 32 puts by a warp, against 32 by a thread that rings for each, and against a thread that
    /// rings once: how many times faster.
    warp_speedup: Vec<Row>,
    /// Cycles of releasing a send by a trigger, and of a fence and a store by hand, each measured
    /// beside the puts of its column; none where the card does not wait for words.
    #[serde(rename = "triggers_cycles")]
    triggers: Vec<Row>,
    /// What a trigger takes of what a put and a store by hand take.
    trigger_ratios: Vec<Row>,
    /// Microseconds from the post of 8 bytes until the kernel knows that they have arrived.
    #[serde(rename = "latency_us")]
    latency: Vec<Row>,
    /// Millions of 8-byte puts a second.
    #[serde(rename = "rate_mputs_per_s")]
    rate: Vec<Row>,
}

/// One quantity, in every layout.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    values: Vec<f64>,
}

/// Rows of what was measured in one layout after the other, always the same quantities.
fn rows(columns: &[&[(&'static str, f64)]]) -> Vec<Row> {
    let quantities = columns.first().copied().unwrap_or_default().iter().enumerate();
    let values = |at: usize| columns.iter().filter_map(|column| Some(column.get(at)?.1)).collect();
    quantities.map(|(at, (what, _))| Row { what, values: values(at) }).collect()
}

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let gpu = Gpu::new(options.gpu())?;
    let kernels = Kernels::load(&gpu)?;
    let (mut measured, mut layouts, mut left_out) = (Vec::new(), Vec::new(), None);
    for layout in Layout::all(options.gpu()) {
        let bench = match Bench::new(options, &gpu, &kernels, layout) {
            Err(error) if layout.queues_in_gpu() => {
                left_out = Some(error.to_string());
                continue;
            }
            bench => bench?,
        };
        measured.push(bench.measure(options)?);
        layouts.push(layout.name);
    }
    let columns =
        |pick: fn(&Measured) -> &[(&'static str, f64)]| measured.iter().map(pick).collect::<Vec<_>>();
    let posting = rows(&columns(|one| &one.posting));
    let of = |what, one: &Row, other: &Row| {
        let pairs = one.values.iter().zip(&other.values);
        Row { what, values: pairs.map(|(one, other)| one / other).collect() }
    };
    let triggers = rows(&columns(|one| &one.triggers));
    let trigger_ratios = match &triggers[..] {
        [by_hand, host, by_hand_in_gpu, in_gpu] => vec![
            of("a trigger in host memory, of one put", host, &posting[0]),
            of("a trigger in GPU memory, of one put", in_gpu, &posting[0]),
            of("a trigger in host memory, of a store by hand", host, by_hand),
            of("a trigger in GPU memory, of a store by hand", in_gpu, by_hand_in_gpu),
        ],
        _ => Vec::new(),
    };
    let results = Results {
        gpu: gpu.name()?,
        doorbells: measured.first().map(|one| one.doorbells.clone()).unwrap_or_default(),
        layouts,
        left_out,
        warp_speedup: vec![
            of("a warp is faster than 32 puts with 32 doorbells", &posting[1], &posting[3]),
            of("a warp is faster than 32 puts with one doorbell", &posting[2], &posting[3]),
        ],
        posting,
        triggers,
        trigger_ratios,
        latency: rows(&columns(|one| &one.latency)),
        rate: rows(&columns(|one| &one.rate)),
    };
    results.outcome()
}

impl Results {
    fn outcome(&self) -> Result<Outcome, Failure> {
        let title = format!("{}, DOORBELLS {}", self.gpu, self.doorbells);
        let header: Vec<&str> = [&*title].into_iter().chain(self.layouts.iter().copied()).collect();
        let sections = [
            (&self.posting, "cycles"),
            (&self.warp_speedup, "times"),
            (&self.triggers, "cycles"),
            (&self.trigger_ratios, "times"),
            (&self.latency, "µs"),
            (&self.rate, "million a second"),
        ];
        let lines: Vec<Vec<String>> = sections
            .into_iter()
            .flat_map(|(rows, unit)| rows.iter().map(move |row| (row, unit)))
            .map(|(row, unit)| {
                let cells = row.values.iter().map(|value| format!("{value:.2}"));
                [format!("{}, {unit}", row.what)].into_iter().chain(cells).collect()
            })
            .collect();
        let outcome = Outcome::new(self, [Table::new(&header, lines)])?;
        Ok(match &self.left_out {
            Some(why) => outcome.note(format!("no queues in the GPU's memory: {why}")),
            None => outcome,
        })
    }
}

/// What was measured in one layout.
struct Measured {
    doorbells: String,
    posting: Vec<(&'static str, f64)>,
    triggers: Vec<(&'static str, f64)>,
    latency: Vec<(&'static str, f64)>,
    rate: Vec<(&'static str, f64)>,
}

struct Bench<'a> {
    gpu: &'a Gpu,
    kernels: &'a Kernels,
    layout: Layout,
    pd: ProtectionDomain,
    /// Each connected with the other.
    pairs: Vec<(QueuePair, QueuePair)>,
    results: PinnedMemory,
    results_at: u64,
}

impl<'a> Bench<'a> {
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
        Ok(Bench { gpu, kernels, layout, pd, pairs, results, results_at })
    }

    fn attach(&self, (left, _): &(QueuePair, QueuePair)) -> Result<DeviceQp, Failure> {
        let mut options = DeviceQpOptions::default();
        if self.layout.indices_in_gpu {
            options = options.state(&GpuMemory::allocate(&self.gpu.context, STATE_BYTES)?);
        }
        Ok(left.attach_device(&*self.gpu.stream, &options)?)
    }

    /// Memory for a kernel, and what keeps it.
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

    /// A kernel's report, once it has ended; an error where one of its calls failed.
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

    fn measure(&self, options: &BenchOptions) -> Result<Measured, Failure> {
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
            // SAFETY: the queue pair is handed over, and its memory lives, until the kernel has
            // ended, which `finish` waits for.
            unsafe { self.kernels.cycles(self.gpu, device_qp.data(), which, threads, ROUNDS, places)? };
            self.finish()?;
            let cycles = (0..ROUNDS as usize).map(|round| self.result(FIRST_RESULT + round) as f64);
            posting.push((what, median(cycles.collect())));
        }
        // SAFETY: as above.
        unsafe { self.kernels.steps(self.gpu, device_qp.data(), STEP_ROUNDS, places)? };
        self.finish()?;
        for (step, what) in STEPS.into_iter().enumerate() {
            let at = |round: usize| FIRST_RESULT + STEPS.len() * round + step;
            let cycles = (0..STEP_ROUNDS as usize).map(|round| self.result(at(round)) as f64);
            posting.push((what, median(cycles.collect())));
        }
        let triggers = trigger::measure(options, self.gpu)?;
        let doorbells = device_qp.doorbells().to_string();
        device_qp.detach_device(LONG)?;
        // Queues of blocks, threads of blocks that share one, and blocks.
        let shapes = [
            ("1 thread, 1 queue pair", 1, 1, 1),
            ("32 threads, 1 queue pair", 1, 32, 1),
            ("30 threads of a block, 30 queue pairs", 30, 1, 1),
            ("30 blocks of a thread, a queue pair each", 1, 1, 30),
        ];
        let (mut latency, mut rate) = (Vec::new(), Vec::new());
        for (what, of_block, sharers, blocks) in shapes {
            let threads = u64::from(of_block * sharers * blocks);
            let each = (options.posts / 100 / threads).max(10);
            let time = self.drive((of_block, sharers, blocks), each, true)?;
            latency.push((what, time / 1e3 / each as f64));
            let each = (options.posts / threads).max(10);
            let time = self.drive((of_block, sharers, blocks), each, false)?;
            rate.push((what, (each * threads) as f64 * 1e3 / time));
        }
        Ok(Measured { doorbells, posting, triggers, latency, rate })
    }

    /// Nanoseconds that the kernel took, from the first thread's beginning to the last one's end.
    fn drive(
        &self,
        (of_block, sharers, blocks): (u32, u32, u32),
        each: u64,
        wait_each: bool,
    ) -> Result<f64, Failure> {
        let count = (of_block * blocks) as usize;
        let device_qps: Vec<DeviceQp> =
            self.pairs[..count].iter().map(|pair| self.attach(pair)).collect::<Result<_, _>>()?;
        let (places, _keep) = self.places()?;
        let data: Vec<DeviceQpData> = device_qps.iter().map(DeviceQp::data).collect();
        let list = kernels::list(&data)?;
        let words = self.results.words64();
        words[FIRST_RESULT].store(u64::MAX, Ordering::Relaxed);
        words[FIRST_RESULT + 1].store(0, Ordering::Relaxed);
        let address = cuda::pin(&self.gpu.context, &list)?;
        let shape = kernels::Shape { of_block, sharers, blocks };
        // SAFETY: as in `measure`; the list lives as long.
        unsafe { self.kernels.rate(self.gpu, address, shape, each, wait_each, places)? };
        self.finish()?;
        for device_qp in device_qps {
            device_qp.detach_device(LONG)?;
        }
        Ok((self.result(FIRST_RESULT + 1) - self.result(FIRST_RESULT)) as f64)
    }
}

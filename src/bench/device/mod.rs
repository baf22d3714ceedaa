//! What posting costs a kernel, and how fast kernels post: with the queues' indices in host memory and in the GPU's.

mod kernels;

use super::gpu::Gpu;
use super::{median, print, print_json};
use crate::Failure;
use crate::cli::BenchOptions;
use crate::hca;
use gdsync::cuda::{self, GpuMemory};
use gdsync::{
    Access, ConnectOptions, DeviceQp, DeviceQpData, DeviceQpOptions, MemoryRegion, PinnedMemory,
    ProtectionDomain, QueuePair, QueuePairConfig,
};
use kernels::{Kernels, Places};
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Measurements of each kind.
const ROUNDS: u32 = 200;
/// Bytes of the indices of a queue pair.
const STATE: usize = 320;
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
    /// Cycles of the GPU's clock that a call takes.
    posting: Vec<Row>,
    /// 32 puts by a warp, against 32 by a thread that rings for each: how many times faster.
    warp_speedup: [f64; 2],
    /// The same, against a thread that rings once.
    warp_speedup_one_doorbell: [f64; 2],
    /// Microseconds from the post of 8 bytes until the kernel knows that they have arrived.
    latency: Vec<Row>,
    /// Millions of 8-byte puts a second.
    rate: Vec<Row>,
}

/// One quantity: with indices in host memory, and in GPU memory.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    host: f64,
    gpu: f64,
}

pub(super) fn run(options: &BenchOptions) -> Result<(), Failure> {
    let bench = Bench::new(options)?;
    let (mut host, mut device) = (bench.measure(false, options.posts)?, bench.measure(true, options.posts)?);
    let rows = |host: Vec<(&'static str, f64)>, device: Vec<(&'static str, f64)>| {
        let pairs = host.into_iter().zip(device);
        pairs.map(|((what, host), (_, gpu))| Row { what, host, gpu }).collect::<Vec<_>>()
    };
    let posting = rows(std::mem::take(&mut host.posting), std::mem::take(&mut device.posting));
    let speedup = |row: usize| [posting[row].host / posting[3].host, posting[row].gpu / posting[3].gpu];
    let results = Results {
        gpu: bench.gpu.name()?,
        doorbells: host.doorbells,
        warp_speedup: speedup(1),
        warp_speedup_one_doorbell: speedup(2),
        posting,
        latency: rows(host.latency, device.latency),
        rate: rows(host.rate, device.rate),
    };
    if options.json {
        return print_json(&results);
    }
    let header = format!("{}, DOORBELLS {}", results.gpu, results.doorbells);
    let table = |rows: &[Row], unit: &str| -> Vec<Vec<String>> {
        let cell = |value: f64| format!("{value:.2}");
        rows.iter().map(|row| vec![format!("{}, {unit}", row.what), cell(row.host), cell(row.gpu)]).collect()
    };
    let mut lines = table(&results.posting, "cycles");
    for (what, [host, gpu]) in [
        ("a warp is faster than 32 puts with 32 doorbells, times", results.warp_speedup),
        ("a warp is faster than 32 puts with one doorbell, times", results.warp_speedup_one_doorbell),
    ] {
        lines.push(vec![what.to_owned(), format!("{host:.2}"), format!("{gpu:.2}")]);
    }
    lines.extend(table(&results.latency, "µs"));
    lines.extend(table(&results.rate, "million a second"));
    print(&[&header, "INDICES IN HOST", "IN GPU MEMORY"], &lines)
}

/// What was measured with the indices in one place.
struct Measured {
    doorbells: String,
    posting: Vec<(&'static str, f64)>,
    latency: Vec<(&'static str, f64)>,
    rate: Vec<(&'static str, f64)>,
}

struct Bench {
    gpu: Gpu,
    kernels: Kernels,
    pd: ProtectionDomain,
    /// Each connected with the other.
    pairs: Vec<[QueuePair; 2]>,
    results: PinnedMemory,
    results_at: u64,
}

impl Bench {
    fn new(options: &BenchOptions) -> Result<Self, Failure> {
        let gpu = Gpu::new(options.gpu)?;
        let kernels = Kernels::load(&gpu)?;
        let (device, port) = hca::open(options.hca.as_ref())?;
        let pd = ProtectionDomain::new(&device)?;
        let config = QueuePairConfig::default().port(port).send_depth(512).access(Access::all());
        let connected = |_| {
            let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
            left.connect(&right.endpoint()?, ConnectOptions::default())?;
            right.connect(&left.endpoint()?, ConnectOptions::default())?;
            Ok::<_, Failure>([left, right])
        };
        let pairs = (0..QUEUES).map(connected).collect::<Result<_, _>>()?;
        let results = PinnedMemory::allocate(4096)?;
        let results_at = cuda::pin(&gpu.context, &results)?;
        Ok(Bench { gpu, kernels, pd, pairs, results, results_at })
    }

    fn hand_over(&self, [left, _]: &[QueuePair; 2], in_gpu: bool) -> Result<DeviceQp, Failure> {
        let mut options = DeviceQpOptions::default();
        if in_gpu {
            options = options.state(&GpuMemory::allocate(&self.gpu.context, STATE)?);
        }
        Ok(left.hand_to_device(&*self.gpu.stream, &options)?)
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

    /// What a kernel has told, once it has ended; an error where a call of it has failed.
    fn finish(&self) -> Result<(), Failure> {
        self.gpu.synchronize()?;
        match self.result(0) {
            0 => Ok(()),
            failed => Err(format!("{failed} calls failed in a kernel, error {:#x}", self.result(1)).into()),
        }
    }

    fn measure(&self, in_gpu: bool, posts: u64) -> Result<Measured, Failure> {
        let device_qp = self.hand_over(&self.pairs[0], in_gpu)?;
        let (places, _keep) = self.places()?;
        let mut posting = Vec::new();
        for (which, threads, what) in [
            (0, 1, "one put"),
            (1, 1, "one thread, 32 puts, 32 doorbells"),
            (2, 1, "one thread, 32 puts, one doorbell"),
            (3, 32, "a warp, 32 puts"),
            (4, 128, "a block, 128 puts"),
        ] {
            // SAFETY: the queue pair is handed over, and its memory lives, until the kernel has ended, which `finish` waits for.
            unsafe { self.kernels.cycles(&self.gpu, device_qp.data(), which, threads, ROUNDS, places)? };
            self.finish()?;
            let cycles = (0..ROUNDS as usize).map(|round| self.result(FIRST_RESULT + round) as f64);
            posting.push((what, median(cycles.collect())));
        }
        let doorbells = device_qp.doorbells().to_string();
        device_qp.take_back(LONG)?;
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
            let each = (posts / 100 / threads).max(10);
            let time = self.drive(in_gpu, (of_block, sharers, blocks), each, true)?;
            latency.push((what, time / 1e3 / each as f64));
            let each = (posts / threads).max(10);
            let time = self.drive(in_gpu, (of_block, sharers, blocks), each, false)?;
            rate.push((what, (each * threads) as f64 * 1e3 / time));
        }
        Ok(Measured { doorbells, posting, latency, rate })
    }

    /// Nanoseconds that the kernel took, from the first thread's beginning to the last one's end.
    fn drive(
        &self,
        in_gpu: bool,
        (of_block, sharers, blocks): (u32, u32, u32),
        each: u64,
        wait_each: bool,
    ) -> Result<f64, Failure> {
        let count = (of_block * blocks) as usize;
        let device_qps: Vec<DeviceQp> =
            self.pairs[..count].iter().map(|pair| self.hand_over(pair, in_gpu)).collect::<Result<_, _>>()?;
        let (places, _keep) = self.places()?;
        let data: Vec<DeviceQpData> = device_qps.iter().map(DeviceQp::data).collect();
        let list = kernels::list(&data)?;
        let words = self.results.words64();
        words[FIRST_RESULT].store(u64::MAX, Ordering::Relaxed);
        words[FIRST_RESULT + 1].store(0, Ordering::Relaxed);
        let address = cuda::pin(&self.gpu.context, &list)?;
        let shape = kernels::Shape { of_block, sharers, blocks };
        // SAFETY: as in `measure`; the list lives as long.
        unsafe { self.kernels.rate(&self.gpu, address, shape, each, wait_each, places)? };
        self.finish()?;
        for device_qp in device_qps {
            device_qp.take_back(LONG)?;
        }
        Ok((self.result(FIRST_RESULT + 1) - self.result(FIRST_RESULT)) as f64)
    }
}

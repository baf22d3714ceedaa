//! Queue pairs driven by kernels of a real GPU, on the card under test. Reported as skipped without a GPU.

use gdsync::cuda::{self, GpuMemory, Placement};
use gdsync::cudarc::driver::{CudaFunction, CudaModule, DeviceRepr, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions};
use gdsync::queue::{FailureCause, Syndrome};
use gdsync::stream::DoorbellPath;
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, PinnedMemory, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_test_support::gpu::{Rig, is_sanitized, synchronize};
use gdsync_test_support::pair::{LONG, Pair, layouts, poll, queue_pair};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of the indices.
const STATE: usize = 320;
/// `gdsync::status::failed`.
const FAILED: u64 = 3;

/// `struct places` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Places {
    local: u64,
    remote: u64,
    results: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: plain integers, in the layout of the kernels.
unsafe impl DeviceRepr for Places {}

/// `gdsync::remote_memory`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Remote {
    address: u64,
    rkey: u32,
}

// SAFETY: as above.
unsafe impl DeviceRepr for Remote {}

/// Launches and waits.
///
/// SAFETY of the launch inside: each caller passes the kernel's parameters, with memory that lives until this returns.
macro_rules! run {
    ($bench:expr, $kernel:expr, $config:expr, $($arg:expr),+) => {{
        let (stream, kernel) = ($bench.rig.stream(), $bench.kernel($kernel));
        let mut launch = stream.cudarc().unwrap().launch_builder(&kernel);
        $(launch.arg(&$arg);)+
        // SAFETY: as the macro says.
        unsafe { launch.launch($config) }.unwrap();
        drop(launch);
        // A kernel of ten million messages takes minutes.
        assert!(stream.synchronize_timeout(LONG * 20).unwrap(), "the kernel does not end: {stream:?}");
    }};
}

struct Bench {
    rig: Rig,
    module: Arc<CudaModule>,
    pair: Pair,
    local: MemoryRegion,
    remote: MemoryRegion,
    results: PinnedMemory,
    places: Places,
}

impl Bench {
    fn new(test: &str, depth: u32, options: ConnectOptions) -> Option<Bench> {
        let rig = Rig::new(test)?;
        let module = rig.compile(test, "bench.cu")?;
        let config = QueuePairConfig::default().send_depth(depth).access(Access::all());
        let pair = Pair::with(config, options);
        let (local, remote) = (pair.open_region(1 << 20), pair.open_region(1 << 20));
        let results = PinnedMemory::allocate(4096).unwrap();
        let pinned = |memory| cuda::pin(&rig.context, memory).unwrap();
        let places = Places {
            local: pinned(local.memory()),
            remote: pinned(remote.memory()),
            results: pinned(&results),
            lkey: local.lkey(),
            rkey: remote.rkey(),
        };
        // One memory has one address for the card and for the kernels.
        assert_eq!(places.local, local.memory().addr().get());
        assert_eq!(places.remote, remote.memory().addr().get());
        Some(Bench { rig, module, pair, local, remote, results, places })
    }

    /// Queue pairs of the same device as the regions.
    fn pairs(&self, count: usize, config: QueuePairConfig<'_>) -> Vec<Pair> {
        let connected = |_| {
            let (pd, device) = (self.pair.pd.clone(), self.pair.device.clone());
            let (left, right) = (queue_pair(&pd, config).unwrap(), queue_pair(&pd, config).unwrap());
            left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            Pair { device, pd, left, right }
        };
        (0..count).map(connected).collect()
    }

    fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    fn result(&self, at: usize) -> u64 {
        self.results.words64()[at].load(Ordering::Acquire)
    }

    fn hand_over(&self, queue_pair: &QueuePair, (path, state): (DoorbellPath, bool)) -> DeviceQp {
        let mut options = DeviceQpOptions::default().doorbells(path);
        if state {
            options = options.state(&GpuMemory::allocate(&self.rig.context, STATE).unwrap());
        }
        if is_sanitized() {
            options = options.stall(LONG);
        }
        queue_pair.attach_device(&*self.rig.stream(), &options).unwrap()
    }

    fn all_well(&self) {
        let last = self.result(1);
        assert_eq!(self.result(0), 0, "calls failed, the last with status {}, error {:#x}", last >> 56, last);
    }

    /// Each of 256 threads posts `count` words, and additions besides, to one of the queue pairs: everything arrives.
    fn storm(&self, pairs: &[Pair], way: (DoorbellPath, bool), count: u64) {
        // Under memcheck dozens of threads of a warp that wait for one of them keep it from its turn: there each has
        // a separate warp.
        let (blocks, threads) = if is_sanitized() { (256u32, 1u32) } else { (4, 64) };
        let slots = 8u32;
        self.remote.words64().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let device_qps: Vec<DeviceQp> = pairs.iter().map(|pair| self.hand_over(&pair.left, way)).collect();
        let completed = || device_qps.iter().map(|qp| qp.progress().unwrap().completed).sum::<u64>();
        let before = completed();
        let list = described(&device_qps);
        let (address, queues) = (cuda::pin(&self.rig.context, &list).unwrap(), pairs.len() as u32);
        run!(self, "storm", grid(blocks, threads), address, queues, count, slots, self.places);
        self.all_well();
        let words = self.remote.words64();
        let added = u64::from(blocks * threads) * count.div_ceil(5);
        assert_eq!(words[0].load(Ordering::Acquire), added);
        for thread in 0..u64::from(blocks * threads) {
            for slot in (0..u64::from(slots)).filter(|slot| *slot < count) {
                let last = (count - 1 - slot) / u64::from(slots) * u64::from(slots) + slot;
                let found = words[(1 + thread * u64::from(slots) + slot) as usize].load(Ordering::Acquire);
                assert_eq!(found, thread << 32 | last);
            }
        }
        assert_eq!(completed() - before, u64::from(blocks * threads) * count + added);
        device_qps.iter().for_each(|qp| qp.detach_device(LONG).unwrap());
    }
}

fn grid(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Paths to the card, and whether the indices are in GPU memory.
const WAYS: [(DoorbellPath, bool); 3] =
    [(DoorbellPath::Auto, false), (DoorbellPath::Auto, true), (DoorbellPath::Proxy, true)];

#[test]
fn every_operation_from_a_kernel() {
    let name = "every_operation_from_a_kernel";
    let Some(bench) = Bench::new(name, 128, ConnectOptions::default()) else { return };
    for way in WAYS {
        let (local, remote) = (bench.local.words64(), bench.remote.words64());
        local[0].store(0x0102_0304_0506_0708, Ordering::Release);
        for (at, word) in remote.iter().take(9).enumerate() {
            word.store(at as u64, Ordering::Release);
        }
        let device_qp = bench.hand_over(&bench.pair.left, way);
        let data = device_qp.data();
        run!(bench, "operations", grid(1, 1), data, bench.places);
        bench.all_well();
        let put = 0x0102_0304_0506_0708;
        let found: Vec<u64> = remote.iter().take(9).map(|word| word.load(Ordering::Acquire)).collect();
        assert_eq!(found, [put, 0x1122_3344_5566_7788, put, 33, put, 60, 6, 12, 88]);
        let found: Vec<u64> = local.iter().take(5).map(|word| word.load(Ordering::Acquire)).collect();
        assert_eq!(found, [put, 5, 6, 7, 8]);
        // CRC-32 of the bytes 8, 7 ... 1.
        assert_eq!((bench.result(2), bench.result(3)), (0, u64::from(crc32(&put.to_le_bytes()))));
        device_qp.detach_device(LONG).unwrap();
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| crc >> 1 ^ (0xedb8_8320 * (crc & 1));
    !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// The number of requests of a test: `most`, or fewer under a slow tool.
fn messages(most: u64) -> u64 {
    std::env::var("GDSYNC_DEVICE_MESSAGES").map_or(most, |text| most.min(text.parse().unwrap()))
}

#[test]
fn many_threads_and_queue_pairs_lose_nothing() {
    let test = "many_threads_and_queue_pairs_lose_nothing";
    let Some(bench) = Bench::new(test, 64, ConnectOptions::default()) else { return };
    for (queues, way) in [(1usize, WAYS[0]), (1, WAYS[1]), (4, WAYS[1]), (4, WAYS[2])] {
        let pairs = bench.pairs(queues, QueuePairConfig::default().send_depth(64).access(Access::all()));
        bench.storm(&pairs, way, messages(40_000) * 5 / 6 / 256);
    }
}

#[test]
fn ten_million_messages_of_one_kernel_arrive() {
    let test = "ten_million_messages_of_one_kernel_arrive";
    let Some(bench) = Bench::new(test, 64, ConnectOptions::default()) else { return };
    let pairs = bench.pairs(4, QueuePairConfig::default().send_depth(256).access(Access::all()));
    // Five of six requests are the threads' and one is an addition.
    bench.storm(&pairs, WAYS[1], (messages(10_000_000) * 5 / 6).div_ceil(256));
}

#[test]
fn the_cpu_kernels_and_streams_take_turns_in_every_placement() {
    let test = "the_cpu_kernels_and_streams_take_turns_in_every_placement";
    let Some(bench) = Bench::new(test, 64, ConnectOptions::default()) else { return };
    let (stream, source) = (bench.rig.stream(), [bench.local.slice(..8).unwrap()]);
    let (input, output) = (&bench.local.words64()[0], &bench.remote.words64()[0]);
    for placement in layouts(Placement::Gpu(0)) {
        let config = QueuePairConfig::default().send_depth(32).access(Access::all()).placement(placement);
        let pairs = bench.pairs(3, config);
        for (round, way) in (1u64..).zip(WAYS.into_iter().cycle().take(6)) {
            for pair in &pairs {
                input.store(round, Ordering::Release);
                pair.left.post_send(WorkRequest::write(&source, bench.remote.remote())).unwrap();
                assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
                assert_eq!(output.load(Ordering::Acquire), round);
                drop(pair.left.prepare(WorkRequest::write(&source, bench.remote.remote())).unwrap());
            }
            bench.storm(&pairs, way, (messages(1_000_000) / 40_000).clamp(1, 7 * round));
            for pair in &pairs {
                input.store(round << 32, Ordering::Release);
                let send = pair.left.prepare(WorkRequest::write(&source, bench.remote.remote())).unwrap();
                let done = pair.left.send_cq().prepare_wait().unwrap();
                stream.post(Batch::new().send(send).wait(done)).unwrap();
                synchronize(&stream);
                assert_eq!(output.load(Ordering::Acquire), round << 32, "{placement:?}");
                assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
            }
        }
    }
}

#[test]
fn a_kernel_that_polls_is_told_of_an_abort_in_every_placement() {
    let test = "a_kernel_that_polls_is_told_of_an_abort_in_every_placement";
    let limit = 15_000_000_000u64;
    for placement in layouts(Placement::Gpu(0)) {
        // A request to a dead peer is retried for longer than the kernel waits.
        let patient = ConnectOptions::default().timeout(20).retry_count(7);
        let Some(bench) = Bench::new(test, 64, patient) else { return };
        let config = QueuePairConfig::default().send_depth(32).access(Access::all()).placement(placement);
        let pair = Pair::with(config, patient);
        let (local, remote) = (pair.open_region(64), pair.open_region(64));
        let address = |region: &MemoryRegion| region.memory().addr().get();
        let places = Places {
            local: address(&local),
            remote: address(&remote),
            lkey: local.lkey(),
            rkey: remote.rkey(),
            ..bench.places
        };
        pair.right.abort().unwrap();
        // Indices in host memory, which the CPU reads while the kernel runs.
        let device_qp = bench.hand_over(&pair.left, WAYS[0]);
        let (stream, kernel, data) = (bench.rig.stream(), bench.kernel("attempt"), device_qp.data());
        let mut launch = stream.cudarc().unwrap().launch_builder(&kernel);
        launch.arg(&data).arg(&limit).arg(&places);
        // SAFETY: the kernel's parameters; the memory that they name lives until the stream is synchronized.
        unsafe { launch.launch(grid(1, 1)) }.unwrap();
        drop(launch);
        // The kernel has posted, and polls.
        let posted = || device_qp.progress().unwrap().posted;
        while posted() == 0 {
            std::thread::yield_now();
        }
        pair.left.abort().unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap(), "the kernel does not end: {stream:?}");
        assert_eq!(bench.result(0), FAILED, "{placement:?}");
        assert_eq!(bench.result(1) & 0xff, Syndrome::WrFlush as u64, "{:x}", bench.result(1));
        device_qp.detach_device(LONG).unwrap();
    }
}

/// An array of queue-pair descriptions that a kernel can read.
fn described(device_qps: &[DeviceQp]) -> PinnedMemory {
    let list = PinnedMemory::allocate(device_qps.len() * size_of::<DeviceQpData>()).unwrap();
    for (i, device_qp) in device_qps.iter().enumerate() {
        let data = device_qp.data();
        // SAFETY: a structure of integers without padding, as its layout test says.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const data).cast::<u8>(), size_of::<DeviceQpData>()) };
        list.write(i * bytes.len(), bytes);
    }
    list
}

#[test]
fn warps_and_blocks_post_together() {
    let test = "warps_and_blocks_post_together";
    let Some(bench) = Bench::new(test, 256, ConnectOptions::default()) else { return };
    for (which, threads) in [(1u32, 32u32), (1, 96), (1, 20), (2, 96), (2, 1)] {
        bench.remote.words64().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let device_qp = bench.hand_over(&bench.pair.left, WAYS[1]);
        let (rounds, blocks) = (50u64, 3);
        let data = device_qp.data();
        run!(bench, "together", grid(blocks, threads), data, which, rounds, bench.places);
        bench.all_well();
        for thread in 0..blocks * threads {
            let found = bench.remote.words64()[thread as usize].load(Ordering::Acquire);
            assert_eq!(found, u64::from(thread) << 32 | (rounds - 1), "{which}, {threads} threads");
        }
        device_qp.detach_device(LONG).unwrap();
    }
}

#[test]
fn a_kernel_sends_from_gpu_memory_to_gpu_memory() {
    let test = "a_kernel_sends_from_gpu_memory_to_gpu_memory";
    let Some(bench) = Bench::new(test, 128, ConnectOptions::default()) else { return };
    let (source, target) = (bench.rig.memory(64 << 10), bench.rig.memory(64 << 10));
    let register = |memory: &GpuMemory| {
        gdsync::verbs::GpuMemoryRegion::register(&bench.pair.pd, memory.clone(), Access::all()).unwrap()
    };
    let (from, to) = (register(&source), register(&target));
    let device_qp = bench.hand_over(&bench.pair.left, WAYS[1]);
    let signal = Remote { address: bench.places.remote, rkey: bench.places.rkey };
    for round in 1..20u64 {
        let words = 64u64 << (round % 8);
        let places = Places {
            local: source.address(),
            remote: to.remote().addr,
            lkey: from.lkey(),
            rkey: to.remote().rkey,
            ..bench.places
        };
        let data = device_qp.data();
        run!(bench, "exchange", grid(1, 128), data, words, round, signal, places);
        bench.all_well();
        assert_eq!(bench.remote.words64()[0].load(Ordering::Acquire), round);
        let mut bytes = vec![0u8; words as usize * 8];
        target.read(0, &mut bytes).unwrap();
        let expected: Vec<u8> = (0..words).flat_map(|i| (round << 32 | i).to_le_bytes()).collect();
        assert!(bytes == expected, "round {round}");
    }
    device_qp.detach_device(LONG).unwrap();
}

#[test]
fn failures_are_told_to_a_kernel_in_time() {
    let test = "failures_are_told_to_a_kernel_in_time";
    let second = 1_000_000_000u64;
    for (gone, syndrome) in [(false, Syndrome::RemoteAccess), (true, Syndrome::RetryExceeded)] {
        let quick = ConnectOptions::default().timeout(8).retry_count(1);
        let Some(bench) = Bench::new(test, 128, quick) else { return };
        let device_qp = bench.hand_over(&bench.pair.left, WAYS[1]);
        let mut places = bench.places;
        if gone {
            bench.pair.right.abort().unwrap();
        } else {
            places.rkey ^= 0x00ff_0000;
        }
        let limit = 15 * second;
        let data = device_qp.data();
        run!(bench, "attempt", grid(1, 1), data, limit, places);
        assert_eq!(bench.result(0), FAILED);
        assert_eq!(bench.result(1) & 0xff, syndrome as u64, "{:x}", bench.result(1));
        device_qp.detach_device(LONG).unwrap();
        let Some(FailureCause::Work(error)) = bench.pair.left.failure() else { panic!("not failed") };
        assert_eq!(error.kind(), Some(syndrome));
        bench.pair.left.reset().unwrap();
    }
}

//! Queue pairs driven by kernels of a real GPU, on the card under test. Skipped, and said so, where there is no GPU.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;
mod gpu_rig;

use common::{LONG, Pair};
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::{CudaFunction, DeviceRepr, LaunchConfig, PushKernelArg};
use gdsync::cudarc::nvrtc::Ptx;
use gdsync::{
    Access, ConnectOptions, DeviceQp, DeviceQpData, DeviceQpOptions, DoorbellPath, FailureCause,
    MemoryRegion, PinnedMemory, QueuePair, QueuePairConfig, Syndrome,
};
use gpu_rig::Rig;
use std::sync::atomic::Ordering;

/// Shared with `gdsync bench device`; `scripts/gpu/ptx` makes it.
const PTX: &str = include_str!("../../src/bench/device/kernels.ptx");
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

// SAFETY: plain integers, laid out as the kernels have them.
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

struct Bench {
    rig: Rig,
    pair: Pair,
    local: MemoryRegion,
    remote: MemoryRegion,
    results: PinnedMemory,
    places: Places,
}

impl Bench {
    fn new(test: &str, depth: u32, options: ConnectOptions) -> Option<Bench> {
        let rig = Rig::new(test)?;
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
        // The card and the kernels name the same memory by one number each.
        assert_eq!(places.local, local.memory().addr().get());
        assert_eq!(places.remote, remote.memory().addr().get());
        Some(Bench { rig, pair, local, remote, results, places })
    }

    fn kernel(&self, name: &str) -> CudaFunction {
        self.rig.context.load_module(Ptx::from_src(PTX)).unwrap().load_function(name).unwrap()
    }

    fn result(&self, at: usize) -> u64 {
        self.results.words64()[at].load(Ordering::Acquire)
    }

    fn hand_over(&self, queue_pair: &QueuePair, (path, state): (DoorbellPath, bool)) -> DeviceQp {
        let mut options = DeviceQpOptions::default().doorbells(path);
        if state {
            options = options.state(&GpuMemory::allocate(&self.rig.context, STATE).unwrap());
        }
        queue_pair.hand_to_device(&*self.rig.stream(), &options).unwrap()
    }

    /// No call of a kernel has failed.
    fn all_well(&self) {
        assert_eq!((self.result(0), self.result(1)), (0, 0), "calls that failed, and the last error");
    }
}

fn grid(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Launches and waits.
///
/// SAFETY of the launch inside: each caller gives the kernel's own parameters, with memory that lives until this returns.
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

/// Ways to the card, and whether the indices are in GPU memory.
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
        device_qp.take_back(LONG).unwrap();
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| crc >> 1 ^ (0xedb8_8320 * (crc & 1));
    !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[test]
fn many_threads_and_queue_pairs_lose_nothing() {
    let test = "many_threads_and_queue_pairs_lose_nothing";
    let Some(bench) = Bench::new(test, 64, ConnectOptions::default()) else { return };
    let (blocks, threads, slots) = (4u32, 64u32, 8u32);
    // 40,000 requests by default; how many more a run with time for it is to post.
    let count = std::env::var("GDSYNC_DEVICE_MESSAGES").map_or(40_000u64, |text| text.parse().unwrap());
    let count = count * 5 / 6 / u64::from(blocks * threads);
    for (queues, way) in [(1usize, WAYS[0]), (1, WAYS[1]), (4, WAYS[1]), (4, WAYS[2])] {
        bench.remote.words64().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let pairs: Vec<Pair> = (0..queues)
            .map(|_| {
                let config = QueuePairConfig::default().send_depth(64).access(Access::all());
                let (pd, device) = (bench.pair.pd.clone(), bench.pair.device.clone());
                let (left, right) =
                    (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
                left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
                right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
                Pair { device, pd, left, right }
            })
            .collect();
        let device_qps: Vec<DeviceQp> = pairs.iter().map(|pair| bench.hand_over(&pair.left, way)).collect();
        let list = described(&device_qps);
        let address = cuda::pin(&bench.rig.context, &list).unwrap();
        let queues = queues as u32;
        run!(bench, "storm", grid(blocks, threads), address, queues, count, slots, bench.places);
        bench.all_well();
        let words = bench.remote.words64();
        let added = u64::from(blocks * threads) * count.div_ceil(5);
        assert_eq!(words[0].load(Ordering::Acquire), added);
        for thread in 0..u64::from(blocks * threads) {
            for slot in (0..u64::from(slots)).filter(|slot| *slot < count) {
                let last = (count - 1 - slot) / u64::from(slots) * u64::from(slots) + slot;
                let found = words[(1 + thread * u64::from(slots) + slot) as usize].load(Ordering::Acquire);
                assert_eq!(found, thread << 32 | last);
            }
        }
        let posted: u64 = device_qps.iter().map(|qp| qp.progress().unwrap().completed).sum();
        assert_eq!(posted, u64::from(blocks * threads) * count + added);
        device_qps.iter().for_each(|qp| qp.take_back(LONG).unwrap());
    }
}

/// The descriptions of queue pairs one after the other, where a kernel can read them.
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
        device_qp.take_back(LONG).unwrap();
    }
}

#[test]
fn a_kernel_sends_from_gpu_memory_to_gpu_memory() {
    let test = "a_kernel_sends_from_gpu_memory_to_gpu_memory";
    let Some(bench) = Bench::new(test, 128, ConnectOptions::default()) else { return };
    let (source, target) = (bench.rig.memory(64 << 10), bench.rig.memory(64 << 10));
    let register = |memory: &GpuMemory| {
        cuda::GpuMemoryRegion::register(&bench.pair.pd, memory.clone(), Access::all()).unwrap()
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
    device_qp.take_back(LONG).unwrap();
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
        device_qp.take_back(LONG).unwrap();
        let Some(FailureCause::Work(error)) = bench.pair.left.failure() else { panic!("not failed") };
        assert_eq!(error.kind(), Some(syndrome));
        bench.pair.left.reset().unwrap();
    }
}

//! Sends that kernels of a real GPU release by triggers, and arrivals for which they wait. Reported as skipped
//! without a GPU.

use gdsync::advanced::Collector;
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::{CudaFunction, CudaModule, DeviceRepr, LaunchConfig};
use gdsync::device::TriggerData;
use gdsync::{
    Access, ConnectOptions, CudaStream, MemoryRegion, PinnedMemory, PreparedSend, QueuePair, QueuePairConfig,
    Stream, Trigger, WorkRequest,
};
use gdsync_test_support::gpu::{Rig, is_sanitized, synchronize};
use gdsync_test_support::pair::{poll, queue_pair};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Queue pairs that a trigger releases.
pub(crate) const PEERS: usize = 4;
/// Places of messages.
pub(crate) const PLACES: u64 = 1024;

/// `struct messages` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Messages {
    source: u64,
    target: u64,
    places: u64,
    results: u64,
}

// SAFETY: plain integers, in the layout of the kernels.
unsafe impl DeviceRepr for Messages {}

/// Messages of 8 bytes: ticket `n` of the trigger releases message `n`, which queue pair `n % PEERS` sends.
pub(crate) struct Bench {
    pub(crate) rig: Rig,
    /// Shared with `gdsync bench`.
    module: Arc<CudaModule>,
    pub(crate) stream: Stream<CudaStream>,
    pub(crate) trigger: Trigger,
    pub(crate) pairs: Vec<(QueuePair, QueuePair)>,
    pub(crate) source: MemoryRegion,
    pub(crate) target: MemoryRegion,
    results: PinnedMemory,
    pub(crate) messages: Messages,
    /// For kernels that are launched to be loaded, and to change nothing.
    pub(crate) scratch: GpuMemory,
}

/// The content of message `n`, which the kernels compute, too.
pub(crate) fn said(message: u64) -> u64 {
    message.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// The byte range of a message's place.
pub(crate) fn place(message: u64) -> std::ops::Range<usize> {
    let at = 8 * (message % PLACES) as usize;
    at..at + 8
}

pub(crate) fn grid(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// Launches a kernel.
///
/// SAFETY of the launch inside: each caller passes the kernel's parameters, with memory that lives until the stream
/// is synchronized.
macro_rules! launch {
    ($stream:expr, $kernel:expr, $config:expr, $($arg:expr),+) => {{
        use gdsync::cudarc::driver::PushKernelArg as _;
        let mut launch = $stream.cudarc().unwrap().launch_builder(&$kernel);
        $(launch.arg(&$arg);)+
        // SAFETY: as the macro says.
        unsafe { launch.launch($config) }.unwrap();
    }};
}
pub(crate) use launch;

impl Bench {
    /// The word is in host memory, or in GPU memory.
    pub(crate) fn new(test: &str, in_gpu: bool) -> Option<Bench> {
        let rig = Rig::new(test)?;
        let module = rig.compile(test, "trigger.cu")?;
        let (stream, pd) = (rig.stream(), rig.pair.pd.clone());
        let trigger = if in_gpu {
            Trigger::in_gpu_region(&rig.region(64), 8).unwrap()
        } else {
            Trigger::new(&pd).unwrap()
        };
        let connected = |_| {
            let config = QueuePairConfig::default().send_depth(256).recv_depth(256);
            let left = queue_pair(&pd, config.trigger(&trigger)).unwrap();
            let right = queue_pair(&pd, config).unwrap();
            left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            (left, right)
        };
        let pairs = (0..PEERS).map(connected).collect();
        let region = || MemoryRegion::allocate(&pd, 8 * PLACES as usize, Access::all()).unwrap();
        let (source, target) = (region(), region());
        let results = PinnedMemory::allocate(4096).unwrap();
        let pinned = |memory| cuda::pin(&rig.context, memory).unwrap();
        let messages = Messages {
            source: pinned(source.memory()),
            target: pinned(target.memory()),
            places: PLACES,
            results: pinned(&results),
        };
        let scratch = rig.memory(64);
        scratch.write(0, &[0; 64]).unwrap();
        Some(Bench { rig, module, stream, trigger, pairs, source, target, results, messages, scratch })
    }

    pub(crate) fn kernel(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    /// The trigger for kernels.
    pub(crate) fn trigger_data(&self) -> TriggerData {
        self.trigger.for_kernels(&*self.stream).unwrap()
    }

    pub(crate) fn no_trigger(&self) -> TriggerData {
        TriggerData { word: self.scratch.address() }
    }

    /// Messages that are written to the scratch memory.
    pub(crate) fn no_messages(&self) -> Messages {
        let nowhere = self.scratch.address() + 32;
        Messages { source: nowhere, target: nowhere, places: 1, ..self.messages }
    }

    /// A counter in GPU memory, initially 0.
    pub(crate) fn counter(&self) -> GpuMemory {
        let counter = self.rig.memory(8);
        counter.write(0, &[0; 8]).unwrap();
        counter
    }

    pub(crate) fn send(&self, message: u64) -> PreparedSend {
        let slices = [self.source.slice(place(message)).unwrap()];
        let to = self.target.remote().slice(place(message)).unwrap();
        let left = &self.pairs[message as usize % PEERS].0;
        let send = left.prepare(WorkRequest::write(&slices, to).wr_id(message)).unwrap();
        assert_eq!(send.ticket(), Some(message));
        send
    }

    pub(crate) fn prepare(&self, message: u64) {
        assert_eq!(self.send(message).into_ticket().unwrap(), message);
    }

    /// As a kernel does.
    pub(crate) fn write(&self, message: u64) {
        self.source.word64(place(message).start).unwrap().store(said(message));
    }

    /// Each message has been sent and has arrived intact.
    pub(crate) fn arrived(&self, messages: std::ops::Range<u64>) {
        for message in messages {
            let completion = poll(&self.pairs[message as usize % PEERS].0.send_cq());
            assert_eq!((completion.wr_id, completion.status), (message, Ok(())));
            let found = self.target.word64(place(message).start).unwrap().load();
            assert_eq!(found, said(message), "message {message}");
        }
    }

    pub(crate) fn all_well(&self) {
        let result = |at: usize| self.results.words64()[at].load(Ordering::Acquire);
        let status = result(1) >> 56;
        assert_eq!((result(0), result(2)), (0, 0), "calls that failed (the last with {status}), messages");
    }
}

/// `most`, or fewer under a slow tool.
pub(crate) fn rounds(most: u64) -> u64 {
    if is_sanitized() { most.min(40) } else { most }
}

#[test]
fn kernels_release_sends_and_wait_for_their_arrival() {
    const EACH: u64 = PEERS as u64;
    const PER_LAUNCH: u64 = 20;
    for in_gpu in [false, true] {
        let test = "kernels_release_sends_and_wait_for_their_arrival";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let collector = Collector::new(&bench.rig.pair.device).unwrap();
        let (trigger, arrivals) = (bench.trigger_data(), collector.for_kernels(&*bench.stream).unwrap());
        let kernel = bench.kernel("release_rounds");
        let mut next = 1;
        while next <= EACH * rounds(1000) {
            let first = next;
            let numbers = (0..PER_LAUNCH).map(|_| {
                (next..next + EACH).for_each(|message| bench.prepare(message));
                next += EACH;
                let waits = bench.pairs.iter().map(|(left, _)| left.send_cq().prepare_wait().unwrap());
                collector.collect(waits.collect::<Vec<_>>()).unwrap()
            });
            let numbers: Vec<u64> = numbers.collect();
            let (number, count, each) = (numbers[0], PER_LAUNCH as u32, EACH as u32);
            assert_eq!(numbers, (number..number + PER_LAUNCH).collect::<Vec<_>>());
            let messages = bench.messages;
            launch!(
                bench.stream,
                kernel,
                grid(1, 1),
                trigger,
                arrivals,
                first,
                number,
                count,
                each,
                messages
            );
            synchronize(&bench.stream);
            bench.all_well();
            bench.arrived(first..next);
        }
    }
}

#[test]
fn the_last_of_many_blocks_releases_what_all_have_written() {
    const BLOCKS: u64 = 64;
    for in_gpu in [false, true] {
        let test = "the_last_of_many_blocks_releases_what_all_have_written";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let collector = Collector::new(&bench.rig.pair.device).unwrap();
        let (trigger, arrivals) = (bench.trigger_data(), collector.for_kernels(&*bench.stream).unwrap());
        let (kernel, counter, messages) = (bench.kernel("release_together"), bench.counter(), bench.messages);
        let written = counter.address();
        for step in 0..rounds(100) {
            let first = 1 + step * BLOCKS;
            (first..first + BLOCKS).for_each(|message| bench.prepare(message));
            let waits = (first..first + BLOCKS)
                .map(|message| bench.pairs[message as usize % PEERS].0.send_cq().prepare_wait().unwrap());
            let number = collector.collect(waits.collect::<Vec<_>>()).unwrap();
            let config = grid(BLOCKS as u32, 1);
            launch!(bench.stream, kernel, config, trigger, arrivals, first, number, written, messages);
            synchronize(&bench.stream);
            bench.all_well();
            bench.arrived(first..first + BLOCKS);
        }
    }
}

#[test]
fn kernels_streams_and_the_cpu_release_by_turns() {
    for in_gpu in [false, true] {
        let test = "kernels_streams_and_the_cpu_release_by_turns";
        let Some(bench) = Bench::new(test, in_gpu) else { return };
        let (kernel, counter, trigger) =
            (bench.kernel("release_next"), bench.counter(), bench.trigger_data());
        let (messages, address) = (bench.messages, counter.address());
        for message in 1..=rounds(300) {
            match message % 3 {
                0 => {
                    bench.prepare(message);
                    counter.write(0, &(message - 1).to_ne_bytes()).unwrap();
                    launch!(bench.stream, kernel, grid(1, 1), trigger, address, messages);
                }
                1 => {
                    bench.write(message);
                    bench.stream.post_send(bench.send(message)).unwrap();
                }
                _ => {
                    bench.write(message);
                    bench.prepare(message);
                    bench.trigger.release(message).unwrap();
                }
            }
            synchronize(&bench.stream);
            bench.arrived(message..message + 1);
        }
    }
}

#[test]
fn a_word_that_a_device_does_not_reach_is_refused() {
    let Some(bench) = Bench::new("a_word_that_a_device_does_not_reach_is_refused", true) else { return };
    let error = bench.trigger.for_kernels(&gdsync::stream::Cpu::new()).unwrap_err();
    assert!(error.to_string().contains("GPU memory"), "{error}");
}

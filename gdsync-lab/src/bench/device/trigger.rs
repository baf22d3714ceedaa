//! The cost for a kernel of releasing a send by a trigger, beside a fence and a store by hand.

use super::super::gpu::Gpu;
use super::super::{median, pair};
use super::{LONG, ROUNDS, config};
use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::{CudaFunction, DeviceRepr, PushKernelArg};
use gdsync::device::{TriggerData, nvrtc};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{
    Access, MemoryRegion, PinnedMemory, PreparedSend, ProtectionDomain, QueuePair, QueuePairConfig, Trigger,
    WorkRequest,
};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use std::sync::atomic::Ordering;

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/trigger.cu"));
/// Blocks of the send queue: two for each message, and more than there are messages.
const DEPTH: u32 = 1024;
const FIRST_RESULT: usize = 8;

/// `struct messages` of `kernels/trigger.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Messages {
    pub(in crate::bench) source: u64,
    pub(in crate::bench) target: u64,
    pub(in crate::bench) places: u64,
    pub(in crate::bench) results: u64,
}

// SAFETY: plain integers, laid out as in the kernels.
unsafe impl DeviceRepr for Messages {}

pub(in crate::bench) fn kernel(gpu: &Gpu, name: &str) -> Result<CudaFunction, Failure> {
    Ok(nvrtc::load(&gpu.context, "trigger.cu", SOURCE)?.load_function(name)?)
}

/// Returns the content of message `message`; the kernels compute it, too.
pub(in crate::bench) fn said(message: u64) -> u64 {
    message.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Returns GPU clock cycles. Empty if the card does not wait for words.
pub(super) fn measure(options: &BenchOptions, gpu: &Gpu) -> Result<Vec<(&'static str, f64)>, Failure> {
    let mut rows = Vec::new();
    for (in_gpu, by_hand, by_trigger) in [
        (false, "a fence and a store by hand, host memory", "a trigger in host memory"),
        (true, "a fence and a store by hand, GPU memory", "a trigger in GPU memory"),
    ] {
        let (device, port) = hca::open(options.hca.as_ref())?;
        if !device.card_waits()?.data {
            return Ok(Vec::new());
        }
        let pd = ProtectionDomain::new(&device)?;
        let memory = GpuMemory::allocate(&gpu.context, 64)?;
        let trigger = if in_gpu {
            Trigger::in_gpu_region(&GpuMemoryRegion::register(&pd, memory.clone(), Access::empty())?, 0)?
        } else {
            Trigger::new(&pd)?
        };
        let pinned = PinnedMemory::allocate(8)?;
        let elsewhere = if in_gpu { memory.address() + 32 } else { cuda::pin(&gpu.context, &pinned)? };
        let bench = TriggerRelease::new(gpu, &pd, port, trigger)?;
        rows.push((by_hand, bench.cycles(gpu, 0, TriggerData { word: elsewhere })?));
        rows.push((by_trigger, bench.messages(gpu)?));
    }
    Ok(rows)
}

/// Memory of messages. Each message is 8 bytes in a separate place, until all places are used.
pub(in crate::bench) struct Board {
    pub(in crate::bench) source: MemoryRegion,
    target: MemoryRegion,
    results: PinnedMemory,
    pub(in crate::bench) messages: Messages,
}

impl Board {
    pub(in crate::bench) fn new(gpu: &Gpu, pd: &ProtectionDomain, places: usize) -> Result<Self, Failure> {
        let region = || MemoryRegion::allocate(pd, 8 * places, Access::all());
        let (source, target) = (region()?, region()?);
        let results = PinnedMemory::allocate(4096)?;
        let messages = Messages {
            source: cuda::pin(&gpu.context, source.memory())?,
            target: cuda::pin(&gpu.context, target.memory())?,
            places: places as u64,
            results: cuda::pin(&gpu.context, &results)?,
        };
        Ok(Board { source, target, results, messages })
    }

    pub(in crate::bench) fn place(&self, message: u64) -> usize {
        8 * (message % self.messages.places) as usize
    }

    pub(in crate::bench) fn prepare(&self, from: &QueuePair, message: u64) -> Result<PreparedSend, Failure> {
        let at = self.place(message);
        let slices = [self.source.slice(at..at + 8)?];
        Ok(from.prepare(WorkRequest::write(&slices, self.target.remote().slice(at..at + 8)?))?)
    }

    /// Checks that these messages have arrived as sent.
    pub(in crate::bench) fn check(&self, mut messages: std::ops::Range<u64>) -> Result<(), Failure> {
        messages.try_for_each(|message| match self.target.word64(self.place(message))?.load() {
            found if found == said(message) => Ok(()),
            found => Err(format!("message {message} brought {found:#x}").into()),
        })
    }
}

struct TriggerRelease {
    left: QueuePair,
    _right: QueuePair,
    trigger: Trigger,
    board: Board,
    kernel: CudaFunction,
}

impl TriggerRelease {
    fn new(gpu: &Gpu, pd: &ProtectionDomain, port: u8, trigger: Trigger) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().port(port).send_depth(DEPTH).trigger(&trigger);
        let (left, right) = pair::connected(pd, config)?;
        let board = Board::new(gpu, pd, ROUNDS as usize + 1)?;
        Ok(TriggerRelease { left, _right: right, trigger, board, kernel: kernel(gpu, "release_cycles")? })
    }

    /// Returns the median of the rounds, in which the first thread stores message after message from 1 on.
    fn cycles(&self, gpu: &Gpu, which: u32, trigger: TriggerData) -> Result<f64, Failure> {
        let stream = gpu.stream.cudarc().ok_or("the stream is not cudarc's")?;
        let (first, rounds) = (1u64, ROUNDS);
        let mut launch = stream.launch_builder(&self.kernel);
        launch.arg(&trigger).arg(&which).arg(&first).arg(&rounds).arg(&self.board.messages);
        // SAFETY: these are the kernel's parameters; their memory lives until the stream is synchronized.
        unsafe { launch.launch(config(1, 1)) }?;
        if !gpu.stream.synchronize_timeout(LONG * 2)? {
            return Err("the kernel that releases does not end".into());
        }
        let word = |at: usize| self.board.results.words64()[at].load(Ordering::Acquire);
        match word(0) {
            0 => Ok(median((0..ROUNDS as usize).map(|round| word(FIRST_RESULT + round) as f64))),
            failed => Err(format!("{failed} messages did not arrive, status {}", word(1) >> 56).into()),
        }
    }

    /// Like [`Self::cycles`], with messages that the card waits to send.
    fn messages(&self, gpu: &Gpu) -> Result<f64, Failure> {
        let messages = 1..u64::from(ROUNDS) + 1;
        for message in messages.clone() {
            let ticket = self.board.prepare(&self.left, message)?.into_ticket()?;
            if ticket != message {
                return Err(format!("message {message} has ticket {ticket}").into());
            }
        }
        let cycles = self.cycles(gpu, 1, self.trigger.for_kernels(&*gpu.stream)?)?;
        pair::collect(&self.left.send_cq(), ROUNDS.into())?;
        self.board.check(messages)?;
        Ok(cycles)
    }
}

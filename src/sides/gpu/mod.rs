//! The driver for GPUs: a CUDA stream with messages in GPU memory; kernels fill and check them and take the times.

mod kernels;

use super::connection::SideResults;
use super::driver::{self, Arrival, CHUNKS, Driver, Work};
use crate::cli::SideOptions;
use crate::failure::Failure;
use crate::pattern::Pattern;
use gdsync::cudarc::driver::CudaEvent;
use gdsync::memop::StreamError;
use gdsync::stream::{Doorbells, Posted};
use gdsync::verbs::GpuMemoryRegion;
use gdsync::{Access, Batch, CudaStream, ProtectionDomain, QueuePair, RemoteMemory, Slice, Stream};
use kernels::{Kernels, Words, failed};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Indices of the words that kernels write: the first mismatch, the beginning of the first exchange, and the ends of
/// exchanges.
const MISMATCH: u64 = 0;
const PLACE: u64 = 1;
const BEGIN: u64 = 2;
const ENDS: u64 = 3;

/// How long the CPU sleeps between polls of an event: short at first, for short chunks.
const NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(200);

pub(super) struct GpuDriver {
    stream: Stream<CudaStream>,
    kernels: Kernels,
    source: GpuMemoryRegion,
    target: GpuMemoryRegion,
    words: Words,
    /// An event for each chunk under way; chunk `n` ends with event `n` modulo their number.
    events: Vec<CudaEvent>,
    marks: VecDeque<u64>,
    passed: (u64, u64),
    /// Exchanges that can be under way, and end times kept.
    window: u64,
    rank: u64,
    checked: bool,
    results: SideResults,
}

impl GpuDriver {
    /// Allocates and loads everything in advance: the driver does some of that only while no stream of the context
    /// waits.
    pub(super) fn new(
        ordinal: u32,
        options: &SideOptions,
        work: Work,
        rank: u64,
        pd: &ProtectionDomain,
        results: SideResults,
    ) -> Result<Self, Failure> {
        let context = gdsync::cuda::context(ordinal)?;
        let size = usize::try_from(work.size)?;
        let window = CHUNKS * work.batch;
        let queue = context.new_stream().map_err(failed("cuStreamCreate"))?;
        let memory = |access| Ok::<_, Failure>(GpuMemoryRegion::allocate(pd, &context, size, access)?);
        let source = memory(work.source)?;
        let target = memory(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let events = (0..CHUNKS).map(|_| context.new_event(None).map_err(failed("cuEventCreate")));
        let driver = GpuDriver {
            stream: driver::stream(CudaStream::new(Arc::clone(&queue))?, options)?,
            kernels: Kernels::load(queue)?,
            source,
            target,
            words: Words::new(&context, ENDS + window)?,
            events: events.collect::<Result<_, _>>()?,
            marks: VecDeque::new(),
            passed: (0, 0),
            window,
            rank,
            checked: options.check,
            results,
        };
        driver.rehearse()?;
        Ok(driver)
    }

    /// Launches each kernel once on no bytes: the first launch loads it.
    fn rehearse(&self) -> Result<(), Failure> {
        let (source, target) = (self.source.memory().address(), self.target.memory().address());
        // SAFETY: as in `produce` and `consume`; the stream is waited for below.
        unsafe {
            self.kernels.fill(source, 0, 0)?;
            self.kernels.check(target, 0, 0, 0, self.words.address(MISMATCH), self.words.address(BEGIN))?;
            self.kernels.stamp(self.words.address(BEGIN))?;
        }
        self.kernels.stream().synchronize().map_err(failed("a kernel"))?;
        Ok(())
    }

    fn event(&self, chunk: u64) -> &CudaEvent {
        &self.events[(chunk % CHUNKS) as usize]
    }

    fn end(&self, sequence: u64) -> u64 {
        ENDS + sequence % self.window
    }
}

impl Driver for GpuDriver {
    fn remotes(&self) -> [RemoteMemory; 2] {
        [self.target.remote(), self.source.remote()]
    }

    fn source(&self, range: Range<usize>) -> Result<Slice, Failure> {
        Ok(self.source.slice(range)?)
    }

    fn target(&self, range: Range<usize>) -> Result<Slice, Failure> {
        Ok(self.target.slice(range)?)
    }

    fn begin(&mut self) -> Result<(), Failure> {
        if self.rank > 0 {
            return Ok(());
        }
        // SAFETY: the words live as long as `self`, which is dropped after the stream was waited for; gdsync frees
        // memory known to a GPU only while the GPU's streams are idle.
        unsafe { self.kernels.stamp(self.words.address(BEGIN)) }
    }

    fn produce(&mut self, sequence: u64) -> Result<(), Failure> {
        if !self.checked {
            return Ok(());
        }
        let memory = self.source.memory();
        let seed = Pattern::new(self.rank, sequence).seed;
        // SAFETY: as in `begin`, also for the region's memory.
        unsafe { self.kernels.fill(memory.address(), memory.len() as u64, seed) }
    }

    fn post(&mut self, batch: Batch) -> Result<Posted, Failure> {
        driver::post(&self.stream, batch)
    }

    fn arrived(&mut self, sequence: u64, what: Arrival) -> Result<(), Failure> {
        let time = if self.rank == 0 && what.is_timed { self.words.address(self.end(sequence)) } else { 0 };
        if self.checked && what.is_checked {
            let (memory, mismatch) = (self.target.memory(), self.words.address(MISMATCH));
            let seed = Pattern::new(1 - self.rank, sequence).seed;
            // SAFETY: as in `begin`, also for the region's memory.
            unsafe {
                self.kernels.check(memory.address(), memory.len() as u64, seed, sequence, mismatch, time)
            }
        } else if time != 0 {
            // SAFETY: as in `begin`.
            unsafe { self.kernels.stamp(time) }
        } else {
            Ok(())
        }
    }

    fn mark(&mut self, count: u64) -> Result<(), Failure> {
        let event = self.event(self.passed.0 + self.marks.len() as u64);
        event.record(self.kernels.stream()).map_err(failed("cuEventRecord"))?;
        self.marks.push_back(count);
        Ok(())
    }

    fn pass(&mut self) -> Result<(), Failure> {
        let Some(count) = self.marks.pop_front() else { return Ok(()) };
        let (chunk, first) = self.passed;
        let mut nap = NAP;
        while !self.event(chunk).try_is_complete().map_err(failed("the GPU's stream"))? {
            std::thread::sleep(nap);
            nap = LONGEST_NAP.min(2 * nap);
        }
        if let Some(sequence) = self.words.load(MISMATCH).checked_sub(1) {
            self.results.wrong(sequence, self.words.load(PLACE));
        }
        if self.rank == 0 {
            let mut timing = self.results.timing();
            if first == 0 {
                timing.begin_at(self.words.load(BEGIN));
            }
            for sequence in first..first + count {
                timing.exchanged_at(self.words.load(self.end(sequence)));
            }
        }
        self.passed = (chunk + 1, first + count);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }

    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        self.stream.doorbells(queue_pair)
    }
}

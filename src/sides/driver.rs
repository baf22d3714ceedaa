//! Drivers, which perform a side's work: the trait, and the driver for host memory, a software stream or the calling
//! thread. [`super::gpu`] has the driver for GPUs.

use super::connection::SideResults;
use crate::cli::SideOptions;
use crate::failure::Failure;
use crate::pattern::Pattern;
use gdsync::memop::{MemOpStream, StreamError};
use gdsync::stream::{Cpu, Doorbells, Event, PostError, PostFailure, Posted, StreamOptions};
use gdsync::{
    Access, Batch, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, Slice, SoftStream, Stream,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Chunks under way: while one is performed, the CPU prepares the next.
pub(crate) const CHUNKS: u64 = 2;

/// The dimensions of a driver's work.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Bytes of the outgoing and of the incoming message.
    pub(crate) size: u64,
    pub(crate) batch: u64,
    /// The other side's access to the outgoing message.
    pub(crate) source: Access,
}

/// Holds a side's messages and performs its work in the order of the calls, immediately or later.
///
/// Work comes in *chunks* of exchanges, of which [`CHUNKS`] may be under way.
pub(crate) trait Driver {
    /// Returns, for the other side, the memory of incoming messages, and of the outgoing message if it may be read.
    fn remotes(&self) -> [RemoteMemory; 2];
    fn source(&self, range: Range<usize>) -> Result<Slice, Failure>;
    fn target(&self, range: Range<usize>) -> Result<Slice, Failure>;

    fn begin(&mut self) -> Result<(), Failure>;
    /// Fills the outgoing message, if messages are checked.
    fn produce(&mut self, sequence: u64) -> Result<(), Failure>;
    /// Posts doorbells and waits. Blocks while the stream has as much outstanding as it allows.
    fn post(&mut self, batch: Batch) -> Result<Posted, Failure>;
    /// Checks the message that has arrived, if messages are checked, and takes the time of the exchange on the first
    /// side.
    fn consume(&mut self, sequence: u64) -> Result<(), Failure> {
        self.arrived(sequence, Arrival { is_checked: true, is_timed: true })
    }
    /// Like [`Self::consume`], or only one part of it.
    fn arrived(&mut self, sequence: u64, what: Arrival) -> Result<(), Failure>;

    /// Ends the chunk after `count` exchanges.
    fn mark(&mut self, count: u64) -> Result<(), Failure>;
    /// Waits until the oldest chunk has been performed, while the CPU sleeps; its kernels' results are then available.
    fn pass(&mut self) -> Result<(), Failure>;
    fn synchronize(&mut self) -> Result<(), Failure>;

    /// Returns how a queue pair's doorbells reach the card.
    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError>;
}

/// Steps for a message that has arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) is_checked: bool,
    pub(crate) is_timed: bool,
}

pub(crate) fn stream<B: MemOpStream>(backend: B, options: &SideOptions) -> Result<Stream<B>, Failure> {
    Ok(Stream::with_options(backend, StreamOptions::default().doorbells(options.doorbells.into()))?)
}

/// Posts a batch; waits while the stream has as much outstanding as it allows.
pub(crate) fn post<B: MemOpStream>(stream: &Stream<B>, batch: Batch) -> Result<Posted, Failure> {
    let mut batch = batch;
    loop {
        match stream.post(batch) {
            Ok(posted) => return Ok(posted),
            // Each of these batches is one submission, so nothing of it was posted.
            Err(PostError { batch: rest, source: PostFailure::WouldBlock { .. }, .. }) => batch = rest,
            Err(error) => return Err(error.to_string().into()),
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A backend that runs closures in stream order.
pub(super) trait HostStream: MemOpStream + Sized {
    fn launch(stream: &Stream<Self>, kernel: impl FnOnce() + Send + 'static) -> Result<(), Failure>;

    /// Records an event after everything so far; none if that has already been performed.
    fn mark(stream: &Stream<Self>) -> Result<Option<Event>, Failure>;
}

/// On the calling thread, work is done before each call returns.
impl HostStream for Cpu {
    fn launch(_: &Stream<Self>, kernel: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        kernel();
        Ok(())
    }

    fn mark(_: &Stream<Self>) -> Result<Option<Event>, Failure> {
        Ok(None)
    }
}

impl HostStream for SoftStream {
    fn launch(stream: &Stream<Self>, kernel: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        Ok(stream.launch(kernel)?)
    }

    fn mark(stream: &Stream<Self>) -> Result<Option<Event>, Failure> {
        Ok(Some(stream.record()?))
    }
}

pub(super) struct HostDriver<B: HostStream> {
    stream: Stream<B>,
    source: MemoryRegion,
    target: MemoryRegion,
    rank: u64,
    checked: bool,
    results: SideResults,
    marks: VecDeque<Option<Event>>,
}

impl<B: HostStream> HostDriver<B> {
    pub(super) fn new(
        backend: B,
        options: &SideOptions,
        work: Work,
        rank: u64,
        pd: &ProtectionDomain,
        results: SideResults,
    ) -> Result<Self, Failure> {
        let size = usize::try_from(work.size)?;
        let source = MemoryRegion::allocate(pd, size, work.source)?;
        let target = MemoryRegion::allocate(pd, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(HostDriver {
            stream: stream(backend, options)?,
            source,
            target,
            rank,
            checked: options.check,
            results,
            marks: VecDeque::new(),
        })
    }
}

impl<B: HostStream> Driver for HostDriver<B> {
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
        let results = self.results.clone();
        B::launch(&self.stream, move || results.timing().begin())
    }

    fn produce(&mut self, sequence: u64) -> Result<(), Failure> {
        if !self.checked {
            return Ok(());
        }
        let (source, pattern) = (self.source.clone(), Pattern::new(self.rank, sequence));
        B::launch(&self.stream, move || pattern.fill(&source, 0, source.len()))
    }

    fn post(&mut self, batch: Batch) -> Result<Posted, Failure> {
        post(&self.stream, batch)
    }

    fn arrived(&mut self, sequence: u64, what: Arrival) -> Result<(), Failure> {
        let check = (self.checked && what.is_checked).then(|| Pattern::new(1 - self.rank, sequence));
        let is_timed = self.rank == 0 && what.is_timed;
        let (target, results) = (self.target.clone(), self.results.clone());
        B::launch(&self.stream, move || {
            if let Some(Err(at)) = check.map(|pattern| pattern.check(&target, 0, 0, target.len())) {
                results.wrong(sequence, at as u64);
            }
            if is_timed {
                results.timing().exchanged();
            }
        })
    }

    fn mark(&mut self, _count: u64) -> Result<(), Failure> {
        self.marks.push_back(B::mark(&self.stream)?);
        Ok(())
    }

    fn pass(&mut self) -> Result<(), Failure> {
        if let Some(Some(mark)) = self.marks.pop_front() {
            mark.synchronize();
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }

    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        self.stream.doorbells(queue_pair)
    }
}

//! The trait of what performs a side's work: a software stream, the calling thread, or a GPU.

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

/// Chunks that are enqueued at a time: while one is performed, the CPU prepares the next.
pub(crate) const CHUNKS: u64 = 2;

/// What a driver is for.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Bytes of the message that is sent, and of that which arrives.
    pub(crate) size: u64,
    /// Exchanges of a chunk.
    pub(crate) batch: u64,
    /// What the other side may do to the message that is sent.
    pub(crate) source: Access,
}

/// Holds a side's messages, and performs its work in the order of the calls: at once, or later.
///
/// Work comes in *chunks* of exchanges, of which [`CHUNKS`] may be under way.
pub(crate) trait Driver {
    /// For the other side: where messages arrive, and the message that is sent, where it may read it.
    fn remotes(&self) -> [RemoteMemory; 2];
    /// A part of the message that is sent.
    fn source(&self, range: Range<usize>) -> Result<Slice, Failure>;
    /// A part of where messages arrive.
    fn target(&self, range: Range<usize>) -> Result<Slice, Failure>;

    /// The first exchange begins here.
    fn begin(&mut self) -> Result<(), Failure>;
    /// Fills the message that is sent, where messages are checked.
    fn produce(&mut self, sequence: u64) -> Result<(), Failure>;
    /// Rings cards, and waits for what they do. Takes its time where as much is outstanding as the
    /// stream takes.
    fn post(&mut self, batch: Batch) -> Result<Posted, Failure>;
    /// Checks the message that arrived, where messages are checked, and takes the time of the
    /// exchange on the first side.
    fn consume(&mut self, sequence: u64) -> Result<(), Failure> {
        self.arrived(sequence, Arrival { is_checked: true, is_timed: true })
    }
    /// As [`Self::consume`], or only one part of it.
    fn arrived(&mut self, sequence: u64, what: Arrival) -> Result<(), Failure>;

    /// The chunk ends here, after `count` exchanges.
    fn mark(&mut self, count: u64) -> Result<(), Failure>;
    /// Waits until the oldest chunk under way has been performed; what its kernels found is then in
    /// the results. The CPU sleeps meanwhile.
    fn pass(&mut self) -> Result<(), Failure>;
    /// Waits until everything has been performed.
    fn synchronize(&mut self) -> Result<(), Failure>;

    /// How the doorbells of a queue pair reach the card.
    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError>;
}

/// What is done with a message that arrived.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) is_checked: bool,
    pub(crate) is_timed: bool,
}

/// A stream on a backend, with the options that concern it.
pub(crate) fn stream<B: MemOpStream>(backend: B, options: &SideOptions) -> Result<Stream<B>, Failure> {
    Ok(Stream::with_options(backend, StreamOptions::default().doorbells(options.doorbells.into()))?)
}

/// Posts a batch; waits, where the stream has as many outstanding as it takes.
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

/// What performs closures in the order of a stream.
pub(super) trait HostStream: MemOpStream + Sized {
    fn launch(stream: &Stream<Self>, kernel: impl FnOnce() + Send + 'static) -> Result<(), Failure>;

    /// An event after everything so far; none where that has been performed already.
    fn mark(stream: &Stream<Self>) -> Result<Option<Event>, Failure>;
}

/// The calling thread: the work is done before each call returns.
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

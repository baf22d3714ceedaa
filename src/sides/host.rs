//! Messages in host memory, and the kernels that work on them there: closures, which a software
//! stream performs, or the calling thread.

use super::driver::{self, Arrival, Driver, Work};
use super::findings::Findings;
use crate::cli::SideOptions;
use crate::failure::Failure;
use crate::pattern::Pattern;
use gdsync::memop::{MemOpStream, StreamError};
use gdsync::stream::{Cpu, Doorbells, Event, Posted};
use gdsync::{
    Access, Batch, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, Slice, SoftStream, Stream,
};
use std::collections::VecDeque;
use std::ops::Range;

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
    findings: Findings,
    marks: VecDeque<Option<Event>>,
}

impl<B: HostStream> HostDriver<B> {
    pub(super) fn new(
        backend: B,
        options: &SideOptions,
        work: Work,
        rank: u64,
        pd: &ProtectionDomain,
        findings: Findings,
    ) -> Result<Self, Failure> {
        let size = usize::try_from(work.size)?;
        let source = MemoryRegion::allocate(pd, size, work.source)?;
        let target = MemoryRegion::allocate(pd, size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(HostDriver {
            stream: driver::stream(backend, options)?,
            source,
            target,
            rank,
            checked: options.check,
            findings,
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
        let findings = self.findings.clone();
        B::launch(&self.stream, move || findings.timing().begin())
    }

    fn produce(&mut self, sequence: u64) -> Result<(), Failure> {
        if !self.checked {
            return Ok(());
        }
        let (source, pattern) = (self.source.clone(), Pattern::new(self.rank, sequence));
        B::launch(&self.stream, move || pattern.fill(&source, 0, source.len()))
    }

    fn post(&mut self, batch: Batch) -> Result<Posted, Failure> {
        driver::post(&self.stream, batch)
    }

    fn arrived(&mut self, sequence: u64, what: Arrival) -> Result<(), Failure> {
        let check = (self.checked && what.is_checked).then(|| Pattern::new(1 - self.rank, sequence));
        let is_timed = self.rank == 0 && what.is_timed;
        let (target, findings) = (self.target.clone(), self.findings.clone());
        B::launch(&self.stream, move || {
            if let Some(Err(at)) = check.map(|pattern| pattern.check(&target, 0, 0, target.len())) {
                findings.wrong(sequence, at as u64);
            }
            if is_timed {
                findings.timing().exchanged();
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

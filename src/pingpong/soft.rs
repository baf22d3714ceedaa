//! A software stream performs the work.

use super::driver::{self, Driver};
use super::findings::Findings;
use super::host::HostMessages;
use crate::cli::PingpongOptions;
use crate::failure::Failure;
use gdsync::memop::StreamError;
use gdsync::memory::OutOfBounds;
use gdsync::stream::{Doorbells, Event, Posted};
use gdsync::{Batch, ProtectionDomain, QueuePair, RemoteMemory, Slice, SoftStream, Stream};
use std::collections::VecDeque;

pub(super) struct SoftDriver {
    stream: Stream<SoftStream>,
    messages: HostMessages,
    marks: VecDeque<Event>,
}

impl SoftDriver {
    pub(super) fn new(
        options: &PingpongOptions,
        rank: u64,
        pd: &ProtectionDomain,
        findings: Findings,
    ) -> Result<Self, Failure> {
        let stream = driver::stream(SoftStream::new()?, options)?;
        Ok(SoftDriver {
            stream,
            messages: HostMessages::new(options, rank, pd, findings)?,
            marks: VecDeque::new(),
        })
    }
}

impl Driver for SoftDriver {
    fn source(&self) -> Result<Slice, OutOfBounds> {
        self.messages.source.slice(..)
    }

    fn target(&self) -> Result<Slice, OutOfBounds> {
        self.messages.target.slice(..)
    }

    fn remote(&self) -> RemoteMemory {
        self.messages.target.remote()
    }

    fn begin(&mut self) -> Result<(), Failure> {
        Ok(self.stream.launch(self.messages.begin())?)
    }

    fn produce(&mut self, sequence: u64) -> Result<(), Failure> {
        match self.messages.produce(sequence) {
            Some(kernel) => Ok(self.stream.launch(kernel)?),
            None => Ok(()),
        }
    }

    fn post(&mut self, batch: Batch) -> Result<Posted, Failure> {
        driver::post(&self.stream, batch)
    }

    fn consume(&mut self, sequence: u64) -> Result<(), Failure> {
        Ok(self.stream.launch(self.messages.consume(sequence))?)
    }

    fn mark(&mut self, _count: u64) -> Result<(), Failure> {
        self.marks.push_back(self.stream.record()?);
        Ok(())
    }

    fn pass(&mut self) -> Result<(), Failure> {
        if let Some(mark) = self.marks.pop_front() {
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

//! The calling thread performs the work, before each call returns.

use super::driver::{self, Driver};
use super::findings::Findings;
use super::host::HostMessages;
use crate::cli::PingpongOptions;
use crate::failure::Failure;
use gdsync::memop::StreamError;
use gdsync::memory::OutOfBounds;
use gdsync::stream::{Cpu, Doorbells, Posted};
use gdsync::{Batch, ProtectionDomain, QueuePair, RemoteMemory, Slice, Stream};

pub(super) struct CpuDriver {
    stream: Stream<Cpu>,
    messages: HostMessages,
}

impl CpuDriver {
    pub(super) fn new(
        options: &PingpongOptions,
        rank: u64,
        pd: &ProtectionDomain,
        findings: Findings,
    ) -> Result<Self, Failure> {
        let stream = driver::stream(Cpu::new(), options)?;
        Ok(CpuDriver { stream, messages: HostMessages::new(options, rank, pd, findings)? })
    }
}

impl Driver for CpuDriver {
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
        self.messages.begin()();
        Ok(())
    }

    fn produce(&mut self, sequence: u64) -> Result<(), Failure> {
        if let Some(kernel) = self.messages.produce(sequence) {
            kernel();
        }
        Ok(())
    }

    fn post(&mut self, batch: Batch) -> Result<Posted, Failure> {
        driver::post(&self.stream, batch)
    }

    fn consume(&mut self, sequence: u64) -> Result<(), Failure> {
        self.messages.consume(sequence)();
        Ok(())
    }

    fn mark(&mut self, _count: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn pass(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }

    fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        self.stream.doorbells(queue_pair)
    }
}

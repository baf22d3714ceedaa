//! Who performs a side's work: a software stream, or the calling thread.

use crate::Failure;
use crate::cli::Trigger;
use gdsync::{Batch, Cpu, Event, PostError, PostFailure, Posted, SoftStream, Stream};
use std::time::Duration;

/// A stream of either kind.
pub(super) enum Runner {
    Stream(Stream<SoftStream>),
    Cpu(Stream<Cpu>),
}

impl Runner {
    pub(super) fn new(trigger: Trigger) -> Result<Self, Failure> {
        Ok(match trigger {
            Trigger::Stream => Runner::Stream(Stream::new(SoftStream::new()?)?),
            Trigger::Cpu => Runner::Cpu(Stream::new(Cpu::new())?),
        })
    }

    /// Runs a kernel in order.
    pub(super) fn launch(&self, kernel: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
        match self {
            Runner::Stream(stream) => stream.launch(kernel)?,
            Runner::Cpu(_) => kernel(),
        }
        Ok(())
    }

    /// Posts a batch; waits, where the stream has as many outstanding as it takes.
    pub(super) fn post(&self, batch: Batch) -> Result<Posted, Failure> {
        let mut batch = batch;
        loop {
            let result = match self {
                Runner::Stream(stream) => stream.post(batch),
                Runner::Cpu(stream) => stream.post(batch),
            };
            match result {
                Ok(posted) => return Ok(posted),
                // Each of these batches is one submission, so nothing of it was posted.
                Err(PostError { batch: rest, source: PostFailure::WouldBlock { .. }, .. }) => batch = rest,
                Err(error) => return Err(error.to_string().into()),
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Marks this point of the work.
    pub(super) fn mark(&self) -> Result<Option<Event>, Failure> {
        match self {
            Runner::Stream(stream) => Ok(Some(stream.record()?)),
            Runner::Cpu(_) => Ok(None),
        }
    }

    /// Waits until all is done.
    pub(super) fn synchronize(&self) -> Result<(), Failure> {
        match self {
            Runner::Stream(stream) => stream.synchronize()?,
            Runner::Cpu(stream) => stream.synchronize()?,
        }
        Ok(())
    }
}

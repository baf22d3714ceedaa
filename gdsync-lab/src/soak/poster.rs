//! What posts the sends of an end: the CPU, a stream, or kernels.

use super::gpu::{AnyStream, Gpu};
use super::kernels::Kernels;
use gdsync::QueuePair;
use gdsync_cli::failure::Failure;
use std::time::Duration;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Cpu,
    Stream,
    Kernels,
}

pub(super) enum Poster {
    Cpu,
    Stream(Box<AnyStream>),
    Kernels(Kernels),
}

impl Poster {
    pub(super) fn new(gpu: &Gpu, by: By) -> Result<Self, Failure> {
        Ok(match by {
            By::Cpu => Poster::Cpu,
            By::Stream => Poster::Stream(Box::new(gpu.stream()?)),
            By::Kernels => Poster::Kernels(Kernels::new(gpu)?),
        })
    }

    /// Kernels get the queue pair, which is connected.
    pub(super) fn attach(&mut self, queue_pair: &QueuePair) -> Result<(), Failure> {
        match self {
            Poster::Kernels(kernels) => kernels.attach(queue_pair),
            Poster::Cpu | Poster::Stream(_) => Ok(()),
        }
    }

    /// Kernels give it back.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        match self {
            Poster::Kernels(kernels) => kernels.detach(),
            Poster::Cpu | Poster::Stream(_) => Ok(()),
        }
    }

    /// A stream has passed everything. (What kernels have reported is in the ledger.)
    pub(super) fn is_idle(&self) -> Result<bool, Failure> {
        match self {
            Poster::Stream(stream) => Ok(stream.synchronize_timeout(Duration::ZERO)?),
            Poster::Cpu | Poster::Kernels(_) => Ok(true),
        }
    }
}

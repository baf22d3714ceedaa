//! The stream behind a Python object: software or CUDA.

use gdsync::stream::{PostError, Posted};
use gdsync::{CudaStream, SoftStream};
use std::time::Duration;

pub(crate) enum Backend {
    Soft(gdsync::Stream<SoftStream>),
    Cuda(gdsync::Stream<CudaStream>),
}

/// Calls a method on a stream of either kind.
macro_rules! on {
    ($backend:expr, $stream:ident => $call:expr) => {
        match $backend {
            $crate::backend::Backend::Soft($stream) => $call,
            $crate::backend::Backend::Cuda($stream) => $call,
        }
    };
}
pub(crate) use on;

impl Backend {
    pub(crate) fn post(&self, batch: gdsync::Batch, timeout: Duration) -> Result<Posted, PostError> {
        on!(self, stream => stream.post_timeout(batch, timeout))
    }
}

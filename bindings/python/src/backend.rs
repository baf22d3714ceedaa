//! The stream behind a Python object: software or CUDA.

use crate::errors::{ExceptionClass, Failure};
use crate::interrupt::Limit;
use gdsync::stream::{PostError, Posted};
use gdsync::{CudaStream, SoftStream};
use pyo3::prelude::*;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) struct Backend {
    pub(crate) kind: Kind,
    /// The exception of a function that the stream ran, by which it failed.
    raised: Arc<OnceLock<PyErr>>,
}

pub(crate) enum Kind {
    Soft(gdsync::Stream<SoftStream>),
    Cuda(gdsync::Stream<CudaStream>),
}

/// Calls a method on a stream of either kind.
macro_rules! on {
    ($backend:expr, $stream:ident => $call:expr) => {
        match &$backend.kind {
            $crate::backend::Kind::Soft($stream) => $call,
            $crate::backend::Kind::Cuda($stream) => $call,
        }
    };
}
pub(crate) use on;

impl From<Kind> for Backend {
    fn from(kind: Kind) -> Self {
        Backend { kind, raised: Arc::default() }
    }
}

impl Backend {
    pub(crate) fn post(&self, batch: gdsync::Batch, timeout: Duration) -> Result<Posted, PostError> {
        on!(self, stream => stream.post_timeout(batch, timeout))
    }

    /// Returns the error of a wait for the stream that has timed out, with the wait that blocks the stream, and its cause.
    pub(crate) fn is_late(&self, limit: Limit) -> Failure {
        limit.passed_because("the stream", || on!(self, stream => stream.explain_wait()))
    }

    /// Returns where a function that the stream runs leaves its exception. The function does not own the stream, which owns it.
    pub(crate) fn raised(&self) -> Arc<OnceLock<PyErr>> {
        self.raised.clone()
    }

    /// Adds the exception of a function that the stream ran to the failure of the stream, as its cause.
    pub(crate) fn with_cause(&self, py: Python<'_>, failure: Failure) -> Failure {
        let Failure::Of(ExceptionClass::StreamFailed, _) = failure else { return failure };
        let error = PyErr::from(failure);
        error.set_cause(py, self.raised.get().map(|raised| raised.clone_ref(py)));
        Failure::Python(error)
    }
}

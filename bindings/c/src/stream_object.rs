//! Operations on a software or CUDA stream.

use crate::batch::Target;
use crate::error::{CallError, cause_of};
use gdsync::memop::{MemOpStream, StreamError};
use gdsync::persistent::{self, Request};
use gdsync::stream::{PostFailure, Posted};
use gdsync::{CudaStream, QueuePair, SoftStream, Stream, WorkRequest};
use std::sync::OnceLock;
use std::time::Duration;

#[derive(Debug)]
pub(crate) enum StreamObject {
    Soft(Stream<SoftStream>),
    /// With the driver's id, which is unique, unlike handles. None if the program keeps the stream (`streams::keep`), whose handle is not
    /// reused meanwhile.
    Cuda(Stream<CudaStream>, Option<u64>),
}

/// Evaluates an expression with the [`Stream`] of a [`StreamObject`].
macro_rules! on {
    ($object:expr, $stream:ident => $value:expr) => {
        match $object {
            StreamObject::Soft($stream) => $value,
            StreamObject::Cuda($stream, _) => $value,
        }
    };
}
pub(crate) use on;

/// How long a post waits while the stream has its maximum of outstanding submissions. libgdsync blocks in this case.
pub(crate) fn patience() -> Duration {
    static PATIENCE: OnceLock<Duration> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        const DEFAULT: u64 = 60_000;
        let said = std::env::var("GDSYNC_POST_TIMEOUT_MS").ok().and_then(|value| value.parse().ok());
        Duration::from_millis(said.unwrap_or(DEFAULT))
    })
}

impl StreamObject {
    #[inline(always)]
    pub(crate) fn queue_send(
        &self,
        queue_pair: &QueuePair,
        request: WorkRequest<'_>,
    ) -> Result<Posted, PostFailure> {
        on!(self, stream => stream.queue_send(queue_pair, request))
    }

    /// Waits for persistent requests, in the stream's order.
    pub(crate) fn wait_all(&self, list: &mut [&mut dyn Request]) -> Result<(), CallError> {
        on!(self, stream => persistent::wait_all(list, stream, patience())).map(drop).map_err(Into::into)
    }

    /// The number of submissions that the stream has not passed.
    pub(crate) fn outstanding(&self) -> usize {
        on!(self, stream => stream.outstanding())
    }

    /// Waits until the stream has performed everything.
    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<(), CallError> {
        if on!(self, stream => stream.synchronize_timeout(timeout))? {
            return Ok(());
        }
        let cause = cause_of(timeout, || on!(self, stream => stream.explain_wait()));
        let cause = cause.or_else(|| on!(self, stream => stream.oldest_wait()));
        Err(CallError::TimedOut { timeout_ms: timeout.as_millis() as u64, cause })
    }

    /// Lets the stream go on at waits that a death has ended.
    pub(crate) fn go_on(&self) {
        on!(self, stream => stream.go_on());
    }

    /// The properties of the stream that batches depend on.
    pub(crate) fn target(&self) -> Target {
        let has_flush = on!(self, stream => stream.caps().flush_remote);
        Target { is_cuda: matches!(self, StreamObject::Cuda(..)), has_flush }
    }

    /// The software stream, which can run functions.
    pub(crate) fn soft(&self) -> Option<&Stream<SoftStream>> {
        match self {
            StreamObject::Soft(stream) => Some(stream),
            StreamObject::Cuda(..) => None,
        }
    }

    /// Translates a host address for the stream.
    pub(crate) fn translate(&self, addr: gdsync::memory::HostAddr, len: usize) -> Result<u64, StreamError> {
        on!(self, stream => stream.translate(addr, len)).map(gdsync::memory::StreamAddr::get)
    }
}

//! What a stream does, of either kind.

use crate::batch::Target;
use crate::error::CallError;
use gdsync::memop::{MemOpStream, StreamError};
use gdsync::persistent::{self, Request};
use gdsync::stream::{PostFailure, Posted};
use gdsync::{CudaStream, QueuePair, SoftStream, Stream, WorkRequest};
use std::sync::OnceLock;
use std::time::Duration;

/// A stream of either kind.
#[derive(Debug)]
pub(crate) enum StreamObject {
    Soft(Stream<SoftStream>),
    /// With the driver's number for it, which no other stream gets: handles are reused. None where the
    /// program keeps the stream (`streams::keep`): its handle is no other one's.
    Cuda(Stream<CudaStream>, Option<u64>),
}

/// Evaluates an expression with the [`Stream`] of a [`StreamObject`], of either kind.
macro_rules! on {
    ($object:expr, $stream:ident => $value:expr) => {
        match $object {
            StreamObject::Soft($stream) => $value,
            StreamObject::Cuda($stream, _) => $value,
        }
    };
}
pub(crate) use on;

/// How long a post waits while the stream has as many submissions outstanding as it takes:
/// libgdsync's blocks there.
pub(crate) fn patience() -> Duration {
    static PATIENCE: OnceLock<Duration> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        const DEFAULT: u64 = 60_000;
        let said = std::env::var("GDSYNC_POST_TIMEOUT_MS").ok().and_then(|value| value.parse().ok());
        Duration::from_millis(said.unwrap_or(DEFAULT))
    })
}

impl StreamObject {
    /// Prepares a send and posts it.
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

    /// Submissions that it has not passed.
    pub(crate) fn outstanding(&self) -> usize {
        on!(self, stream => stream.outstanding())
    }

    /// Waits until it has performed everything.
    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<(), CallError> {
        let (idle, at) = on!(self, stream => (stream.synchronize_timeout(timeout)?, stream.oldest_wait()));
        let timeout_ms = timeout.as_millis() as u64;
        if idle { Ok(()) } else { Err(CallError::TimedOut { timeout_ms, at }) }
    }

    /// What batches for it have to look like.
    pub(crate) fn target(&self) -> Target {
        let has_flush = on!(self, stream => stream.caps().flush_remote);
        Target { is_cuda: matches!(self, StreamObject::Cuda(..)), has_flush }
    }

    /// A software stream, to run a function on.
    pub(crate) fn soft(&self) -> Option<&Stream<SoftStream>> {
        match self {
            StreamObject::Soft(stream) => Some(stream),
            StreamObject::Cuda(..) => None,
        }
    }

    /// Its address of host memory.
    pub(crate) fn translate(&self, addr: gdsync::memory::HostAddr, len: usize) -> Result<u64, StreamError> {
        on!(self, stream => stream.translate(addr, len)).map(gdsync::memory::StreamAddr::get)
    }
}

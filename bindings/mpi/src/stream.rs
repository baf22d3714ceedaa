//! Software and CUDA streams, and posts that wait until there is room.

use crate::error::{Class, Failure};
use crate::{device, statistics};
use gdsync::cudarc::driver::sys::CUstream;
use gdsync::memop::MemOpStream;
use gdsync::persistent::{ListError, PersistentError, Request, start_all, start_all_by_trigger, wait_all};
use gdsync::stream::{PostFailure, Posted, StreamOptions};
use gdsync::{Batch, CudaStream, QueueError, SoftStream, Stream, Trigger};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a thread waits for a stream before it progresses matches.
pub(crate) const WAIT_SLICE: Duration = Duration::from_millis(20);
/// How long a thread sleeps while its stream or queue pair is full. A full one has dozens of starts before it, so it does not run
/// dry meanwhile.
pub(crate) const ROOM_POLL: Duration = Duration::from_micros(50);
/// How long to wait for a silent peer before the first probe, and between probes.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// How long the end of the program waits for a stream, and again after it has aborted the stream's work.
pub(crate) const FINALIZE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum AnyStream {
    Soft(Stream<SoftStream>),
    Cuda(Stream<CudaStream>),
}

/// Evaluates an expression with the [`Stream`] of an [`AnyStream`].
macro_rules! with_stream {
    ($stream:expr, $each:ident => $value:expr) => {
        match $stream {
            AnyStream::Soft($each) => $value,
            AnyStream::Cuda($each) => $value,
        }
    };
}

impl AnyStream {
    pub(crate) fn software() -> Result<Self, Failure> {
        let options = StreamOptions::default().collect_from(device::collect_from()?);
        Ok(AnyStream::Soft(Stream::with_options(SoftStream::new()?, options)?))
    }

    /// # Safety
    /// The stream is alive, and its context outlives the process's use of the library. If `stays`, the stream is alive until the
    /// returned value is dropped: the library queries the driver for its progress, and posts need not mark it. Otherwise nothing
    /// is posted once the program has destroyed the stream.
    pub(crate) unsafe fn cuda(stream: CUstream, stays: bool) -> Result<Self, Failure> {
        // SAFETY: the caller keeps the stream alive, with `stays` as long as the result, otherwise for all posts; and its context.
        let backend =
            unsafe { if stays { CudaStream::from_raw(stream, ()) } else { CudaStream::borrow_raw(stream) } };
        let backend = backend.map_err(|error| Failure::new(Class::Other, error))?;
        let options = StreamOptions::default().collect_from(device::collect_from()?);
        Ok(AnyStream::Cuda(Stream::with_options(backend, options)?))
    }

    /// Returns the software stream; only software streams run functions of the CPU.
    pub(crate) fn soft(&self, what: &str) -> Result<&Stream<SoftStream>, Failure> {
        match self {
            AnyStream::Soft(stream) => Ok(stream),
            AnyStream::Cuda(_) => {
                let text = format!("{what} on a queue of a CUDA stream is not supported: use a THREAD queue");
                Err(Failure::new(Class::Unsupported, text))
            }
        }
    }

    pub(crate) fn start(
        &self,
        list: &mut [&mut dyn Request],
        by: Option<&Trigger>,
        meanwhile: impl FnMut(),
    ) -> Result<(), Failure> {
        match by {
            None => with_stream!(self, stream => start(stream, list, meanwhile)),
            Some(trigger) => with_stream!(self, stream => start_by(trigger, stream, list, meanwhile)),
        }
    }

    pub(crate) fn wait(&self, list: &mut [&mut dyn Request], meanwhile: impl FnMut()) -> Result<(), Failure> {
        with_stream!(self, stream => wait(stream, list, meanwhile))
    }

    pub(crate) fn post(&self, batch: Batch, meanwhile: impl FnMut()) -> Result<(), Failure> {
        with_stream!(self, stream => post(stream, batch, meanwhile))
    }

    /// Returns whether a CUDA stream, which is alive, has also done what the program enqueued last; false a little later.
    pub(crate) fn is_empty(&self) -> Result<bool, Failure> {
        let AnyStream::Cuda(stream) = self else { return Ok(true) };
        let is_empty = stream.query().map_err(|error| Failure::new(Class::Other, error))?;
        if !is_empty {
            std::thread::sleep(ROOM_POLL);
        }
        Ok(is_empty)
    }

    /// Waits until the stream has performed everything of this library. Returns false after the timeout.
    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<bool, Failure> {
        Ok(with_stream!(self, stream => stream.synchronize_timeout(timeout))?)
    }

    pub(crate) fn explain_wait(&self) -> Option<String> {
        with_stream!(self, stream => stream.explain_wait())
    }
}

/// Starts a list, retrying until there is room. Calls `meanwhile` every [`PROBE_INTERVAL`].
pub(crate) fn start<B: MemOpStream>(
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    retry_until_room(|| start_all(list, stream, Duration::ZERO), meanwhile)
}

/// As [`start`], by one write of a trigger's word.
fn start_by<B: MemOpStream>(
    trigger: &Trigger,
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    retry_until_room(|| start_all_by_trigger(list, stream, trigger, Duration::ZERO), meanwhile)
}

/// Makes a stream wait for a list; as [`start`].
pub(crate) fn wait<B: MemOpStream>(
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    retry_until_room(|| wait_all(list, stream, Duration::ZERO), meanwhile)
}

/// Posts a batch; as [`start`].
pub(crate) fn post<B: MemOpStream>(
    stream: &Stream<B>,
    batch: Batch,
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let mut rest = batch;
    let attempt = || {
        stream.post_timeout(std::mem::replace(&mut rest, Batch::new()), Duration::ZERO).map_err(|error| {
            rest = error.batch;
            ListError { index: None, source: PersistentError::Post(error.source) }
        })
    };
    retry_until_room(attempt, meanwhile)
}

fn retry_until_room(
    mut post: impl FnMut() -> Result<Posted, ListError>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let mut probe_at = Instant::now() + PROBE_INTERVAL;
    loop {
        match post() {
            Ok(posted) => {
                statistics::posted(posted);
                return Ok(());
            }
            Err(error) if is_lack_of_room(&error.source) => {
                progress_matches();
                std::thread::sleep(ROOM_POLL);
                if Instant::now() >= probe_at {
                    probe_at += PROBE_INTERVAL;
                    meanwhile();
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether a retry may succeed.
pub(crate) fn is_lack_of_room(error: &PersistentError) -> bool {
    matches!(
        error,
        PersistentError::Queue(QueueError::Full(_))
            | PersistentError::Post(PostFailure::Queue(QueueError::Full(_)) | PostFailure::WouldBlock { .. })
    )
}

/// The C part's function that progresses matches.
static MATCHES: OnceLock<extern "C" fn()> = OnceLock::new();

/// Sets what waiting threads call; later calls change nothing. The function may use requests that are neither started nor being
/// started.
pub(crate) fn set_match_progress(matches: extern "C" fn()) {
    let _known = MATCHES.set(matches);
}

/// Progresses matches while a thread of the program waits.
pub(crate) fn progress_matches() {
    if let Some(matches) = MATCHES.get() {
        matches();
    }
}

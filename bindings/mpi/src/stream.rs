//! Streams of either kind, and posts that wait for room.

use crate::error::{Class, Failure};
use crate::{device, progress, statistics};
use gdsync::cudarc::driver::sys::CUstream;
use gdsync::memop::MemOpStream;
use gdsync::persistent::{ListError, PersistentError, Request, start_all, start_all_by_trigger, wait_all};
use gdsync::stream::{PostFailure, Posted, StreamOptions};
use gdsync::{Batch, CudaStream, QueueError, SoftStream, Stream, Trigger};
use std::time::{Duration, Instant};

/// How long a thread waits at a time, before it does what else there is to do.
pub(crate) const SLICE: Duration = Duration::from_millis(20);
/// How long a thread that is ahead of its stream sleeps before it looks for room. Where there is none, the stream has
/// dozens of starts before it, so it does not run dry meanwhile.
pub(crate) const AHEAD: Duration = Duration::from_micros(50);
/// How long a silent peer is waited for before it is probed, and between probes.
pub(crate) const PROBE_AFTER: Duration = Duration::from_millis(500);

/// How long the end of the program waits for a stream, and again after its work was aborted.
pub(crate) const LAST: Duration = Duration::from_secs(1);

/// The stream of a queue.
#[derive(Debug)]
pub(crate) enum AnyStream {
    Soft(Stream<SoftStream>),
    Cuda(Stream<CudaStream>),
}

/// Evaluates an expression with the [`Stream`] of an [`AnyStream`], of either kind.
macro_rules! on {
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
    /// The stream is alive, and its context stays as long as the process uses the library. One that `stays` is alive
    /// until the returned value is dropped: then the driver is asked about it, and no post has to say how far it is.
    /// Nothing is posted to another one that the program has destroyed.
    pub(crate) unsafe fn cuda(stream: CUstream, stays: bool) -> Result<Self, Failure> {
        // SAFETY: the caller's.
        let backend = unsafe { CudaStream::from_raw(stream, ()) };
        let backend = backend.map_err(|error| Failure::new(Class::Other, error))?;
        let options = StreamOptions::default().always_signal(!stays).collect_from(device::collect_from()?);
        Ok(AnyStream::Cuda(Stream::with_options(backend, options)?))
    }

    /// The software stream, which alone runs functions of the CPU.
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
            None => on!(self, stream => start(stream, list, meanwhile)),
            Some(trigger) => on!(self, stream => start_by(trigger, stream, list, meanwhile)),
        }
    }

    pub(crate) fn wait(&self, list: &mut [&mut dyn Request], meanwhile: impl FnMut()) -> Result<(), Failure> {
        on!(self, stream => wait(stream, list, meanwhile))
    }

    /// Posts a batch; as [`post`].
    pub(crate) fn post(&self, batch: Batch, meanwhile: impl FnMut()) -> Result<(), Failure> {
        on!(self, stream => post(stream, batch, meanwhile))
    }

    /// Waits until it has performed everything. False if that takes longer.
    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<bool, Failure> {
        Ok(on!(self, stream => stream.synchronize_timeout(timeout))?)
    }

    /// What it has waited for longest.
    pub(crate) fn oldest_wait(&self) -> Option<String> {
        on!(self, stream => stream.oldest_wait())
    }
}

/// Starts a list, and waits for room as long as it takes; `meanwhile` is called every [`PROBE_AFTER`].
pub(crate) fn start<B: MemOpStream>(
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    patiently(|| start_all(list, stream, Duration::ZERO), meanwhile)
}

/// The same by one write of a trigger's word.
fn start_by<B: MemOpStream>(
    trigger: &Trigger,
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    patiently(|| start_all_by_trigger(list, stream, trigger, Duration::ZERO), meanwhile)
}

/// Has a stream wait for a list; as [`start`].
pub(crate) fn wait<B: MemOpStream>(
    stream: &Stream<B>,
    list: &mut [&mut dyn Request],
    meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    patiently(|| wait_all(list, stream, Duration::ZERO), meanwhile)
}

/// Posts a batch, and waits for room as long as it takes; as [`start`].
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
    patiently(attempt, meanwhile)
}

fn patiently(
    mut post: impl FnMut() -> Result<Posted, ListError>,
    mut meanwhile: impl FnMut(),
) -> Result<(), Failure> {
    let mut probe_at = Instant::now() + PROBE_AFTER;
    loop {
        match post() {
            Ok(posted) => {
                statistics::posted(posted);
                return Ok(());
            }
            Err(error) if is_lack_of_room(&error.source) => {
                progress::go_on();
                std::thread::sleep(AHEAD);
                if Instant::now() >= probe_at {
                    probe_at += PROBE_AFTER;
                    meanwhile();
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waiting may help.
pub(crate) fn is_lack_of_room(error: &PersistentError) -> bool {
    matches!(
        error,
        PersistentError::Queue(QueueError::Full(_))
            | PersistentError::Post(PostFailure::Queue(QueueError::Full(_)) | PostFailure::WouldBlock { .. })
    )
}

//! The handle of a CUDA stream, and the calls on it other than submitting.

use crate::cuda::gate::Busy;
use crate::cuda::{CudaError, Event, check};
use crate::memory::EndProbe;
use cudarc::driver::{CudaStream as CudarcStream, sys};
use gdsync_gdr::{Context, driver};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

const NOT_CAPTURING: sys::CUstreamCaptureStatus = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

#[derive(Debug)]
pub(crate) struct StreamHandle {
    pub(crate) raw: sys::CUstream,
    /// The thread of a per-thread default stream, which is a different stream in every thread.
    thread: Option<ThreadId>,
    /// Keeps the stream alive.
    owner: Box<dyn Any + Send + Sync>,
    pub(crate) busy: Busy,
    /// Set for a borrowed stream, which the program may have destroyed: the driver is asked about this instead.
    pub(crate) last: Option<Arc<LastSubmission>>,
    /// True if the program promised never to capture the stream.
    never_captured: AtomicBool,
}

// SAFETY: the driver allows a stream to be used from any thread; the per-thread stream is checked.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    /// The handle of a stream of the context. Without an owner, the program may destroy the stream at any time.
    pub(crate) fn new(
        context: Context,
        raw: sys::CUstream,
        owner: Option<impl Send + Sync + 'static>,
    ) -> Result<Arc<Self>, CudaError> {
        let thread = (raw as usize == PER_THREAD).then(|| thread::current().id());
        let last = owner.is_none().then(|| LastSubmission::new(context)).transpose()?;
        Ok(Arc::new(StreamHandle {
            raw,
            thread,
            owner: Box::new(owner),
            busy: Busy::default(),
            last: last.map(Arc::new),
            never_captured: AtomicBool::new(false),
        }))
    }

    /// The stream of cudarc from which the handle was made, if any.
    pub(crate) fn cudarc(&self) -> Option<&Arc<CudarcStream>> {
        let stream = self.owner.downcast_ref::<Option<Arc<CudarcStream>>>()?.as_ref();
        // A stream of cudarc may also be the owner of another, raw stream.
        stream.filter(|stream| stream.cu_stream() == self.raw)
    }

    /// Null, `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD`.
    pub(crate) fn is_default(&self) -> bool {
        self.raw as usize <= PER_THREAD
    }

    #[inline]
    pub(crate) fn check_thread(&self) -> Result<(), CudaError> {
        match self.thread {
            Some(thread) if thread != thread::current().id() => Err(CudaError::OtherThread),
            _ => Ok(()),
        }
    }

    /// Stops asking the driver whether the stream is being captured. On a default stream, which is a different stream
    /// in each context or thread, the promise has no effect.
    ///
    /// # Safety
    /// The stream is never captured.
    pub(crate) unsafe fn promise_no_capture(&self) {
        self.never_captured.store(!self.is_default(), Ordering::Relaxed);
    }

    /// Returns an error if the program promised never to capture the stream.
    pub(crate) fn check_may_be_captured(&self) -> Result<(), CudaError> {
        if self.never_captured.load(Ordering::Relaxed) { Err(CudaError::NeverCaptured) } else { Ok(()) }
    }

    /// Returns an error if the stream is being captured: work submitted now would be recorded instead.
    #[inline]
    pub(crate) fn check_not_capturing(&self) -> Result<(), CudaError> {
        if self.never_captured.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut status = NOT_CAPTURING;
        // SAFETY: the stream is alive (`CudaStream`'s promise), `status` a valid place.
        match unsafe { sys::cuStreamIsCapturing(self.raw, &mut status) } {
            sys::CUresult::CUDA_SUCCESS if status == NOT_CAPTURING => Ok(()),
            // The latter for the legacy stream, while another stream of the context is captured.
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => {
                Err(CudaError::Capturing)
            }
            result => check("cuStreamIsCapturing", result),
        }
    }

    /// Returns whether all enqueued work is done. The stream's context is current.
    pub(crate) fn query(&self) -> Result<bool, CudaError> {
        self.check_thread()?;
        let _mode = RelaxedCapture::new();
        self.check_not_capturing()?;
        // SAFETY: the stream is alive (`CudaStream`'s promise).
        match unsafe { sys::cuStreamQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuStreamQuery", result).map(|()| true),
        }
    }

    /// As [`Self::query`]; of a borrowed stream, whether all work of gdsync is done.
    pub(crate) fn has_ended(&self) -> Result<bool, CudaError> {
        self.last.as_ref().map_or_else(|| self.query(), |last| last.is_passed())
    }

    /// True if [`Self::has_ended`], or if the context has failed, and does nothing any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_ended().unwrap_or_else(|error| error.is_fatal())
    }

    /// Marks the end of a submission to a borrowed stream. If the driver refuses, the stream counts as busy until a later mark.
    ///
    /// # Safety
    /// The stream is alive and not being captured. The context of a default stream is current. No other thread submits.
    #[inline]
    pub(crate) unsafe fn mark_submission(&self) {
        let Some(last) = &self.last else { return };
        // SAFETY: the caller's.
        let marked = unsafe { last.event.record(self.raw) };
        last.is_unmarked.store(marked.is_err(), Ordering::Release);
        if let Err(error) = marked {
            tracing::error!(%error, "the end of a submission was not marked: what it names is kept");
        }
    }
}

/// The end of what gdsync has submitted to a stream.
#[derive(Debug)]
pub(crate) struct LastSubmission {
    event: Event,
    /// True if the event does not cover all submissions.
    is_unmarked: AtomicBool,
}

impl LastSubmission {
    fn new(context: Context) -> Result<Self, CudaError> {
        let _entered = context.enter()?;
        let _mode = RelaxedCapture::new();
        Ok(LastSubmission { event: Event::new(false)?, is_unmarked: AtomicBool::new(false) })
    }

    fn is_passed(&self) -> Result<bool, CudaError> {
        let _mode = RelaxedCapture::new();
        // Before the event is asked: if a mark has cleared it since, the event covers everything.
        Ok(!self.is_unmarked.load(Ordering::Acquire) && self.event.is_passed()?)
    }
}

impl EndProbe for LastSubmission {
    /// False if the context has failed: it is unknown which doorbells have rung.
    fn has_ended(&self) -> bool {
        self.is_passed().unwrap_or(false)
    }
}

/// While a value lives, the calling thread may make calls that a capture elsewhere in the program would forbid, such
/// as registering memory (`cuThreadExchangeStreamCaptureMode`).
#[derive(Debug)]
pub struct RelaxedCapture {
    /// None without a driver.
    before: Option<sys::CUstreamCaptureMode>,
    /// The capture mode is per thread.
    _not_send: PhantomData<*mut ()>,
}

impl RelaxedCapture {
    /// Sets the calling thread's mode. If the driver refuses, nothing changes, and its next call reports the reason.
    /// Without a driver, there is nothing to set.
    #[expect(clippy::new_without_default, reason = "it changes the thread's mode")]
    pub fn new() -> Self {
        let before = driver::initialise().is_ok().then(|| {
            let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: `mode` is a valid place, which receives the previous mode.
            unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
            mode
        });
        RelaxedCapture { before, _not_send: PhantomData }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mode) = &mut self.before {
            // SAFETY: as above.
            unsafe { sys::cuThreadExchangeStreamCaptureMode(mode) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handle that the driver does not know. Without a driver, calling it panics.
    fn handle(raw: usize) -> Arc<StreamHandle> {
        // SAFETY: no context, which a stream of these tests does not use.
        let none = unsafe { Context::from_raw(std::ptr::null_mut()) };
        StreamHandle::new(none, raw as sys::CUstream, Some(())).unwrap()
    }

    #[test]
    fn a_stream_that_is_never_captured_is_not_asked_about_and_refuses_to_be() {
        let stream = handle(0x1000);
        assert_eq!(stream.check_may_be_captured(), Ok(()));
        // SAFETY: there is no such stream, and nothing captures it.
        unsafe { stream.promise_no_capture() };
        assert_eq!(stream.check_not_capturing(), Ok(()));
        assert_eq!(stream.check_may_be_captured(), Err(CudaError::NeverCaptured));
    }

    #[test]
    fn a_thread_has_a_mode_if_there_is_a_driver() {
        let mode = RelaxedCapture::new();
        assert_eq!(mode.before.is_some(), driver::initialise().is_ok());
    }

    #[test]
    fn of_a_default_stream_the_promise_has_no_effect() {
        for raw in 0..=PER_THREAD {
            let stream = handle(raw);
            // SAFETY: nothing here captures a stream.
            unsafe { stream.promise_no_capture() };
            assert_eq!(stream.check_may_be_captured(), Ok(()));
        }
    }
}

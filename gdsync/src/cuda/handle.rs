//! The handle of a CUDA stream, and the calls on it other than submitting.

use crate::cuda::gate::Busy;
use crate::cuda::{CudaError, check};
use cudarc::driver::{CudaStream as CudarcStream, sys};
use gdsync_gdr::driver;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// Answers [`Self::is_idle`] if the driver cannot be asked.
    idle_probe: OnceLock<IdleProbe>,
    /// True if the program promised never to capture the stream.
    never_captured: AtomicBool,
}

struct IdleProbe(Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for IdleProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdleProbe({})", (self.0)())
    }
}

// SAFETY: the driver allows a stream to be used from any thread; the per-thread stream is checked.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}

impl StreamHandle {
    pub(crate) fn new(raw: sys::CUstream, owner: impl Send + Sync + 'static) -> Arc<Self> {
        let owner = Box::new(owner);
        let thread = (raw as usize == PER_THREAD).then(|| thread::current().id());
        Arc::new(StreamHandle {
            raw,
            thread,
            owner,
            busy: Busy::default(),
            idle_probe: OnceLock::new(),
            never_captured: AtomicBool::new(false),
        })
    }

    /// Sets the probe that answers [`Self::is_idle`] instead of the driver. The first stays, as a stream has one
    /// backend.
    pub(crate) fn set_idle_probe(&self, probe: Arc<dyn Fn() -> bool + Send + Sync>) {
        let _ = self.idle_probe.set(IdleProbe(probe));
    }

    /// The stream of cudarc from which the handle was made, if any.
    pub(crate) fn cudarc(&self) -> Option<&Arc<CudarcStream>> {
        let stream = self.owner.downcast_ref::<Arc<CudarcStream>>();
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

    /// True if the GPU has done all enqueued work.
    pub(crate) fn is_idle(&self) -> bool {
        if let Some(probe) = self.idle_probe.get() {
            return (probe.0)();
        }
        self.query().unwrap_or_else(|error| error.is_fatal())
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
        StreamHandle::new(raw as sys::CUstream, ())
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

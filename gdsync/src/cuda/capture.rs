//! Calls of the driver while streams are captured.

use cudarc::driver::sys;
use std::marker::PhantomData;

/// While it lives, the calling thread may make calls that a capture elsewhere in the program would forbid it, such as
/// registering memory (`cuThreadExchangeStreamCaptureMode`).
#[derive(Debug)]
pub struct RelaxedCapture {
    before: sys::CUstreamCaptureMode,
    /// The mode is the thread's.
    _not_send: PhantomData<*mut ()>,
}

impl RelaxedCapture {
    /// Sets the calling thread's mode. Where the driver refuses, nothing changes: it says why with the next call.
    #[expect(clippy::new_without_default, reason = "it changes the thread's mode")]
    pub fn new() -> Self {
        let mut before = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `before` is a valid place, which receives the mode before.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut before) };
        RelaxedCapture { before, _not_send: PhantomData }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.before) };
    }
}

//! CUDA contexts: making one current for a thread, and the primary context of a GPU.

use crate::driver::{self, DriverError, check};
use crate::gpu::Gpu;
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// A context that stays alive as long as the value is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(sys::CUcontext);

// SAFETY: the driver allows use of a context from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A context that is current for this thread. Dropping it makes the previous context current again.
#[must_use = "the context is current only as long as this value"]
#[derive(Debug)]
pub struct Entered {
    pushed: bool,
    /// Only the thread that pushed the context may pop it.
    _thread: PhantomData<*const ()>,
}

impl Context {
    /// Wraps a raw handle.
    ///
    /// # Safety
    /// The context stays alive as long as the value and its copies are used.
    pub unsafe fn from_raw(context: sys::CUcontext) -> Self {
        Context(context)
    }

    /// Returns the driver's handle.
    pub fn as_raw(self) -> sys::CUcontext {
        self.0
    }

    /// Makes the context current for the calling thread.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn enter(self) -> Result<Entered, DriverError> {
        let pushed = current()? != self.0;
        if pushed {
            // SAFETY: the context is alive (`from_raw`).
            check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0) })?;
        }
        Ok(Entered { pushed, _thread: PhantomData })
    }

    /// Returns the context's GPU.
    ///
    /// # Errors
    /// [`DriverError::Call`].
    pub fn gpu(self) -> Result<Gpu, DriverError> {
        let _entered = self.enter()?;
        let mut device = 0;
        // SAFETY: `device` is a valid place; a context is current.
        check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) })?;
        Ok(Gpu::from_device(device))
    }

    /// Returns the thread's current context if it belongs to this GPU, otherwise the GPU's primary context, which is
    /// created if needed and never released.
    ///
    /// # Safety
    /// If the current context belongs to this GPU, it stays alive as long as the value and its copies are used.
    pub(crate) unsafe fn current_or_primary(gpu: Gpu) -> Result<Self, DriverError> {
        driver::initialise()?;
        let current = Context(current()?);
        if !current.0.is_null() && current.gpu()? == gpu {
            return Ok(current);
        }
        static PRIMARY: Mutex<BTreeMap<Gpu, Context>> = Mutex::new(BTreeMap::new());
        let mut primary = PRIMARY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = primary.get(&gpu) {
            return Ok(*known);
        }
        let mut made = std::ptr::null_mut();
        // SAFETY: `made` is a valid place; the driver checks the device. The context is never released.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut made, gpu.device()) })?;
        primary.insert(gpu, Context(made));
        Ok(Context(made))
    }
}

/// Returns the thread's current context, or null.
fn current() -> Result<sys::CUcontext, DriverError> {
    let mut current = std::ptr::null_mut();
    // SAFETY: `current` is a valid place.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
    Ok(current)
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: `popped` is a valid place. This pops the context that `enter` pushed.
            let result = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
            if let Err(error) = check("cuCtxPopCurrent", result) {
                tracing::debug!(%error, "a CUDA context was not popped");
            }
        }
    }
}

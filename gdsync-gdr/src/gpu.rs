//! GPUs and their properties, which need no context, and CUDA contexts: making one current for a thread, and a GPU's
//! primary context.

use crate::driver::{self, DriverError, check};
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

/// Room for a zero-terminated name or PCI address (`cuDeviceGetPCIBusId` needs at least 13 bytes).
const TEXT: usize = 256;

/// A GPU of this machine, identified by the driver's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gpu(sys::CUdevice);

impl Gpu {
    /// Returns the GPU with that number.
    ///
    /// # Errors
    /// [`DriverError::NoDevice`], and as [`driver::device_count`].
    pub fn new(ordinal: u32) -> Result<Self, DriverError> {
        let count = driver::device_count()?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(DriverError::NoDevice { ordinal, count })?;
        let mut device = 0;
        // SAFETY: `device` is a valid place.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, number) })?;
        Ok(Gpu(device))
    }

    /// Returns the GPU of a device handle. Calls on an unknown handle fail with [`DriverError::Call`], or with
    /// [`DriverError::NoDriver`] without a driver.
    pub fn from_device(device: sys::CUdevice) -> Self {
        Gpu(device)
    }

    /// Returns the GPU whose memory contains an address.
    ///
    /// # Errors
    /// [`DriverError::Call`] if the driver does not know the address; and as [`driver::initialise`].
    pub(crate) fn of_address(address: u64) -> Result<Self, DriverError> {
        driver::initialise()?;
        let mut ordinal = -1i32;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the attribute is an int; the driver checks the address.
        check("cuPointerGetAttribute", unsafe {
            sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)
        })?;
        // If GPUs can access all host memory, the driver knows host addresses, too, without a GPU.
        let host = |_| DriverError::call("cuPointerGetAttribute", sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        Gpu::new(u32::try_from(ordinal).map_err(host)?)
    }

    /// Returns the driver's handle.
    pub fn device(self) -> sys::CUdevice {
        self.0
    }

    /// Returns its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn name(self) -> Result<String, DriverError> {
        driver::initialise()?;
        text("cuDeviceGetName", |at, len| {
            // SAFETY: `at` has room for `len` bytes.
            unsafe { sys::cuDeviceGetName(at, len, self.0) }
        })
    }

    /// Returns its PCI address in Linux notation, lower case: `0000:3b:00.0`.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn pci_address(self) -> Result<String, DriverError> {
        driver::initialise()?;
        let address = text("cuDeviceGetPCIBusId", |at, len| {
            // SAFETY: `at` has room for `len` bytes.
            unsafe { sys::cuDeviceGetPCIBusId(at, len, self.0) }
        })?;
        Ok(address.to_lowercase())
    }

    /// Returns a driver attribute of the GPU.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn attribute(self, attribute: sys::CUdevice_attribute) -> Result<i32, DriverError> {
        driver::initialise()?;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the driver checks the handle.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.0) })?;
        Ok(value)
    }

    /// Returns true if streams and kernels of this GPU can be given access to another GPU's memory
    /// (`cuDeviceCanAccessPeer`). A GPU is not a peer of itself.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn can_access(self, peer: Gpu) -> Result<bool, DriverError> {
        driver::initialise()?;
        let mut can = 0;
        // SAFETY: `can` is a valid place; the driver checks the handles.
        check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.0, peer.0) })?;
        Ok(can != 0)
    }

    /// Returns a driver attribute of the path from this GPU to a peer.
    ///
    /// # Errors
    /// [`DriverError::Call`], and as [`driver::initialise`].
    pub fn peer_attribute(
        self,
        peer: Gpu,
        attribute: sys::CUdevice_P2PAttribute,
    ) -> Result<i32, DriverError> {
        driver::initialise()?;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the driver checks the handles.
        check("cuDeviceGetP2PAttribute", unsafe {
            sys::cuDeviceGetP2PAttribute(&mut value, attribute, self.0, peer.0)
        })?;
        Ok(value)
    }

    /// Returns true if the driver exports this GPU's memory as dma-bufs.
    pub(crate) fn makes_dma_bufs(self) -> bool {
        self.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)
            .is_ok_and(|value| value != 0)
    }

    /// Returns true if CPU and GPU caches are coherent, so that the CPU may cache the GPU's memory.
    pub(crate) fn is_coherent(self) -> bool {
        use sys::CUdevice_attribute as A;
        self.attribute(A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
            .is_ok_and(|value| value != 0)
    }
}

/// `GPU 1 (NVIDIA H200)`; the number alone if the driver does not return the name.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.0)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

/// Returns the zero-terminated string that a call writes.
fn text(
    call: &'static str,
    fill: impl FnOnce(*mut libc::c_char, libc::c_int) -> sys::CUresult,
) -> Result<String, DriverError> {
    let mut bytes = [0u8; TEXT];
    check(call, fill(bytes.as_mut_ptr().cast(), TEXT as libc::c_int))?;
    // Without a terminator, which the driver should never omit, the string is empty.
    Ok(CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned()))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_no_driver_knows_is_an_error() {
        let gpu = Gpu::from_device(1 << 20);
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
        let rank = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
        for refused in [
            gpu.name().err(),
            gpu.pci_address().err(),
            gpu.attribute(attribute).err(),
            gpu.can_access(gpu).err(),
            gpu.peer_attribute(gpu, rank).err(),
        ] {
            match refused {
                Some(DriverError::NoDriver | DriverError::TooOld { .. } | DriverError::Call { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(gpu.to_string(), format!("GPU {}", 1 << 20));
    }
}

//! What the driver says of itself and of a GPU, for those who map its memory.

use super::context::GpuContext;
use super::error::{CudaError, check};
use cudarc::driver::sys;

/// What `cuDriverGetVersion` says.
pub(crate) fn driver_version() -> Result<i32, CudaError> {
    super::driver()?;
    let mut found = 0;
    // SAFETY: `found` is a valid place.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut found) })?;
    Ok(found)
}

impl GpuContext {
    /// The GPU's PCI address, such as `0000:18:00.0`.
    pub(crate) fn bus_id(&self) -> Result<String, CudaError> {
        let mut text = [0u8; 32];
        // SAFETY: a place of so many bytes, which receives a zero-terminated text.
        check("cuDeviceGetPCIBusId", unsafe {
            sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as libc::c_int - 1, self.ordinal())
        })?;
        Ok(text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect())
    }

    /// True where CPU and GPU keep each other's caches coherent, so that the CPU may cache the GPU's memory.
    pub(crate) fn is_coherent(&self) -> bool {
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        let mut value = 0;
        // SAFETY: `value` is a valid place; the device is the driver's.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.ordinal()) };
        check("cuDeviceGetAttribute", result).is_ok() && value != 0
    }
}

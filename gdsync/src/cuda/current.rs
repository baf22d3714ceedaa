//! GPU memory of a program that has its own contexts, known by nothing but its address.

use super::context::GpuContext;
use super::error::{CudaError, check};
use super::memory::GpuMemory;
use cudarc::driver::sys;

impl GpuMemory {
    /// Wraps memory that the program owns, in the context that is current for this thread if that is of the memory's GPU, else in
    /// that GPU's primary context, which is made if there is none.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::TooOld`]; [`CudaError::Call`] where the driver does not know the address.
    ///
    /// # Safety
    /// As [`GpuMemory::from_raw`] with `()` for an owner; and the context that is current stays as long.
    pub unsafe fn from_current(address: u64, len: usize) -> Result<Self, CudaError> {
        super::driver()?;
        let owner = owner(address)?;
        let context = match current_of(owner)? {
            // SAFETY: it is current, so it is alive; that it stays is the caller's promise.
            Some(context) => unsafe { GpuContext::of_raw(context) }?,
            None => GpuContext::of(&super::context(owner)?)?,
        };
        // SAFETY: the caller's.
        Ok(unsafe { GpuMemory::of_program(&context, address, len) })
    }
}

/// The GPU that an address belongs to.
fn owner(address: u64) -> Result<u32, CudaError> {
    let mut ordinal = -1i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is an int; the driver checks the address.
    check("cuPointerGetAttribute", unsafe {
        sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)
    })?;
    // Where GPUs reach all of the host's memory, the driver knows host addresses, too, without an owner.
    let nobody = |_| CudaError::call("cuPointerGetAttribute", sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    u32::try_from(ordinal).map_err(nobody)
}

/// The current context, if it is one of this GPU.
fn current_of(owner: u32) -> Result<Option<sys::CUcontext>, CudaError> {
    let mut current = std::ptr::null_mut();
    // SAFETY: `current` is a valid place.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
    if current.is_null() {
        return Ok(None);
    }
    let mut device = -1;
    // SAFETY: `device` is a valid place; a context is current.
    check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&mut device) })?;
    Ok((u32::try_from(device) == Ok(owner)).then_some(current))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_no_gpus_is_refused() {
        let here = 0u64;
        // SAFETY: the driver is asked for the address first, and there it ends.
        let refused = unsafe { GpuMemory::from_current((&raw const here) as u64, 8) };
        match refused {
            Err(CudaError::NoDriver | CudaError::TooOld { .. } | CudaError::Call { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

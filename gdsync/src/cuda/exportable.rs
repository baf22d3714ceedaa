//! GPU memory that can be exported: physical memory with an address range of its own
//! (`cuMemCreate`, `cuMemMap`).

use crate::cuda::{CudaError, GpuContext, check};
use cudarc::driver::sys;
use std::collections::BTreeSet;

/// Access of a GPU to such memory.
pub(super) fn access(gpu: i32) -> sys::CUmemAccessDesc {
    let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu };
    sys::CUmemAccessDesc { location, flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

/// Such memory. Freed when dropped, which may wait for the GPU.
pub(super) struct Exportable {
    pub(super) address: u64,
    pub(super) size: usize,
    mapped: bool,
}

impl Exportable {
    /// At least `len` bytes, which `readers` reach, too. The context is current (the caller's).
    pub(super) fn allocate(
        context: &GpuContext,
        len: usize,
        readers: &BTreeSet<i32>,
    ) -> Result<Self, CudaError> {
        let location = access(context.ordinal).location;
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                // So that gdrdrv and cards may have it.
                gpuDirectRDMACapable: 1,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut granularity = 0;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: valid places.
        check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(&mut granularity, &properties, least)
        })?;
        let too_much = || CudaError::call("cuMemCreate", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let size = len.max(1).checked_next_multiple_of(granularity.max(1)).ok_or_else(too_much)?;

        let mut handle = 0;
        // SAFETY: valid places.
        check("cuMemCreate", unsafe { sys::cuMemCreate(&mut handle, size, &properties, 0) })?;
        let mapped = Self::map(handle, size);
        // SAFETY: made just now. What is mapped keeps the memory from here on.
        let released = check("cuMemRelease", unsafe { sys::cuMemRelease(handle) });
        let mapped = mapped?;
        released?;
        [context.ordinal].iter().chain(readers).try_for_each(|gpu| mapped.share(*gpu))?;
        Ok(mapped)
    }

    fn map(handle: sys::CUmemGenericAllocationHandle, size: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: a valid place; an address of the driver's choice.
        check("cuMemAddressReserve", unsafe { sys::cuMemAddressReserve(&mut address, size, 0, 0, 0) })?;
        // From here on, dropping it undoes what was done.
        let mut memory = Exportable { address, size, mapped: false };
        // SAFETY: the range is reserved, and as large as the memory.
        check("cuMemMap", unsafe { sys::cuMemMap(address, size, 0, handle, 0) })?;
        memory.mapped = true;
        Ok(memory)
    }

    /// Gives a GPU access.
    pub(super) fn share(&self, gpu: i32) -> Result<(), CudaError> {
        let access = access(gpu);
        // SAFETY: mapped as long as `self`, and one entry.
        check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(self.address, self.size, &access, 1) })
    }
}

impl Drop for Exportable {
    fn drop(&mut self) {
        let undo = || -> Result<(), CudaError> {
            if self.mapped {
                // SAFETY: mapped by this value, which is being dropped: nothing uses it.
                check("cuMemUnmap", unsafe { sys::cuMemUnmap(self.address, self.size) })?;
            }
            // SAFETY: reserved by us, and nothing is mapped there.
            check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(self.address, self.size) })
        };
        if let Err(error) = undo() {
            tracing::debug!(%error, "GPU memory was not freed");
        }
    }
}

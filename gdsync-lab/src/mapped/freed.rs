//! The effect on a mapping of freeing its GPU memory: the mistake is made here on purpose.

use super::{Outcome, pattern};
use gdsync::advanced::mapped::{MappedMemory, MappingBackend, MappingError};
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::{CudaContext, sys};
use gdsync_cli::failure::Failure;
use std::sync::Arc;

/// Bytes of the memory: the granularity of exportable GPU memory.
const LEN: usize = 2 << 20;

/// Every access must succeed or be refused, and none may end the program.
pub(super) fn check(context: &Arc<CudaContext>, backend: MappingBackend) -> Result<Outcome, Failure> {
    context.bind_to_thread()?;
    let exportable = backend == MappingBackend::ResourceManager;
    let memory = if exportable { Memory::exportable(context)? } else { Memory::ordinary()? };
    // SAFETY: violated on purpose: the memory is freed before the handle is dropped. Only the mapping uses the handle,
    // and this check tests how a mapping stands that.
    let gpu = unsafe { GpuMemory::from_raw(context, memory.address, LEN, ()) }?;
    let mapped = MappedMemory::pin_by(backend, &gpu)?;
    let bytes = pattern(LEN, 3);
    mapped.copy_to(0, &bytes)?;
    drop(memory);
    let mut seen = vec![0; 4096];
    match mapped.copy_from(0, &mut seen) {
        Err(MappingError::Freed) => match mapped.copy_to(0, &[1]) {
            Err(MappingError::Freed) => Ok(Outcome::Passed),
            other => Err(format!("a load was refused, and a store gave {other:?}").into()),
        },
        Ok(()) if seen[..] == bytes[..4096] => {
            // The mapping keeps the memory alive.
            mapped.copy_to(8, &[9])?;
            mapped.copy_from(8, &mut seen[..1])?;
            if seen[0] == 9 { Ok(Outcome::Passed) } else { Err("a store was lost".into()) }
        }
        Ok(()) => Err("a load gave what was never stored".into()),
        Err(error) => Err(error.into()),
    }
}

/// Memory that the driver frees on drop.
struct Memory {
    address: u64,
    exportable: bool,
}

impl Memory {
    fn ordinary() -> Result<Self, Failure> {
        let mut address = 0;
        // SAFETY: a valid place; a context is current.
        unsafe { sys::cuMemAlloc_v2(&mut address, LEN) }.result()?;
        Ok(Memory { address, exportable: false })
    }

    fn exportable(context: &CudaContext) -> Result<Self, Failure> {
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.cu_device(),
        };
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 1,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let access = sys::CUmemAccessDesc {
            location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (mut handle, mut address) = (0, 0);
        // SAFETY: valid places, and each call gets the results of the previous ones. The mapping keeps the memory
        // alive. If a call fails, earlier results end with the process.
        unsafe {
            sys::cuMemCreate(&mut handle, LEN, &properties, 0).result()?;
            sys::cuMemAddressReserve(&mut address, LEN, 0, 0, 0).result()?;
            sys::cuMemMap(address, LEN, 0, handle, 0).result()?;
            sys::cuMemSetAccess(address, LEN, &access, 1).result()?;
            sys::cuMemRelease(handle).result()?;
        }
        Ok(Memory { address, exportable: true })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: owned by `self`. A mapping may remain, which is the purpose of the check.
        unsafe {
            if self.exportable {
                let _ = sys::cuMemUnmap(self.address, LEN);
                let _ = sys::cuMemAddressFree(self.address, LEN);
            } else {
                let _ = sys::cuMemFree_v2(self.address);
            }
        }
    }
}

//! Ranges of GPU memory, and their export by the driver.

use crate::driver::{DriverError, check};
use crate::gpu::{Context, Gpu};
use cudarc::driver::sys;
use gdsync_sys::host::page_size;
use std::os::fd::{FromRawFd, OwnedFd};

/// A range of a GPU's memory, in a context that can access it. It does not keep the memory alive.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange {
    context: Context,
    gpu: Gpu,
    address: u64,
    len: usize,
    pub(crate) kept: bool,
}

/// An exported allocation that contains a range.
pub(crate) struct Exported {
    /// File descriptor by which another client of the driver imports the allocation.
    pub(crate) fd: OwnedFd,
    /// Bytes of the whole allocation.
    pub(crate) size: usize,
    pub(crate) offset: usize,
}

impl GpuRange {
    /// Creates a range of memory that may be freed while it is mapped; accesses then fail ([`GpuRange::kept`]).
    ///
    /// # Safety
    /// The context can access the range, which is that GPU's memory and is not reused while it is mapped. The context
    /// stays alive as long as the value and its copies are used.
    pub unsafe fn new(context: Context, gpu: Gpu, address: u64, len: usize) -> Self {
        GpuRange { context, gpu, address, len, kept: false }
    }

    /// Like [`GpuRange::new`], in the thread's current context if it belongs to the memory's GPU, otherwise in the
    /// GPU's primary context, which is created if needed and never released.
    ///
    /// # Errors
    /// [`DriverError::NoDriver`], [`DriverError::TooOld`]; [`DriverError::Call`] if the driver does not know the
    /// address.
    ///
    /// # Safety
    /// If the driver knows the address: as [`GpuRange::new`], for the current context.
    pub unsafe fn from_current(address: u64, len: usize) -> Result<Self, DriverError> {
        let gpu = Gpu::of_address(address)?;
        // SAFETY: the caller's.
        Ok(unsafe { Self::new(Context::current_or_primary(gpu)?, gpu, address, len) })
    }

    /// States whether the caller keeps the memory while it is mapped. If so, accesses do not check whether it was
    /// freed.
    pub fn kept(self, kept: bool) -> Self {
        GpuRange { kept, ..self }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> Gpu {
        self.gpu
    }

    /// Returns the GPU address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Exports the memory as a dma-buf. Returns its file descriptor, and the offset of the first byte in it. The
    /// dma-buf spans whole host pages, as the driver requires; the range need not.
    ///
    /// # Errors
    /// [`DriverError::Call`] if the driver cannot export it.
    pub fn dma_buf(&self) -> Result<(OwnedFd, u64), DriverError> {
        const CALL: &str = "cuMemGetHandleForAddressRange";
        let whole = whole_pages(self.address, self.len.max(1) as u64, page_size() as u64);
        let beyond = || DriverError::call(CALL, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let (first, size) = whole.ok_or_else(beyond)?;
        let _entered = self.context.enter()?;
        let mut fd: libc::c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: `fd` is a valid place for the descriptor that this handle type returns.
        check(CALL, unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), first, size as usize, kind, 0)
        })?;
        // SAFETY: the driver returned the descriptor to this caller.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, self.address - first))
    }

    pub(crate) fn export(&self) -> Result<Exported, DriverError> {
        let _entered = self.context.enter()?;
        let mut handle = 0;
        // SAFETY: `handle` is a valid place; the driver checks the address.
        check("cuMemRetainAllocationHandle", unsafe {
            sys::cuMemRetainAllocationHandle(&mut handle, self.address as *mut _)
        })?;
        let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut fd: libc::c_int = -1;
        // SAFETY: `fd` is a valid place for the descriptor that this handle type returns.
        let exported = check("cuMemExportToShareableHandle", unsafe {
            sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)
        });
        // SAFETY: the handle was just retained.
        let released = check("cuMemRelease", unsafe { sys::cuMemRelease(handle) });
        exported?;
        // SAFETY: the driver returned the descriptor to this caller.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        released?;
        let (mut base, mut size) = (0, 0);
        // SAFETY: valid places; the driver checks the address.
        check("cuMemGetAddressRange", unsafe {
            sys::cuMemGetAddressRange_v2(&mut base, &mut size, self.address)
        })?;
        Ok(Exported { fd, size, offset: (self.address - base) as usize })
    }

    /// Makes the driver's synchronous copies to and from this memory complete before they return, as required for
    /// memory that others than the driver access. Memory types without that attribute are copied synchronously anyway.
    pub(crate) fn synchronise_copies(&self) {
        let Ok(_entered) = self.context.enter() else { return };
        let on: libc::c_uint = 1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: the attribute is an unsigned int; the driver checks the address.
        let result = unsafe { sys::cuPointerSetAttribute((&raw const on).cast(), attribute, self.address) };
        if let Err(error) = check("cuPointerSetAttribute", result) {
            tracing::debug!(%error, "copies to GPU memory are as synchronous as its kind has them");
        }
    }
}

/// Returns first address and length of the whole pages that contain `len` bytes at `address`; `None` if they exceed
/// the address space.
fn whole_pages(address: u64, len: u64, page: u64) -> Option<(u64, u64)> {
    let first = address - address % page;
    let end = address.checked_add(len)?.checked_next_multiple_of(page)?;
    Some((first, end - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For all page sizes of hosts: the registered address and the offset are equal modulo the page size, as the
        /// kernel requires.
        #[test]
        fn a_dma_buf_spans_whole_pages_around_the_memory(address: u64, len in 1u64..1 << 40, shift in 12u32..22) {
            let page = 1u64 << shift;
            match whole_pages(address, len, page) {
                None => prop_assert!(u128::from(address) + u128::from(len) + u128::from(page) > 1 << 64),
                Some((first, size)) => {
                    prop_assert!(first % page == 0 && size % page == 0);
                    prop_assert!(first <= address && address - first < page);
                    let (end, wanted) = (u128::from(first) + u128::from(size), u128::from(address) + u128::from(len));
                    prop_assert!(end >= wanted && end - wanted < u128::from(page));
                }
            }
        }
    }

    #[test]
    fn memory_that_is_aligned_needs_no_page_more() {
        assert_eq!(whole_pages(2 << 20, 2 << 20, 64 << 10), Some((2 << 20, 2 << 20)));
        assert_eq!(whole_pages((2 << 20) + 512, 4, 64 << 10), Some((2 << 20, 64 << 10)));
        assert_eq!(whole_pages(0xffff, 2, 64 << 10), Some((0, 128 << 10)));
    }

    #[test]
    fn an_address_that_is_no_gpus_is_refused() {
        let here = 0u64;
        // SAFETY: the driver rejects the address before anything else uses it.
        let refused = unsafe { GpuRange::from_current((&raw const here) as u64, 8) };
        match refused {
            Err(DriverError::NoDriver | DriverError::TooOld { .. } | DriverError::Call { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

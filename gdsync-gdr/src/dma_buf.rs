//! Mappings of dma-bufs, by `mmap`.

use crate::backend::{Caching, MappingBackend, Refusal};
use crate::kernel::{File, Kernel};
use crate::mapping::Mapped;
use gdsync_sys::host::page_size;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

/// The first CUDA driver whose dma-bufs the CPU can map, in the format of `cuDriverGetVersion`: 13.3.
pub(crate) const OLDEST_DRIVER: u32 = 13_030;

/// Checks whether the CPU can map a driver's dma-bufs, before one is created.
pub(crate) fn check(driver: u32, supported: bool) -> Result<(), Refusal> {
    if driver < OLDEST_DRIVER {
        let reason = format!("it is of CUDA {}.{}", driver / 1000, driver % 1000 / 10);
        return Err(Refusal::new("look at the driver", reason, "install a driver of CUDA 13.3 or newer"));
    }
    if !supported {
        let remedy = "use NVIDIA's open kernel modules, and Linux 5.12 or newer";
        return Err(Refusal::new("look at the GPU", "its driver makes no dma-bufs", remedy));
    }
    Ok(())
}

/// Maps the whole CPU pages of a dma-buf; the memory begins `offset` bytes after the dma-buf's start.
pub(crate) fn map(
    kernel: &Arc<dyn Kernel>,
    fd: OwnedFd,
    offset: usize,
    len: usize,
    coherent: bool,
) -> Result<Mapped, Refusal> {
    let file = File { kernel: kernel.clone(), fd: fd.into_raw_fd() };
    let page = page_size();
    let size = offset.checked_add(len.max(1)).and_then(|end| end.checked_next_multiple_of(page)).ok_or_else(
        || Refusal::new("map the dma-buf", format!("{len} bytes leave the address space"), "map less"),
    )?;
    let pages = file.map(size, 0).map_err(|error| {
        let remedy = match error.raw_os_error() {
            // 524 is the kernel's internal ENOTSUPP, which libc lacks.
            Some(524 | libc::EOPNOTSUPP | libc::ENODEV) => {
                "install a driver of CUDA 13.3 or newer, with open kernel modules"
            }
            Some(libc::ENOMEM) => "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY): unmap something",
            Some(libc::EINVAL) => "map memory that one allocation holds, whole pages of it",
            _ => "see the kernel's log (dmesg)",
        };
        Refusal::new("map the dma-buf", error, remedy)
    })?;
    // The dma-buf references the memory, which stays even if CUDA frees it first.
    let caching = if coherent { Caching::Cached } else { Caching::WriteCombining };
    Ok(Mapped::new(pages, file, (MappingBackend::DmaBuf, caching), page, offset))
}

#[cfg(test)]
mod tests;

//! `gdsync/tools.h`: memory that both streams and the CPU reach.

use crate::error::{self, CallError, bad, bad_bits, non_null_mut, stale};
use crate::pages::PAGE;
use crate::streams;
use crate::types::{self, gds_mem_desc_t};
use gdsync::advanced::mapped::MappedMemory;
use gdsync::memop::Word32;
use gdsync::{Error, PinnedMemory};
use libc::{c_int, c_void, size_t};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::LazyLock;

/// The memory of a descriptor. A drop releases it.
type Allocated = Box<dyn Any + Send>;

/// The allocated memory, by the numbers in `mh`.
static ALLOCATED: LazyLock<Mutex<(u64, HashMap<u64, Allocated>)>> = LazyLock::new(Mutex::default);

struct Addresses {
    gpu: u64,
    host: *mut c_void,
    /// The CPU's mapping of GPU memory, or null.
    bar: *mut c_void,
}

/// Allocates memory of the current context's GPU, mapped for the CPU. `None` if that is not possible.
fn on_gpu(size: usize) -> Option<(Allocated, Addresses)> {
    let ordinal = streams::current_gpu()?;
    let context = gdsync::cuda::context(ordinal).ok()?;
    match MappedMemory::allocate(&context, size) {
        Ok(memory) => {
            let host = memory.as_ptr().cast();
            let addresses = Addresses { gpu: memory.gpu().address(), host, bar: host };
            Some((Box::new(memory), addresses))
        }
        Err(error) => {
            tracing::info!(%error, ordinal, "GPU memory cannot be mapped here: it is host memory that the GPU reaches");
            None
        }
    }
}

/// Allocates pinned host memory, mapped for the GPU if there is one.
fn on_host(size: usize) -> Result<(Allocated, Addresses), CallError> {
    // Rounded up to whole words, so that the last page has one to look up.
    let whole = size.saturating_add(size_of::<u32>() - 1) & !(size_of::<u32>() - 1);
    let memory = PinnedMemory::allocate(whole).map_err(|source| Error::Memory { len: size, source })?;
    let host = memory.addr().get() as *mut c_void;
    let addresses = Addresses { gpu: device_address(&memory)?, host, bar: std::ptr::null_mut() };
    Ok((Box::new(memory), addresses))
}

/// Returns the GPU's address of the memory. The GPU maps pages; kernels know one address, and need the pages to be contiguous.
fn device_address(memory: &PinnedMemory) -> Result<u64, CallError> {
    let Some(stream) = streams::current()? else { return Ok(memory.addr().get()) };
    let first = stream.translate(memory.addr(), 1)?;
    for offset in (PAGE..memory.len()).step_by(PAGE) {
        let page = stream.translate(Word32::new(memory, offset)?.addr(), 1)?;
        if page != first + offset as u64 {
            let remedy = "allocate less at a time";
            return Err(CallError::Unsupported { what: "the GPU has the pages in several places", remedy });
        }
    }
    Ok(first)
}

/// `gds_alloc_mapped_memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_alloc_mapped_memory(
    desc: *mut gds_mem_desc_t,
    size: size_t,
    flags: c_int,
) -> c_int {
    error::status("gds_alloc_mapped_memory", || {
        let desc = non_null_mut("the descriptor", desc)?;
        if ![types::GDS_MEMORY_GPU, types::GDS_MEMORY_HOST].contains(&flags) {
            return Err(bad_bits("flags", flags, "GDS_MEMORY_GPU or GDS_MEMORY_HOST is possible"));
        }
        if size == 0 {
            return Err(bad("size", 0, "it must be at least 1"));
        }
        let mapped = if flags == types::GDS_MEMORY_GPU { on_gpu(size) } else { None };
        let (memory, at) = mapped.map_or_else(|| on_host(size), Ok)?;
        let mut allocated = ALLOCATED.lock();
        allocated.0 += 1;
        let name = allocated.0;
        allocated.1.insert(name, memory);
        let (d_ptr, h_ptr, bar_ptr) = (at.gpu, at.host, at.bar);
        // SAFETY: the place is valid for a write.
        unsafe { desc.write(gds_mem_desc_t { d_ptr, h_ptr, bar_ptr, flags, alloc_size: size, mh: name }) };
        Ok(())
    })
}

/// `gds_free_mapped_memory`.
///
/// # Safety
/// `desc` is null or valid; no stream still has to pass work that uses the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_free_mapped_memory(desc: *mut gds_mem_desc_t) -> c_int {
    error::status("gds_free_mapped_memory", || {
        let desc = non_null_mut("the descriptor", desc)?;
        // SAFETY: the caller passes a valid pointer.
        let name = unsafe { (*desc).mh };
        let gone = ALLOCATED.lock().1.remove(&name);
        if gone.is_none() {
            let why = "is not of gds_alloc_mapped_memory, or is free already";
            return Err(stale("the memory's mh", name as usize, why, "pass its descriptor, once"));
        }
        // SAFETY: as above.
        unsafe {
            ((*desc).d_ptr, (*desc).h_ptr, (*desc).mh) = (0, std::ptr::null_mut(), 0);
            (*desc).bar_ptr = std::ptr::null_mut();
            (*desc).alloc_size = 0;
        }
        Ok(())
    })
}

//! `gdsync/tools.h`: memory that streams and the CPU both reach.

use crate::fault::{self, Fault, non_null_mut};
use crate::pages::PAGE;
use crate::streams;
use crate::types::{self, gds_mem_desc_t};
use gdsync::{Error, PinnedMemory, Word32};
use libc::{c_int, size_t};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::LazyLock;

/// What was allocated, by the numbers in `mh`.
static ALLOCATED: LazyLock<Mutex<(u64, HashMap<u64, PinnedMemory>)>> = LazyLock::new(Mutex::default);

/// The GPU's address of the memory. It gets to know pages; kernels need them in a row, as they know one address.
fn device_address(memory: &PinnedMemory) -> Result<u64, Fault> {
    let Some(stream) = streams::current()? else { return Ok(memory.addr().get()) };
    let first = stream.translate(memory.addr(), 1)?;
    for offset in (PAGE..memory.len()).step_by(PAGE) {
        let page = stream.translate(Word32::new(memory, offset)?.addr(), 1)?;
        if page != first + offset as u64 {
            let remedy = "allocate less at a time";
            return Err(Fault::Unsupported { what: "the GPU has the pages in several places", remedy });
        }
    }
    Ok(first)
}

/// `gds_alloc_mapped_memory`.
///
/// # Safety
/// `desc` is null or a valid place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_alloc_mapped_memory(
    desc: *mut gds_mem_desc_t,
    size: size_t,
    flags: c_int,
) -> c_int {
    fault::status("gds_alloc_mapped_memory", || {
        let desc = non_null_mut("the descriptor", desc)?;
        if ![types::GDS_MEMORY_GPU, types::GDS_MEMORY_HOST].contains(&flags) {
            let limit = "GDS_MEMORY_GPU or GDS_MEMORY_HOST is possible";
            return Err(Fault::Bad { what: "flags", value: flags.into(), limit });
        }
        if size == 0 {
            return Err(Fault::Bad { what: "size", value: 0, limit: "it must be at least 1" });
        }
        // A last page of fewer than 4 bytes has no word to ask for.
        let whole = size.saturating_add(size_of::<u32>() - 1) & !(size_of::<u32>() - 1);
        let memory = PinnedMemory::allocate(whole).map_err(|source| Error::Memory { len: size, source })?;
        let d_ptr = device_address(&memory)?;
        let h_ptr = memory.addr().get() as *mut libc::c_void;
        let mut allocated = ALLOCATED.lock();
        allocated.0 += 1;
        let name = allocated.0;
        allocated.1.insert(name, memory);
        let bar_ptr = std::ptr::null_mut();
        // SAFETY: a valid place.
        unsafe { desc.write(gds_mem_desc_t { d_ptr, h_ptr, bar_ptr, flags, alloc_size: size, mh: name }) };
        Ok(())
    })
}

/// `gds_free_mapped_memory`.
///
/// # Safety
/// `desc` is null or valid; no stream that has not passed it names the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gds_free_mapped_memory(desc: *mut gds_mem_desc_t) -> c_int {
    fault::status("gds_free_mapped_memory", || {
        let desc = non_null_mut("the descriptor", desc)?;
        // SAFETY: valid, the caller's.
        let name = unsafe { (*desc).mh };
        let gone = ALLOCATED.lock().1.remove(&name);
        if gone.is_none() {
            return Err(Fault::Stale {
                what: "not memory of gds_alloc_mapped_memory, or it is free already",
            });
        }
        // SAFETY: as above.
        unsafe {
            ((*desc).d_ptr, (*desc).h_ptr, (*desc).mh) = (0, std::ptr::null_mut(), 0);
            (*desc).alloc_size = 0;
        }
        Ok(())
    })
}

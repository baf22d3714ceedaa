//! Classifies and registers buffers of the program, and allocates memory for it.

use crate::error::{Class, Failure};
use gdsync::cuda::{self, Consistency, GpuMemory};
use gdsync::cudarc::driver::{CudaContext, sys};
use gdsync::verbs::{GpuMemoryRegion, RegistrationCache};
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, RemoteMemory, Slice};
use libc::{c_int, c_void};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Region {
    /// No bytes; nothing is registered.
    Empty,
    Host(MemoryRegion),
    Gpu(GpuMemoryRegion),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Host,
    /// Host memory that the driver has mapped for that GPU.
    CudaHost(u32),
    Gpu(u32),
    Managed,
}

impl Region {
    /// Registers a buffer.
    ///
    /// # Safety
    /// The memory stays where it is until the region and its slices are dropped. The program orders its uses with the work that uses
    /// the memory.
    pub(crate) unsafe fn register(
        pd: &ProtectionDomain,
        buffer: Buffer,
        access: Access,
    ) -> Result<Region, Failure> {
        let Buffer { address, bytes } = buffer;
        if bytes == 0 {
            return Ok(Region::Empty);
        }
        let what = || format!("the buffer of {bytes} bytes at {address:#x}");
        match owner(address)? {
            Owner::Managed => Err(Failure::new(Class::Buffer, format!("{} {MANAGED}", what()))),
            Owner::Host | Owner::CudaHost(_) => {
                // SAFETY: the caller keeps the memory in place.
                let memory = unsafe { host(buffer) }?;
                let region = MemoryRegion::register(pd, memory, access);
                Ok(Region::Host(region.map_err(|error| Failure::from(error).about(what()))?))
            }
            Owner::Gpu(ordinal) => {
                let failed = |error: gdsync::Error| Failure::from(error).about(what());
                // SAFETY: the caller keeps the memory in place; the driver says that it is this GPU's.
                let memory = unsafe { GpuMemory::from_raw(&context(ordinal)?, address as u64, bytes, ()) };
                let memory = memory.map_err(|error| failed(error.into()))?;
                Ok(Region::Gpu(GpuMemoryRegion::register(pd, memory, access).map_err(failed)?))
            }
        }
    }

    /// The region as the target of the other side's writes.
    pub(crate) fn remote(&self) -> RemoteMemory {
        match self {
            Region::Empty => RemoteMemory { addr: 0, len: 0, rkey: 0 },
            Region::Host(region) => region.remote(),
            Region::Gpu(region) => region.remote(),
        }
    }

    /// Returns a range as a work request's segments; none for an empty range.
    pub(crate) fn slices(&self, range: Range<usize>) -> Result<Vec<Slice>, Failure> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Region::Empty => Err(Failure::new(Class::Buffer, "the buffer has no bytes")),
            Region::Host(region) => Ok(vec![region.slice(range)?]),
            Region::Gpu(region) => Ok(vec![region.slice(range)?]),
        }
    }
}

/// Registers the buffer of a message. If the CUDA driver knows the memory, it tells whether that is still the same allocation, so
/// the registration is cached for the next message; other memory is registered each time.
///
/// # Safety
/// As [`Region::register`]; the other side gets no key.
pub(crate) unsafe fn register_message(
    cache: &RegistrationCache,
    buffer: Buffer,
    access: Access,
) -> Result<Vec<Slice>, Failure> {
    let Buffer { address, bytes } = buffer;
    let at = address as u64;
    let failed = |error: gdsync::Error| {
        Failure::from(error).about(format!("the buffer of {bytes} bytes at {address:#x}"))
    };
    let owner = if bytes == 0 { Owner::Host } else { owner(address)? };
    let region = match owner {
        // SAFETY: the caller keeps the memory in place; the driver says that it is this GPU's.
        Owner::Gpu(gpu) => Some(unsafe { cache.gpu_raw(&context(gpu)?, at, bytes, access) }.map_err(failed)?),
        Owner::CudaHost(gpu) => {
            // SAFETY: the caller keeps the memory in place.
            unsafe { cache.cuda_host_raw(&context(gpu)?, at, bytes, access) }.map_err(failed)?
        }
        Owner::Host | Owner::Managed => None,
    };
    if let Some(region) = region {
        return Ok(vec![region.slice(..)?]);
    }
    // SAFETY: the caller keeps the memory in place.
    unsafe { Region::register(cache.domain(), buffer, access) }?.slices(0..bytes)
}

/// Returns a GPU's primary context, which stays for the life of the process.
pub(crate) fn context(gpu: u32) -> Result<Arc<CudaContext>, Failure> {
    static KNOWN: Mutex<BTreeMap<u32, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());

    match KNOWN.lock().entry(gpu) {
        Entry::Occupied(known) => Ok(known.get().clone()),
        Entry::Vacant(place) => {
            let made = cuda::context(gpu).map_err(|error| Failure::new(Class::Other, error))?;
            Ok(place.insert(made).clone())
        }
    }
}

/// Returns host memory of the program; a buffer of no bytes is not allowed.
///
/// # Safety
/// As [`Region::register`].
pub(crate) unsafe fn host(Buffer { address, bytes }: Buffer) -> Result<PinnedMemory, Failure> {
    let base = NonNull::new(address as *mut u8).ok_or_else(|| {
        Failure::new(
            Class::Buffer,
            format!("the buffer of {bytes} bytes is a null pointer: pass a valid one"),
        )
    })?;
    // SAFETY: the caller keeps the memory in place. Nothing need observe the end of the registration: no later work uses the memory.
    Ok(unsafe { PinnedMemory::from_raw(base, bytes, ()) })
}

/// Returns the GPU that owns the memory at an address, or none for host memory. Refuses managed memory.
pub(crate) fn gpu_of(address: usize) -> Result<Option<u32>, Failure> {
    match owner(address)? {
        Owner::Host | Owner::CudaHost(_) => Ok(None),
        Owner::Gpu(ordinal) => Ok(Some(ordinal)),
        Owner::Managed => Err(Failure::new(Class::Buffer, format!("the buffer at {address:#x} {MANAGED}"))),
    }
}

/// Refuses memory of a GPU that may see a card's writes later than subsequent writes of the CPU.
pub(crate) fn check_order(address: usize) -> Result<(), Failure> {
    let Owner::Gpu(ordinal) = (if address == 0 { Owner::Host } else { owner(address)? }) else {
        return Ok(());
    };
    let abilities =
        cuda::capabilities(&context(ordinal)?).map_err(|error| Failure::new(Class::Other, error))?;
    if abilities.consistency() == Consistency::Ordered {
        return Ok(());
    }
    let why = "is memory of a GPU that does not keep the order of a card's writes: receive into host memory, or ask on \
               the CPU whether partitions have arrived";
    Err(Failure::new(Class::Unsupported, format!("the buffer at {address:#x} {why}")))
}

/// Returns the GPU of the current context; none without a driver or a context.
pub(crate) fn current_gpu() -> Option<u32> {
    if !has_driver() {
        return None;
    }
    let mut ordinal = -1;
    // SAFETY: the driver is initialised (`has_driver`); `ordinal` is valid for a write.
    let result = unsafe { sys::cuCtxGetDevice(&mut ordinal) };
    (result == sys::CUresult::CUDA_SUCCESS).then(|| u32::try_from(ordinal).ok()).flatten()
}

const MANAGED: &str = "is managed memory, which moves: allocate it by cudaMalloc";

/// Returns whether the process has loaded a usable CUDA driver, which is then initialised.
pub(crate) fn has_driver() -> bool {
    /// True if the driver that was found is usable.
    static USABLE: OnceLock<bool> = OnceLock::new();
    /// The number of loaded libraries when no driver was found; the search is repeated once there are more.
    static SEARCHED: AtomicU64 = AtomicU64::new(0);

    if let Some(usable) = USABLE.get() {
        return *usable;
    }
    let loaded = libraries_ever_loaded();
    if loaded != 0 && loaded == SEARCHED.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: a zero-terminated name. Nothing is loaded; the handle stays open.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if driver.is_null() {
        SEARCHED.store(loaded, Ordering::Relaxed);
        return false;
    }
    *USABLE.get_or_init(|| cuda::device_count().is_ok())
}

/// Returns the dynamic linker's count of all libraries that it has ever loaded. Unlike `dlopen` of a library that is not loaded, this
/// opens no file.
fn libraries_ever_loaded() -> u64 {
    /// Reads the count, which every library's information has, and stops.
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
        // SAFETY: the linker passes valid information, and the pointer that is given below.
        unsafe { *loaded.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loaded = 0u64;
    // SAFETY: the function has the right signature, and writes to `loaded` only during the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loaded).cast()) };
    loaded
}

/// Returns the owner of the memory at an address. Without a CUDA driver, all memory is the host's.
fn owner(address: usize) -> Result<Owner, Failure> {
    if !has_driver() {
        return Ok(Owner::Host);
    }
    let ask = |attribute| {
        let mut value = 0u32;
        // SAFETY: the attributes below are at most 32 bits wide; the driver checks the address.
        let result =
            unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, address as u64) };
        (result == sys::CUresult::CUDA_SUCCESS).then_some(value)
    };
    let managed = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED);
    if managed.is_some_and(|value| value & 0xff != 0) {
        return Ok(Owner::Managed);
    }
    const HOST: u32 = sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const DEVICE: u32 = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    let kind = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    let gpu = || ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    let unknown = || format!("the CUDA driver does not say whose memory is at {address:#x}");
    match kind {
        Some(HOST) => Ok(gpu().map_or(Owner::Host, Owner::CudaHost)),
        Some(DEVICE) => gpu().map(Owner::Gpu).ok_or_else(|| Failure::new(Class::Buffer, unknown())),
        _ => Ok(Owner::Host),
    }
}

/// Memory from [`allocate`], by address.
static ALLOCATED: Mutex<BTreeMap<usize, Allocation>> = Mutex::new(BTreeMap::new());

/// Memory that is freed when it is dropped.
#[derive(Debug)]
enum Allocation {
    Host { _memory: PinnedMemory },
    Gpu { _memory: GpuMemory },
}

/// Allocates zeroed memory of the host, or memory of the current context's GPU.
pub(crate) fn allocate(bytes: usize, on_gpu: bool) -> Result<usize, Failure> {
    let (address, allocation) = if on_gpu {
        let failed = |error: cuda::CudaError| Failure::new(Class::Memory, error);
        cuda::device_count().map_err(failed)?;
        let memory = GpuMemory::allocate(&context(current_gpu().unwrap_or(0))?, bytes).map_err(failed)?;
        (memory.address() as usize, Allocation::Gpu { _memory: memory })
    } else {
        let memory = PinnedMemory::allocate(bytes)
            .map_err(|error| Failure::new(Class::Memory, format!("{bytes} bytes of memory: {error}")))?;
        (memory.addr().get() as usize, Allocation::Host { _memory: memory })
    };
    ALLOCATED.lock().insert(address, allocation);
    Ok(address)
}

/// Frees memory from [`allocate`].
pub(crate) fn free(address: usize) -> Result<(), Failure> {
    let allocation = ALLOCATED.lock().remove(&address);
    allocation.map(drop).ok_or_else(|| {
        let why = "is not, or no longer, memory of MPIS_Alloc_mem";
        Failure::new(Class::Buffer, format!("the address {address:#x} {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_once() {
        let address = allocate(100, false).unwrap();
        free(address).unwrap();
        let error = free(address).unwrap_err();
        assert_eq!(error.class, Class::Buffer);
        assert!(error.text.contains(&format!("{address:#x}")), "{error}");
    }

    #[test]
    fn a_library_that_is_loaded_is_counted() {
        let before = libraries_ever_loaded();
        assert!(before > 0);
        // SAFETY: zero-terminated names; libc's own libraries may be loaded at any time.
        let loaded = [c"libanl.so.1", c"libutil.so.1", c"libBrokenLocale.so.1"]
            .map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) });
        assert!(loaded.iter().any(|handle| !handle.is_null()), "libc's small libraries are missing");
        assert!(libraries_ever_loaded() > before);
    }

    #[test]
    fn a_null_pointer_with_bytes_is_refused() {
        // SAFETY: there is no memory.
        let error = unsafe { host(Buffer { address: 0, bytes: 4 }) }.unwrap_err();
        assert!(error.text.contains("null pointer"), "{error}");
    }
}

//! The CUDA driver's functions for copies (`cuda.h`; CUDA 12 and later), from the library that the program has loaded.

use super::symbols::real_dlsym;
use libc::{c_int, c_uint, c_void};
use softhca::PeerMemoryError;
use std::ffi::CStr;

/// A `CUcontext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct CuContext(*mut c_void);

/// A `CUstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct CuStream(*mut c_void);

// SAFETY: only the driver dereferences the handle, and it accepts the handle from any thread.
unsafe impl Send for CuContext {}
// SAFETY: as above.
unsafe impl Sync for CuContext {}

impl CuContext {
    pub(super) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(super) fn address(self) -> usize {
        self.0 as usize
    }
}

/// `CUpointer_attribute`.
pub(super) mod attribute {
    pub(crate) const CONTEXT: i32 = 1;
    pub(crate) const MEMORY_TYPE: i32 = 2;
    pub(crate) const IS_MANAGED: i32 = 8;
    pub(crate) const DEVICE_ORDINAL: i32 = 9;
}

/// `CUmemorytype`.
pub(super) mod memory_type {
    pub(crate) const DEVICE: u32 = 2;
}

/// `CU_STREAM_NON_BLOCKING`: the stream and the legacy default stream do not wait for each other.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`, `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: allows this thread calls that captures otherwise forbid.
const RELAXED: c_int = 2;

#[derive(Debug)]
pub(super) struct Pointer {
    pub(super) kind: u32,
    pub(super) managed: bool,
    pub(super) context: CuContext,
    pub(super) ordinal: c_int,
}

/// Defines the table of functions, and the lookup of each by its symbol.
macro_rules! driver {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        #[derive(Clone, Debug)]
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// Returns the driver, if the process has loaded it.
            pub(super) fn loaded() -> Option<Driver> {
                // SAFETY: the name is a C string, and NOLOAD runs no initialiser. The handle is never closed,
                // so the library stays loaded.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
                if library.is_null() {
                    return None;
                }
                Some(Driver {
                    $($field: {
                        let symbol = symbol(library, $symbol)?;
                        // SAFETY: cuda.h declares the function of this name with these arguments.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

driver! {
    pointer_attributes = c"cuPointerGetAttributes": fn(c_uint, *const i32, *mut *mut c_void, u64);
    address_range = c"cuMemGetAddressRange_v2": fn(*mut u64, *mut usize, u64);
    retain_primary = c"cuDevicePrimaryCtxRetain": fn(*mut CuContext, c_int);
    push = c"cuCtxPushCurrent_v2": fn(CuContext);
    pop = c"cuCtxPopCurrent_v2": fn(*mut CuContext);
    number = c"cuCtxGetId": fn(CuContext, *mut u64);
    capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    stream_create = c"cuStreamCreate": fn(*mut CuStream, c_uint);
    stream_synchronize = c"cuStreamSynchronize": fn(CuStream);
    host_alloc = c"cuMemHostAlloc": fn(*mut *mut u8, usize, c_uint);
    host_register = c"cuMemHostRegister_v2": fn(*mut u8, usize, c_uint);
    to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut u8, u64, usize, CuStream);
    to_device = c"cuMemcpyHtoDAsync_v2": fn(u64, *const u8, usize, CuStream);
}

/// Returns the driver's own function: a library that counts the program's calls does not see the card's.
fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: `Driver::loaded` passes the handle of a loaded library; the name is a C string.
    let found = unsafe { real_dlsym()(library, name.as_ptr()) };
    if found.is_null() {
        tracing::warn!(?name, "CUDA's driver is too old: GPU memory cannot be registered");
        return None;
    }
    Some(found)
}

fn check(call: &str, result: c_int) -> Result<(), PeerMemoryError> {
    if result == 0 {
        Ok(())
    } else {
        Err(PeerMemoryError::new(format!("{call} returned CUDA error {result}")))
    }
}

impl Driver {
    /// Returns the attributes of an address; `None` if the driver fails, for example before `cuInit`.
    pub(super) fn attributes(&self, addr: u64) -> Option<Pointer> {
        let names =
            [attribute::MEMORY_TYPE, attribute::IS_MANAGED, attribute::CONTEXT, attribute::DEVICE_ORDINAL];
        // The driver writes one byte or four for IS_MANAGED, so the variable starts as four zero bytes.
        let (mut kind, mut managed, mut ordinal) = (0u32, 0u32, -1 as c_int);
        let mut context = CuContext(std::ptr::null_mut());
        let mut places: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut context).cast(),
            (&raw mut ordinal).cast(),
        ];
        // SAFETY: one place for each attribute, at least as large as the attribute; the driver does not
        // dereference `addr`.
        let result = unsafe { (self.pointer_attributes)(4, names.as_ptr(), places.as_mut_ptr(), addr) };
        (result == 0).then_some(Pointer { kind, managed: managed != 0, context, ordinal })
    }

    /// Returns the primary context of a GPU, which the CUDA runtime uses. Its reference is never released.
    pub(super) fn primary_context(&self, ordinal: c_int) -> Result<CuContext, PeerMemoryError> {
        let mut context = CuContext(std::ptr::null_mut());
        // SAFETY: `context` is a valid place; the driver checks the number.
        check("cuDevicePrimaryCtxRetain", unsafe { (self.retain_primary)(&mut context, ordinal) })?;
        Ok(context)
    }

    /// Returns the context's ID, which differs for contexts at the same address; 0 if the driver has none.
    pub(super) fn context_number(&self, context: CuContext) -> u64 {
        let mut number = 0;
        // SAFETY: `number` is a valid place; the context handle came from the driver.
        let result = unsafe { (self.number)(context, &mut number) };
        if result == 0 { number } else { 0 }
    }

    /// Runs `work` with `context` current, in a capture mode that keeps the program's captures valid.
    pub(super) fn within<T>(
        &self,
        context: CuContext,
        work: impl FnOnce() -> Result<T, PeerMemoryError>,
    ) -> Result<T, PeerMemoryError> {
        // SAFETY: the handle came from the driver, which refuses one of a destroyed context.
        check("cuCtxPushCurrent", unsafe { (self.push)(context) })?;
        let mut mode = RELAXED;
        // SAFETY: `mode` is a valid place, for this thread's mode.
        let changed = unsafe { (self.capture_mode)(&mut mode) } == 0;
        let result = work();
        if changed {
            // SAFETY: as above; the call restores the thread's mode.
            let _ = unsafe { (self.capture_mode)(&mut mode) };
        }
        let mut popped = CuContext(std::ptr::null_mut());
        // SAFETY: `popped` is a valid place.
        check("cuCtxPopCurrent", unsafe { (self.pop)(&mut popped) })?;
        result
    }

    /// Returns start and length of the allocation that contains an address.
    pub(super) fn range(&self, addr: u64) -> Result<(u64, u64), PeerMemoryError> {
        let (mut base, mut size) = (0, 0);
        // SAFETY: `base` and `size` are valid places; the driver checks the address.
        check("cuMemGetAddressRange", unsafe { (self.address_range)(&mut base, &mut size, addr) })?;
        Ok((base, size as u64))
    }

    pub(super) fn stream(&self) -> Result<CuStream, PeerMemoryError> {
        let mut stream = CuStream(std::ptr::null_mut());
        // SAFETY: `stream` is a valid place; a context is current.
        check("cuStreamCreate", unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// Allocates pinned memory, which is never freed.
    pub(super) fn pinned(&self, len: usize) -> Result<*mut u8, PeerMemoryError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` is a valid place; a context is current.
        check("cuMemHostAlloc", unsafe { (self.host_alloc)(&mut memory, len, PORTABLE) })?;
        Ok(memory)
    }

    /// Pins memory for all contexts, for the life of the process.
    ///
    /// # Safety
    /// It stays mapped.
    pub(super) unsafe fn pin(&self, address: usize, len: usize) -> Result<(), PeerMemoryError> {
        let memory = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller guarantees mapped memory; a context is current.
        check("cuMemHostRegister", unsafe { (self.host_register)(memory, len, PORTABLE) })
    }

    /// Waits for the copies that were begun on a stream.
    pub(super) fn synchronize(&self, stream: CuStream) -> Result<(), PeerMemoryError> {
        // SAFETY: a copier owns the stream and never destroys it.
        check("cuStreamSynchronize", unsafe { (self.stream_synchronize)(stream) })
    }

    /// Begins to copy out of GPU memory.
    ///
    /// # Safety
    /// `into..into + len` must be pinned memory that no other code accesses until [`Self::synchronize`] has returned.
    pub(super) unsafe fn copy_out(
        &self,
        into: *mut u8,
        from: u64,
        len: usize,
        stream: CuStream,
    ) -> Result<(), PeerMemoryError> {
        // SAFETY: the caller vouches for the CPU's memory; the driver checks the GPU's.
        check("cuMemcpyDtoHAsync", unsafe { (self.to_host)(into, from, len, stream) })
    }

    /// Begins to copy into GPU memory.
    ///
    /// # Safety
    /// `from..from + len` must be pinned memory that stays readable until [`Self::synchronize`] has returned.
    pub(super) unsafe fn copy_in(
        &self,
        to: u64,
        from: *const u8,
        len: usize,
        stream: CuStream,
    ) -> Result<(), PeerMemoryError> {
        // SAFETY: as in `copy_out`.
        check("cuMemcpyHtoDAsync", unsafe { (self.to_device)(to, from, len, stream) })
    }
}

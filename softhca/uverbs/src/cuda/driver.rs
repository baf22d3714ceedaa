//! The functions of CUDA's driver that copies need, found in a library that the program has loaded (`cuda.h`; CUDA 12 and later).

use libc::{c_char, c_int, c_uint, c_void};
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

// SAFETY: names that only the driver looks behind, from any thread.
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

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that capturing threads must not make are for this thread's own captures only.
const RELAXED: c_int = 2;

/// What the driver knows of an address.
#[derive(Debug)]
pub(super) struct Pointer {
    pub(super) kind: u32,
    pub(super) managed: bool,
    pub(super) context: CuContext,
    pub(super) ordinal: c_int,
}

/// Defines the table, and how it is found.
macro_rules! driver {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// Entry points of the driver.
        #[derive(Clone, Debug)]
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            /// The driver, if the process has loaded it.
            pub(super) fn loaded() -> Option<Driver> {
                // SAFETY: the name is a C string. NOLOAD runs no initialiser; the library stays, since the handle is kept.
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
    to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut u8, u64, usize, CuStream);
    to_device = c"cuMemcpyHtoDAsync_v2": fn(u64, *const u8, usize, CuStream);
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that is loaded, and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) };
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
    /// What is at an address. `None`: the driver cannot say, as before its initialisation.
    pub(super) fn attributes(&self, addr: u64) -> Option<Pointer> {
        let names =
            [attribute::MEMORY_TYPE, attribute::IS_MANAGED, attribute::CONTEXT, attribute::DEVICE_ORDINAL];
        // The driver writes one byte or four for the second; both begin with zeroes.
        let (mut kind, mut managed, mut ordinal) = (0u32, 0u32, -1 as c_int);
        let mut context = CuContext(std::ptr::null_mut());
        let mut places: [*mut c_void; 4] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut context).cast(),
            (&raw mut ordinal).cast(),
        ];
        // SAFETY: as many places as attributes, each as large as its attribute; the driver only looks the address up.
        let result = unsafe { (self.pointer_attributes)(4, names.as_ptr(), places.as_mut_ptr(), addr) };
        (result == 0).then_some(Pointer { kind, managed: managed != 0, context, ordinal })
    }

    /// The context that the CUDA runtime has for a GPU. The reference is kept.
    pub(super) fn primary_context(&self, ordinal: c_int) -> Result<CuContext, PeerMemoryError> {
        let mut context = CuContext(std::ptr::null_mut());
        // SAFETY: `context` is a valid place; the driver checks the number.
        check("cuDevicePrimaryCtxRetain", unsafe { (self.retain_primary)(&mut context, ordinal) })?;
        Ok(context)
    }

    /// Tells contexts apart that came to one address; 0 where the driver does not say.
    pub(super) fn context_number(&self, context: CuContext) -> u64 {
        let mut number = 0;
        // SAFETY: `number` is a valid place; the context is one that the driver named.
        let result = unsafe { (self.number)(context, &mut number) };
        if result == 0 { number } else { 0 }
    }

    /// Does something where `context` is current, out of the way of the program's captures.
    pub(super) fn within<T>(
        &self,
        context: CuContext,
        work: impl FnOnce() -> Result<T, PeerMemoryError>,
    ) -> Result<T, PeerMemoryError> {
        // SAFETY: the driver named the context, and refuses one that is gone.
        check("cuCtxPushCurrent", unsafe { (self.push)(context) })?;
        let mut mode = RELAXED;
        // SAFETY: `mode` is a valid place, for this thread's mode.
        let changed = unsafe { (self.capture_mode)(&mut mode) } == 0;
        let result = work();
        if changed {
            // SAFETY: as above; it puts back what was there.
            let _ = unsafe { (self.capture_mode)(&mut mode) };
        }
        let mut popped = CuContext(std::ptr::null_mut());
        // SAFETY: `popped` is a valid place.
        check("cuCtxPopCurrent", unsafe { (self.pop)(&mut popped) })?;
        result
    }

    /// The allocation that holds an address: its first byte, and its length.
    pub(super) fn range(&self, addr: u64) -> Result<(u64, u64), PeerMemoryError> {
        let (mut base, mut size) = (0, 0);
        // SAFETY: valid places; the driver checks the address.
        check("cuMemGetAddressRange", unsafe { (self.address_range)(&mut base, &mut size, addr) })?;
        Ok((base, size as u64))
    }

    pub(super) fn stream(&self) -> Result<CuStream, PeerMemoryError> {
        let mut stream = CuStream(std::ptr::null_mut());
        // SAFETY: `stream` is a valid place; a context is current.
        check("cuStreamCreate", unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// Pinned memory; never freed.
    pub(super) fn pinned(&self, len: usize) -> Result<*mut u8, PeerMemoryError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` is a valid place; a context is current.
        check("cuMemHostAlloc", unsafe { (self.host_alloc)(&mut memory, len, PORTABLE) })?;
        Ok(memory)
    }

    /// Copies out of GPU memory, and waits for that.
    ///
    /// # Safety
    /// `into..into + len` is pinned memory that nobody else uses meanwhile.
    pub(super) unsafe fn copy_out(
        &self,
        into: *mut u8,
        from: u64,
        len: usize,
        stream: CuStream,
    ) -> Result<(), PeerMemoryError> {
        // SAFETY: the CPU's side is the caller's; the driver checks the GPU's.
        check("cuMemcpyDtoHAsync", unsafe { (self.to_host)(into, from, len, stream) })?;
        // SAFETY: the stream is ours.
        check("cuStreamSynchronize", unsafe { (self.stream_synchronize)(stream) })
    }

    /// Copies into GPU memory, and waits for that.
    ///
    /// # Safety
    /// As [`Self::copy_out`].
    pub(super) unsafe fn copy_in(
        &self,
        to: u64,
        from: *const u8,
        len: usize,
        stream: CuStream,
    ) -> Result<(), PeerMemoryError> {
        // SAFETY: as in `copy_out`.
        check("cuMemcpyHtoDAsync", unsafe { (self.to_device)(to, from, len, stream) })?;
        // SAFETY: the stream is ours.
        check("cuStreamSynchronize", unsafe { (self.stream_synchronize)(stream) })
    }
}

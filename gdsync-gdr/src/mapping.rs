//! Mappings of any backend or of host memory, and copies into and out of them.
//!
//! A child has its parent's files and this library's memory, but not the mappings, and requests that release
//! something would release it for the parent. In a child, accesses therefore fail, and drops release nothing.

use crate::backend::{Caching, MappingBackend, MappingError, MappingInfo};
use crate::copy::{self, LoadKernel, StoreKernel};
use crate::kernel::{self, File, Pages};
use gdsync_sys::host::page_size;
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// A backend's resources while pages are mapped. Dropping them releases the memory.
pub(crate) trait Resources: Send + Sync {
    /// Returns true if the GPU memory was freed while mapped, and the pages with it.
    fn freed(&self) -> bool {
        false
    }
}

/// A file that keeps its memory alive.
impl Resources for File {}

/// A backend's mapping, in drop order.
pub(crate) struct Mapped {
    pub(crate) pages: Pages,
    pub(crate) resources: Box<dyn Resources>,
    pub(crate) info: MappingInfo,
}

impl Mapped {
    /// `offset` is the position of the memory in the pages.
    pub(crate) fn new(
        pages: Pages,
        resources: impl Resources + 'static,
        (backend, caching): (MappingBackend, Caching),
        page_size: usize,
        offset: usize,
    ) -> Self {
        let info = MappingInfo { backend, caching, page_size, mapped_size: pages.len, offset };
        Mapped { pages, resources: Box::new(resources), info }
    }
}

/// Pages of a GPU, or of a stand-in, that the CPU can load from and store to.
///
/// All access is by copies, which may run concurrently with other threads' and the GPU's accesses. A concurrently
/// written byte is read old or new, independently of its neighbours; an aligned word of up to 8 bytes is read whole
/// ([`Mapping::copy_to`]).
///
/// # Example
/// ```
/// use gdsync_gdr::Mapping;
///
/// # fn main() -> Result<(), gdsync_gdr::MappingError> {
/// // Host memory instead of GPU memory; `Mapping::pin` maps GPU memory.
/// let mapping = Mapping::stand_in(4096)?;
/// mapping.copy_to(128, b"payload")?;
/// mapping.copy_to(0, &1u32.to_ne_bytes())?;
/// let mut seen = [0; 7];
/// mapping.copy_from(128, &mut seen)?;
/// assert_eq!(&seen, b"payload");
/// # Ok(())
/// # }
/// ```
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    stores: StoreKernel,
    loads: LoadKernel,
    /// True if the memory may be freed while mapped: each access checks `Mapped::resources` first.
    check_freed: bool,
    /// [`fork_generation`] of the process that created the mapping.
    process: u32,
    mapped: ManuallyDrop<Mapped>,
}

// SAFETY: `mapped` keeps the pages of the address; copies tolerate concurrent accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// From this length on, the driver reads GPU memory faster than the CPU does through a mapping: 780 bytes a
    /// microsecond, against eight microseconds for a copy and the wait for it (`gdsync lab bench card --gpu 0` on an H200).
    /// The CPU's stores are always faster.
    pub const READ_BY_DRIVER: usize = 6 << 10;

    /// Creates a mapping of `len` bytes from `info.offset` on. `check_freed`: the memory may be freed while mapped.
    pub(crate) fn new(mapped: Mapped, len: usize, check_freed: bool) -> Result<Self, MappingError> {
        let Mapped { ref pages, info, .. } = mapped;
        if info.offset.checked_add(len).is_none_or(|end| end > pages.len) {
            return Err(MappingError::OutOfBounds {
                start: info.offset,
                end: info.offset.saturating_add(len),
                len: pages.len,
            });
        }
        // SAFETY: the address is inside the pages (checked).
        let base = unsafe { pages.at.add(info.offset) };
        Ok(Mapping {
            base,
            len,
            stores: StoreKernel::best(info.caching),
            loads: LoadKernel::best(info.caching),
            check_freed,
            process: watch_forks(),
            mapped: ManuallyDrop::new(mapped),
        })
    }

    /// Creates a mapping of `len` zeroed bytes of *host* memory, to test copies to and from GPU memory on a machine
    /// without a GPU. Except for its speed, it behaves like write-combining memory.
    ///
    /// # Errors
    /// [`MappingError::NoHostMemory`] if the system has none.
    pub fn stand_in(len: usize) -> Result<Mapping, MappingError> {
        let failed = |error: io::Error| MappingError::NoHostMemory { len, reason: error.to_string() };
        let page = page_size();
        let size = len
            .max(1)
            .checked_next_multiple_of(page)
            .filter(|size| i64::try_from(*size).is_ok())
            .ok_or_else(|| failed(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: the name is zero-terminated.
        let fd = unsafe { libc::memfd_create(c"gdsync-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let file = File { kernel: kernel::system(), fd };
        // SAFETY: the file is owned here.
        if unsafe { libc::ftruncate(fd, size as libc::off_t) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let pages = file.map(size, 0).map_err(failed)?;
        let kind = (MappingBackend::StandIn, Caching::WriteCombining);
        Mapping::new(Mapped::new(pages, file, kind, page, 0), len, false)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the mapping's properties.
    pub fn info(&self) -> MappingInfo {
        self.mapped.info
    }

    /// Returns the CPU address of the first byte, valid as long as the mapping, in the process that created it. The
    /// bytes may change at any time: access them by atomics, volatile accesses or raw copies, with fences as in
    /// [`Mapping::copy_to`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies into the mapping at `offset`, and drains the bytes to the GPU (`sfence`), which sees them before any
    /// later store of this thread. 1, 2, 4 or 8 bytes at an offset that is a multiple of their number are one store.
    ///
    /// # Errors
    /// [`MappingError::OutOfBounds`] if the range leaves the mapping, [`MappingError::Freed`] if the memory was
    /// freed, [`MappingError::Forked`] in a child process.
    #[inline]
    pub fn copy_to(&self, offset: usize, from: &[u8]) -> Result<(), MappingError> {
        // SAFETY: the bytes of a slice.
        unsafe { self.store(offset, from.as_ptr(), from.len()) }
    }

    /// Copies as [`Self::copy_to`] does.
    ///
    /// # Safety
    /// The bytes are readable. Another process may write them.
    #[inline]
    pub(crate) unsafe fn store(
        &self,
        offset: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), MappingError> {
        let to = self.checked_address(offset, len)?;
        // SAFETY: the range is inside the pages (checked), which contain no Rust objects; the processor has the
        // kernel (`best`).
        unsafe { copy::store(self.stores, to, from, len) };
        Ok(())
    }

    /// Copies from the mapping at `offset`, after a full fence (`mfence`): the copy sees this thread's earlier
    /// stores. 1, 2, 4 or 8 bytes at an offset that is a multiple of their number are one load. The copy is not
    /// ordered with this thread's loads from other memory: to read data after a flag, copy the flag first.
    ///
    /// # Errors
    /// As [`Mapping::copy_to`].
    #[inline]
    pub fn copy_from(&self, offset: usize, into: &mut [u8]) -> Result<(), MappingError> {
        let from = self.checked_address(offset, into.len())?;
        // SAFETY: as in `copy_to`; the surrounding blocks of 16 bytes are inside the pages.
        unsafe { copy::load(self.loads, into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies as [`Mapping::copy_to`] does, with a given kernel. On [`Caching::Device`] memory any kernel except
    /// [`StoreKernel::Volatile`] may fault.
    ///
    /// # Errors
    /// As [`Mapping::copy_to`], and [`MappingError::NoKernel`] if the processor lacks it.
    pub fn copy_to_by(&self, kernel: StoreKernel, offset: usize, from: &[u8]) -> Result<(), MappingError> {
        if !kernel.is_available() {
            return Err(MappingError::no_kernel(kernel, StoreKernel::available()));
        }
        let to = self.checked_address(offset, from.len())?;
        // SAFETY: as in `copy_to`; the processor has the kernel (checked).
        unsafe { copy::store(kernel, to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies as [`Mapping::copy_from`] does, with a given kernel. On [`Caching::Device`] memory any kernel except
    /// [`LoadKernel::Volatile`] may fault.
    ///
    /// # Errors
    /// As [`Mapping::copy_from`], and [`MappingError::NoKernel`] if the processor lacks it.
    pub fn copy_from_by(
        &self,
        kernel: LoadKernel,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MappingError> {
        if !kernel.is_available() {
            return Err(MappingError::no_kernel(kernel, LoadKernel::available()));
        }
        let from = self.checked_address(offset, into.len())?;
        // SAFETY: as in `copy_from`; the processor has the kernel (checked).
        unsafe { copy::load(kernel, into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Returns the address of a range, if it may be accessed now.
    #[inline]
    pub(crate) fn checked_address(&self, offset: usize, count: usize) -> Result<*mut u8, MappingError> {
        let (len, end) = (self.len, offset.saturating_add(count));
        if end > len {
            return Err(MappingError::OutOfBounds { start: offset, end, len });
        }
        if self.process != fork_generation() {
            return Err(MappingError::Forked);
        }
        if self.check_freed && self.mapped.resources.freed() {
            return Err(MappingError::Freed);
        }
        Ok(self.base.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process == fork_generation() {
            // SAFETY: dropped once, here; `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.mapped) };
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:p}+{} by {})", self.base, self.len, self.mapped.info.backend)
    }
}

/// Number of forks between this process and its first ancestor with a mapping.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that differs between a process and its children. Children of vfork(2) or a raw clone(2) keep
/// their parent's number.
#[inline]
pub(crate) fn fork_generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Installs the fork handler, and returns [`fork_generation`].
fn watch_forks() -> u32 {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is allowed in a child.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
            tracing::debug!("no memory for a fork handler: a child cannot be distinguished from its parent");
        }
    });
    fork_generation()
}

#[cfg(test)]
mod tests;

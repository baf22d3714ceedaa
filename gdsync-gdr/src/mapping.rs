//! A mapping of any backend, and the copies into and out of it.

use crate::copy::{self, LoadKernel, StoreKernel};
use crate::error::MappingError;
use crate::fork;
use crate::info::{Caching, MappingBackend, MappingInfo};
use crate::kernel::{File, Pages};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// What a backend keeps as long as pages are mapped. Dropping it undoes what made them mappable.
pub(crate) trait Hold: Send + Sync {
    /// True where the GPU memory was freed under the mapping, and the pages with it.
    fn freed(&self) -> bool {
        false
    }
}

/// A file that keeps its memory.
impl Hold for File {}

/// What a backend has mapped, in the order of drops.
pub(crate) struct Mapped {
    pub(crate) pages: Pages,
    pub(crate) hold: Box<dyn Hold>,
    pub(crate) info: MappingInfo,
}

impl Mapped {
    /// `offset`: where in the pages the memory begins.
    pub(crate) fn new(
        pages: Pages,
        hold: impl Hold + 'static,
        (backend, caching): (MappingBackend, Caching),
        page_size: usize,
        offset: usize,
    ) -> Self {
        let info = MappingInfo { backend, caching, page_size, mapped_size: pages.len, offset };
        Mapped { pages, hold: Box::new(hold), info }
    }
}

/// Pages of a device, or of a stand-in, that the CPU can load from and store to.
///
/// All access is by copies, which may run at the same time as other threads' and as the GPU's. A byte that is written
/// meanwhile is read old or new, independently of its neighbours; an aligned word of up to 8 bytes is read whole
/// ([`Mapping::copy_to`]).
///
/// # Example
/// ```
/// use gdsync_gdr::Mapping;
///
/// # fn main() -> Result<(), gdsync_gdr::MappingError> {
/// // Host memory in the place of a GPU's; `Mapping::pin` maps a GPU's.
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
    /// The memory may be freed under the mapping: each access asks `Mapped::hold` first.
    ask: bool,
    /// [`fork::generation`] of the process that mapped.
    process: u32,
    mapped: ManuallyDrop<Mapped>,
}

// SAFETY: an address of pages that `mapped` keeps; the copies that access them tolerate concurrent accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes from `info.offset` on. `ask`: whether the memory may be freed under the mapping.
    pub(crate) fn new(mapped: Mapped, len: usize, ask: bool) -> Result<Self, MappingError> {
        let Mapped { ref pages, info, .. } = mapped;
        if info.offset.checked_add(len).is_none_or(|end| end > pages.len) {
            return Err(MappingError::OutOfBounds {
                start: info.offset,
                end: info.offset.saturating_add(len),
                len: pages.len,
            });
        }
        // SAFETY: inside the pages (checked).
        let base = unsafe { pages.at.add(info.offset) };
        Ok(Mapping {
            base,
            len,
            stores: StoreKernel::best(info.caching),
            loads: LoadKernel::best(info.caching),
            ask,
            process: fork::watch(),
            mapped: ManuallyDrop::new(mapped),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True where the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is mapped, and how.
    pub fn info(&self) -> MappingInfo {
        self.mapped.info
    }

    /// The CPU's address of the first byte, valid as long as the mapping in the process that made it. The bytes there
    /// change at any time: access them by atomics, volatile accesses or raw copies, and fence as [`Mapping::copy_to`]
    /// does.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies in, from `offset` on, and drains the bytes to the GPU (`sfence`), which sees them before anything that
    /// this thread stores later. 1, 2, 4 or 8 bytes at an offset that is a multiple of their number are one store.
    ///
    /// # Errors
    /// [`MappingError::OutOfBounds`], [`MappingError::Freed`], [`MappingError::Forked`].
    #[inline]
    pub fn copy_to(&self, offset: usize, from: &[u8]) -> Result<(), MappingError> {
        let to = self.place(offset, from.len())?;
        // SAFETY: inside the pages (checked), in which no Rust object lies; the processor has the kernel (`best`).
        unsafe { copy::store(self.stores, to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// Copies out, from `offset` on, after a full fence (`mfence`): it sees what this thread stored before. 1, 2, 4
    /// or 8 bytes at an offset that is a multiple of their number are one load. The copy is not ordered with loads of
    /// this thread from other memory: to read data after a flag, copy the flag first.
    ///
    /// # Errors
    /// As [`Mapping::copy_to`].
    #[inline]
    pub fn copy_from(&self, offset: usize, into: &mut [u8]) -> Result<(), MappingError> {
        let from = self.place(offset, into.len())?;
        // SAFETY: as in `copy_to`; blocks of 16 bytes around do not leave the pages.
        unsafe { copy::load(self.loads, into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// As [`Mapping::copy_to`], by a kernel of the caller's choice. On [`Caching::Device`](crate::Caching::Device)
    /// memory any other than [`StoreKernel::Volatile`] may fault.
    ///
    /// # Errors
    /// As [`Mapping::copy_to`], and [`MappingError::NoKernel`].
    pub fn copy_to_by(&self, kernel: StoreKernel, offset: usize, from: &[u8]) -> Result<(), MappingError> {
        if !kernel.is_available() {
            return Err(MappingError::no_kernel(kernel, StoreKernel::available()));
        }
        let to = self.place(offset, from.len())?;
        // SAFETY: as in `copy_to`; the processor has the kernel (checked).
        unsafe { copy::store(kernel, to, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// As [`Mapping::copy_from`], by a kernel of the caller's choice. On [`Caching::Device`](crate::Caching::Device)
    /// memory any other than [`LoadKernel::Volatile`] may fault.
    ///
    /// # Errors
    /// As [`Mapping::copy_from`], and [`MappingError::NoKernel`].
    pub fn copy_from_by(
        &self,
        kernel: LoadKernel,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), MappingError> {
        if !kernel.is_available() {
            return Err(MappingError::no_kernel(kernel, LoadKernel::available()));
        }
        let from = self.place(offset, into.len())?;
        // SAFETY: as in `copy_from`; the processor has the kernel (checked).
        unsafe { copy::load(kernel, into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// The address of a range, if it may be accessed now.
    #[inline]
    fn place(&self, offset: usize, count: usize) -> Result<*mut u8, MappingError> {
        let (len, end) = (self.len, offset.saturating_add(count));
        if end > len {
            return Err(MappingError::OutOfBounds { start: offset, end, len });
        }
        if self.process != fork::generation() {
            return Err(MappingError::Forked);
        }
        if self.ask && self.mapped.hold.freed() {
            return Err(MappingError::Freed);
        }
        Ok(self.base.as_ptr().wrapping_add(offset))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process == fork::generation() {
            // SAFETY: dropped once, here, and `self` is used no more.
            unsafe { ManuallyDrop::drop(&mut self.mapped) };
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:p}+{} by {})", self.base, self.len, self.mapped.info.backend)
    }
}

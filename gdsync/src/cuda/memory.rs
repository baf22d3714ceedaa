//! GPU memory as payload.

use super::context::GpuContext;
use super::error::{CudaError, check};
use super::exportable::{self, Exportable, Exported};
use crate::memory::mapped::Mapping;
use crate::memory::page_size;
use crate::memory::use_count::UseCount;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, sys};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Memory of a GPU. Clones name the same memory, which is freed after the last of them; regions hold one.
#[derive(Clone)]
pub struct GpuMemory {
    // Before the memory: whoever keeps that for its users is told first.
    use_count: Arc<UseCount>,
    inner: Arc<Inner>,
}

struct Inner {
    address: u64,
    /// Tells it apart from others at that address.
    number: u64,
    len: usize,
    context: Arc<GpuContext>,
    /// The newest mapping for the CPU, as long as somebody has it.
    mapping: Mutex<Weak<Mapping>>,
    owner: Owner,
}

/// Who frees the memory.
enum Owner {
    /// We do.
    Ours,
    /// Dropping this does.
    Program(Option<Box<dyn Any + Send + Sync>>),
}

/// All memory that is there: how a software card knows what is not the CPU's. By its first address and a number, as the program may
/// have wrapped a part of something, or the same twice.
type Known = BTreeMap<(u64, u64), (usize, Weak<Inner>)>;
static KNOWN: Mutex<Known> = Mutex::new(Known::new());

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl GpuMemory {
    /// Allocates `len` zeroed bytes (`cuMemAlloc`). A length of 0 gets memory of which 0 bytes are usable.
    ///
    /// # Errors
    /// [`CudaError::Call`] where the memory cannot be had.
    pub fn allocate(context: &Arc<CudaContext>, len: usize) -> Result<Self, CudaError> {
        let context = GpuContext::of(context)?;
        // What was dropped before may be free now.
        context.collect();
        let entered = context.enter()?;
        let _mode = super::CaptureModeGuard::relaxed();
        let mut address = 0;
        // SAFETY: `address` is a valid place; the context is current.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, len.max(1)) })?;
        drop(entered);
        let memory = Self::known(address, len, context, Owner::Ours);
        if len > 0 {
            // SAFETY: allocated just now, so many bytes long.
            memory.inner.context.with_copier(|copier| unsafe { copier.zero(address, len) })?;
        }
        Ok(memory)
    }

    /// As [`Self::allocate`], of the kind that can be exported: whole pieces of what the GPU gives, 2 MiB as a rule.
    pub(crate) fn allocate_exportable(context: &Arc<GpuContext>, len: usize) -> Result<Self, CudaError> {
        context.collect();
        let memory = {
            let _entered = context.enter()?;
            let _mode = super::CaptureModeGuard::relaxed();
            Exportable::allocate(context, len)?
        };
        let (address, size) = (memory.address(), memory.size());
        let memory = Self::known(address, len, context.clone(), Owner::Program(Some(Box::new(memory))));
        // SAFETY: allocated just now, so many bytes long.
        memory.inner.context.with_copier(|copier| unsafe { copier.zero(address, size) })?;
        Ok(memory)
    }

    /// Allocates memory that holds these bytes. Gives nothing back meanwhile: a stream's lock may be held.
    pub(crate) fn holding(context: &Arc<GpuContext>, bytes: &[u8]) -> Result<Self, CudaError> {
        let entered = context.enter()?;
        let _mode = super::CaptureModeGuard::relaxed();
        let mut address = 0;
        // SAFETY: `address` is a valid place; the context is current.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.len().max(1)) })?;
        drop(entered);
        let memory = Self::known(address, bytes.len(), context.clone(), Owner::Ours);
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Takes a buffer of cudarc. What was enqueued for it on its stream is waited for.
    ///
    /// # Errors
    /// [`CudaError::Call`] where that fails.
    pub fn from_slice<T: Send + Sync + 'static>(slice: CudaSlice<T>) -> Result<Self, CudaError> {
        let context = GpuContext::of(slice.context())?;
        let stream = slice.stream().clone();
        stream.synchronize().map_err(|error| CudaError::call("cuStreamSynchronize", error.0))?;
        let address = {
            let (address, _used) = slice.device_ptr(&stream);
            address
        };
        let len = slice.num_bytes();
        Ok(Self::known(address, len, context, Owner::Program(Some(Box::new(slice)))))
    }

    /// Wraps memory that the program owns, for example that of another library.
    ///
    /// # Errors
    /// [`CudaError::Call`] where the context does not answer.
    ///
    /// # Safety
    /// `address..address + len` is memory of a GPU that the context reaches, and stays so until the last clone of the value
    /// and everything made from it is gone.
    pub unsafe fn from_raw(context: &Arc<CudaContext>, address: u64, len: usize) -> Result<Self, CudaError> {
        Ok(Self::known(address, len, GpuContext::of(context)?, Owner::Program(None)))
    }

    fn known(address: u64, len: usize, context: Arc<GpuContext>, owner: Owner) -> Self {
        #[cfg(feature = "software-card")]
        super::peer_memory::register_client();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(Inner { address, number, len, context, mapping: Mutex::default(), owner });
        known().insert((address, number), (len, Arc::downgrade(&inner)));
        Self::of(inner)
    }

    fn of(inner: Arc<Inner>) -> Self {
        GpuMemory { use_count: Arc::new(UseCount::new()), inner }
    }

    /// A handle that keeps the memory without counting as a user of it.
    pub(crate) fn keeper(&self) -> Self {
        Self::of(self.inner.clone())
    }

    pub(crate) fn use_count(&self) -> &UseCount {
        &self.use_count
    }

    /// Wraps memory that the program owns, of a context that is known.
    ///
    /// # Safety
    /// As [`Self::from_raw`].
    pub(crate) unsafe fn of_program(context: &Arc<GpuContext>, address: u64, len: usize) -> Self {
        Self::known(address, len, context.clone(), Owner::Program(None))
    }

    /// A keeper of the memory that holds `len` bytes from `address` on: `Some(Err)` where it holds only some of them.
    #[cfg(feature = "software-card")]
    pub(super) fn find(address: u64, len: u64) -> Option<Result<GpuMemory, String>> {
        let end = address.checked_add(len)?;
        let mut part = None;
        let mut whole = None;
        let list = known();
        for ((first, _), (held, weak)) in list.range(..(end, 0)).rev() {
            let last = first + (*held).max(1) as u64;
            if *first <= address && end <= last {
                whole = weak.upgrade();
            } else if address < last {
                part.get_or_insert((*first, *held));
            }
            if whole.is_some() {
                break;
            }
        }
        // What is dropped takes the lock.
        drop(list);
        match (whole, part) {
            (Some(inner), _) => Some(Ok(Self::of(inner))),
            (None, Some((first, held))) => Some(Err(format!(
                "{len} bytes at {address:#x} leave the {held} bytes of GPU memory at {first:#x}"
            ))),
            (None, None) => None,
        }
    }

    /// The GPU's address of the first byte, for kernels.
    pub fn address(&self) -> u64 {
        self.inner.address
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// True where the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Remembers a mapping of this memory.
    pub(crate) fn set_mapping(&self, mapping: Weak<Mapping>) {
        *self.inner.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = mapping;
    }

    /// The newest mapping of this memory that somebody still has.
    #[cfg(feature = "software-card")]
    pub(super) fn mapping(&self) -> Option<Arc<Mapping>> {
        self.inner.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).upgrade()
    }

    pub(crate) fn context(&self) -> &Arc<GpuContext> {
        &self.inner.context
    }

    /// Copies out, from `offset` on. Not in the order of any stream: what is still being written may be torn.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], [`CudaError::Call`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), CudaError> {
        self.check(offset, into.len())?;
        // SAFETY: checked to lie inside, and alive as long as `self`.
        self.inner.context.with_copier(|copier| unsafe { copier.read(self.address() + offset as u64, into) })
    }

    /// Copies in, from `offset` on. Not in the order of any stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], [`CudaError::Call`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), CudaError> {
        self.check(offset, from.len())?;
        // SAFETY: checked to lie inside, and alive as long as `self`.
        self.inner.context.with_copier(|copier| unsafe { copier.write(self.address() + offset as u64, from) })
    }

    fn check(&self, start: usize, count: usize) -> Result<(), CudaError> {
        let (len, end) = (self.len(), start.saturating_add(count));
        if end > len { Err(CudaError::OutOfBounds { start, end, len }) } else { Ok(()) }
    }

    /// True where the memory stays as long as this value: not where only a promise says so ([`Self::from_raw`]).
    pub(crate) fn is_kept(&self) -> bool {
        !matches!(self.inner.owner, Owner::Program(None))
    }

    /// Makes the driver's synchronous copies to and from this memory finish before they return, as memory needs that others than
    /// the driver look at. Not all kinds of memory know of it; those that do not are copied synchronously.
    pub(crate) fn synchronise_copies(&self) {
        let Ok(_entered) = self.inner.context.enter() else { return };
        let on: libc::c_uint = 1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: the attribute is an unsigned int; the driver checks the address.
        let result = unsafe { sys::cuPointerSetAttribute((&raw const on).cast(), attribute, self.address()) };
        if let Err(error) = check("cuPointerSetAttribute", result) {
            tracing::debug!(%error, "copies to GPU memory are as synchronous as its kind has them");
        }
    }

    /// Exports the allocation that holds the memory.
    pub(crate) fn export(&self) -> Result<Exported, CudaError> {
        let _entered = self.inner.context.enter()?;
        let fd = exportable::export(self.address())?;
        let ours = match &self.inner.owner {
            Owner::Program(Some(owner)) => owner.downcast_ref::<Exportable>(),
            _ => None,
        };
        let (base, size) = match ours {
            Some(memory) => (memory.address(), memory.size()),
            None => exportable::range(self.address())?,
        };
        Ok(Exported { fd, size, offset: (self.address() - base) as usize })
    }

    /// A dma-buf of the memory, for whoever imports it: its file descriptor, and the offset of the first byte in it. It spans whole
    /// pages of the host, as the driver demands; the memory itself need not.
    ///
    /// # Errors
    /// [`CudaError::Call`] where the driver makes none, [`CudaError::OutOfBounds`] where the memory ends with the address space.
    pub fn dma_buf(&self) -> Result<(std::os::fd::OwnedFd, u64), CudaError> {
        use std::os::fd::FromRawFd;
        let len = self.len().max(1);
        let whole = whole_pages(self.address(), len as u64, page_size() as u64);
        let (first, size) = whole.ok_or(CudaError::OutOfBounds { start: 0, end: len, len })?;
        let _entered = self.inner.context.enter()?;
        let mut fd: libc::c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: `fd` is a valid place for a descriptor, which is what this kind of handle is.
        check("cuMemGetHandleForAddressRange", unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), first, size as usize, kind, 0)
        })?;
        // SAFETY: the driver made the descriptor for us.
        Ok((unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }, self.address() - first))
    }
}

/// The whole pages that hold `len` bytes from `address` on: first address and length. None where they leave the address space.
fn whole_pages(address: u64, len: u64, page: u64) -> Option<(u64, u64)> {
    let first = address - address % page;
    let end = address.checked_add(len)?.checked_next_multiple_of(page)?;
    Some((first, end - first))
}

/// The driver's number of the allocation that holds an address (`CU_POINTER_ATTRIBUTE_BUFFER_ID`): unique in the process.
pub(crate) fn buffer_id(context: &GpuContext, address: u64) -> Result<u64, CudaError> {
    let _entered = context.enter()?;
    let mut id = 0u64;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
    // SAFETY: the attribute is an unsigned long long; the driver checks the address.
    check("cuPointerGetAttribute", unsafe {
        sys::cuPointerGetAttribute((&raw mut id).cast(), attribute, address)
    })?;
    Ok(id)
}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuMemory({:#x}+{} on GPU {})", self.address(), self.len(), self.inner.context.ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        known().remove(&(self.address, self.number));
        // To free waits for the GPU, which may wait for this thread. Later, then.
        match &mut self.owner {
            Owner::Program(owner) => {
                if let Some(owner) = owner.take() {
                    self.context.defer(move || drop(owner));
                }
            }
            Owner::Ours => {
                let address = self.address;
                self.context.defer(move || {
                    // SAFETY: allocated by us in the context that is current for deferred calls, and used by nobody any more.
                    if let Err(error) = check("cuMemFree", unsafe { sys::cuMemFree_v2(address) }) {
                        tracing::debug!(%error, "GPU memory was not freed");
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For pages of every size that hosts have: the registered address and the offset agree within a page, as the kernel demands.
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
}

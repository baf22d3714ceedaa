//! GPU memory as payload.

use super::context::GpuContext;
use super::error::{CudaError, check};
use super::exportable::{self, Exportable, Exported};
use crate::memory::mapped::{MappedMemory, WeakMapping};
use crate::memory::page_size;
use cudarc::driver::{CudaContext, CudaSlice, DevicePtr, sys};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Memory of a GPU. Clones name the same memory, which is freed after the last of them; regions hold one.
#[derive(Clone)]
pub struct GpuMemory {
    inner: Arc<Inner>,
}

struct Inner {
    address: u64,
    len: usize,
    context: Arc<GpuContext>,
    /// The newest mapping for the CPU, as long as somebody has it.
    mapping: Mutex<WeakMapping>,
    owner: Owner,
}

/// Who frees the memory.
enum Owner {
    /// We do.
    Ours,
    /// Dropping this does.
    Program(Option<Box<dyn Any + Send + Sync>>),
}

/// All memory that is there, by its first address: how a software card knows what is not the CPU's.
static KNOWN: Mutex<BTreeMap<u64, Weak<Inner>>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<u64, Weak<Inner>>> {
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
        let _relaxed = super::Relaxed::enter();
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
            let _relaxed = super::Relaxed::enter();
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
        let _relaxed = super::Relaxed::enter();
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
        super::region::tell_software_cards();
        let inner = Arc::new(Inner { address, len, context, mapping: Mutex::default(), owner });
        known().insert(address, Arc::downgrade(&inner));
        GpuMemory { inner }
    }

    /// The memory that holds `len` bytes from `address` on: `Some(Err)` where it holds only some of them.
    #[cfg(feature = "software-card")]
    pub(super) fn find(address: u64, len: u64) -> Option<Result<GpuMemory, String>> {
        let end = address.checked_add(len)?;
        let inner = known().range(..end).next_back().and_then(|(_, weak)| weak.upgrade())?;
        let (first, last) = (inner.address, inner.address + inner.len.max(1) as u64);
        if address >= last {
            return None;
        }
        Some(if first <= address && end <= last {
            Ok(GpuMemory { inner })
        } else {
            Err(format!(
                "{len} bytes at {address:#x} leave the {} bytes of GPU memory at {first:#x}",
                inner.len
            ))
        })
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
    pub(crate) fn set_mapping(&self, mapping: WeakMapping) {
        *self.inner.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = mapping;
    }

    /// The newest mapping of this memory that somebody still has.
    #[cfg(feature = "software-card")]
    pub(super) fn mapping(&self) -> Option<MappedMemory> {
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

    /// A dma-buf of the memory: its file descriptor, and the offset of the first byte in it.
    pub(crate) fn dma_buf(&self) -> Result<(std::os::fd::OwnedFd, u64), CudaError> {
        use std::os::fd::FromRawFd;
        let page = page_size() as u64;
        let first = self.address() & !(page - 1);
        let end = (self.address() + self.len().max(1) as u64).next_multiple_of(page);
        let _entered = self.inner.context.enter()?;
        let mut fd: libc::c_int = -1;
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        // SAFETY: `fd` is a valid place for a descriptor, which is what this kind of handle is.
        check("cuMemGetHandleForAddressRange", unsafe {
            sys::cuMemGetHandleForAddressRange((&raw mut fd).cast(), first, (end - first) as usize, kind, 0)
        })?;
        // SAFETY: the driver made the descriptor for us.
        Ok((unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }, self.address() - first))
    }
}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuMemory({:#x}+{} on GPU {})", self.address(), self.len(), self.inner.context.ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut known = known();
        if known.get(&self.address).is_some_and(|weak| weak.strong_count() == 0) {
            known.remove(&self.address);
        }
        drop(known);
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

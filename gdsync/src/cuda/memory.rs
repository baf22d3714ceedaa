//! GPU memory, allocated by gdsync or by the program.

use crate::cuda::context::is_registered_by_us;
use crate::cuda::{CudaError, GpuContext, check};
use crate::memory::use_count::UseCount;
use cudarc::driver::{CudaContext, sys};
use gdsync_gdr::{Gpu, GpuRange, Mapping};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Memory of a GPU. Clones name the same memory, which is freed after the last of them; regions hold a clone.
#[derive(Clone)]
pub struct GpuMemory {
    // Dropped first: caches are notified while the memory still exists.
    use_count: Arc<UseCount>,
    inner: Arc<Inner>,
}

struct Inner {
    address: u64,
    /// Distinguishes values with the same address.
    number: u64,
    len: usize,
    /// Allocated by gdsync: at least one byte, whatever the length.
    own: bool,
    context: Arc<GpuContext>,
    /// The newest CPU mapping, while a handle of it exists.
    mapping: Mutex<Weak<Mapping>>,
    owner: Owner,
}

/// Keeps the memory; `()` if the program does so by other means.
type Owner = Box<dyn Any + Send + Sync>;

/// Memory that gdsync allocated. A deferred call drops and so frees it, with its context current.
struct Allocated(u64);

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: allocated in the context that is current for deferred calls; the last handle was dropped.
        if let Err(error) = check("cuMemFree", unsafe { sys::cuMemFree_v2(self.0) }) {
            tracing::debug!(%error, "GPU memory was not freed");
        }
    }
}

pub(super) fn access(gpu: i32) -> sys::CUmemAccessDesc {
    let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: gpu };
    sys::CUmemAccessDesc { location, flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

/// Exportable physical memory with an address range (`cuMemCreate`, `cuMemMap`). Its drop frees it, which may wait.
struct Exportable {
    address: u64,
    size: usize,
    mapped: bool,
}

impl Exportable {
    /// Allocates at least `len` bytes, which `readers` reach, too. The context is current (the caller's).
    fn allocate(context: &GpuContext, len: usize, readers: &BTreeSet<i32>) -> Result<Self, CudaError> {
        let location = access(context.ordinal).location;
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            location,
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                // For gdrdrv and for cards.
                gpuDirectRDMACapable: 1,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut granularity = 0;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: valid places.
        check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(&mut granularity, &properties, least)
        })?;
        let too_much = || CudaError::call("cuMemCreate", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let size = len.max(1).checked_next_multiple_of(granularity.max(1)).ok_or_else(too_much)?;

        let mut handle = 0;
        // SAFETY: valid places.
        check("cuMemCreate", unsafe { sys::cuMemCreate(&mut handle, size, &properties, 0) })?;
        let mapped = Self::map(handle, size);
        // SAFETY: created just now. From here on, the mapping keeps the memory.
        let released = check("cuMemRelease", unsafe { sys::cuMemRelease(handle) });
        let mapped = mapped?;
        released?;
        [context.ordinal].iter().chain(readers).try_for_each(|gpu| mapped.share(*gpu))?;
        Ok(mapped)
    }

    fn map(handle: sys::CUmemGenericAllocationHandle, size: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: a valid place; the driver chooses the address.
        check("cuMemAddressReserve", unsafe { sys::cuMemAddressReserve(&mut address, size, 0, 0, 0) })?;
        // From here on, its drop undoes the steps so far.
        let mut memory = Exportable { address, size, mapped: false };
        // SAFETY: the range is reserved, and as large as the memory.
        check("cuMemMap", unsafe { sys::cuMemMap(address, size, 0, handle, 0) })?;
        memory.mapped = true;
        Ok(memory)
    }

    fn share(&self, gpu: i32) -> Result<(), CudaError> {
        let access = access(gpu);
        // SAFETY: mapped as long as `self`; one entry.
        check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(self.address, self.size, &access, 1) })
    }
}

impl Drop for Exportable {
    fn drop(&mut self) {
        let undo = || -> Result<(), CudaError> {
            if self.mapped {
                // SAFETY: mapped by this value, which is being dropped: nothing uses the memory.
                check("cuMemUnmap", unsafe { sys::cuMemUnmap(self.address, self.size) })?;
            }
            // SAFETY: reserved by us, and nothing is mapped there.
            check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(self.address, self.size) })
        };
        if let Err(error) = undo() {
            tracing::debug!(%error, "GPU memory was not freed");
        }
    }
}

/// All GPU memory, by first address and number, as the program may wrap parts of an allocation, or wrap it twice. A
/// software card looks up here whether an address is a GPU's.
type Known = BTreeMap<(u64, u64), (usize, Weak<Inner>)>;
static KNOWN: Mutex<Known> = Mutex::new(Known::new());

impl GpuMemory {
    /// Allocates `len` zeroed bytes (`cuMemAlloc`). A length of 0 allocates memory of which 0 bytes are usable.
    ///
    /// # Errors
    /// [`CudaError::OnGpu`] if the memory cannot be allocated.
    pub fn allocate(context: &Arc<CudaContext>, len: usize) -> Result<Self, CudaError> {
        let context = GpuContext::of(context)?;
        // Frees memory that was dropped before, if possible.
        context.collect();
        let memory = Self::unfilled(&context, len)?;
        if len > 0 {
            // SAFETY: allocated just now, `len` bytes long.
            context.with_copier(|copier| unsafe { copier.zero(memory.address(), len) })?;
        }
        Ok(memory)
    }

    /// Allocates memory with undefined content (`cuMemAlloc`).
    pub(crate) fn unfilled(context: &Arc<GpuContext>, len: usize) -> Result<Self, CudaError> {
        let _entered = context.enter()?;
        let _mode = super::RelaxedCapture::new();
        let mut address = 0;
        // SAFETY: `address` is a valid place; the context is current.
        let made = check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, len.max(1)) });
        context.named(made)?;
        Ok(Self::new(address, len, true, context.clone(), Box::new(Allocated(address))))
    }

    /// As [`Self::allocate`], for memory that can be exported: whole pieces of the GPU, typically 2 MiB.
    pub(crate) fn allocate_exportable(context: &Arc<GpuContext>, len: usize) -> Result<Self, CudaError> {
        context.collect();
        // Locked until the memory is in the list: a new reader finds it there.
        let readers = context.peers.readers.lock();
        let entered = context.enter()?;
        let mode = super::RelaxedCapture::new();
        let memory = context.named(Exportable::allocate(context, len, &readers))?;
        let (address, size) = (memory.address, memory.size);
        let memory = Self::new(address, len, true, context.clone(), Box::new(memory));
        drop((mode, entered, readers));
        // SAFETY: allocated just now, `size` bytes long.
        context.with_copier(|copier| unsafe { copier.zero(address, size) })?;
        Ok(memory)
    }

    /// Allocates memory with these bytes. Frees nothing meanwhile, as the caller may hold a stream's lock.
    pub(crate) fn holding(context: &Arc<GpuContext>, bytes: &[u8]) -> Result<Self, CudaError> {
        let memory = Self::unfilled(context, bytes.len())?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Wraps memory of the program, for example of another library.
    ///
    /// `owner` keeps the memory alive. It is dropped after the last clone of the returned value and everything made
    /// from it, when the context's streams are next found idle: its drop may free GPU memory, which waits for the
    /// GPU. The drop must neither post to a stream of this library nor wait for one. Pass `()` if the program keeps
    /// the memory by other means.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the context does not answer. `owner` is dropped then.
    ///
    /// # Safety
    /// `address..address + len` is memory of a GPU that the context reaches. It stays so until `owner` is dropped;
    /// with `()` for an owner, until the last clone of the returned value and everything made from it is dropped.
    pub unsafe fn from_raw(
        context: &Arc<CudaContext>,
        address: u64,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self, CudaError> {
        Ok(Self::new(address, len, false, GpuContext::of(context)?, Box::new(owner)))
    }

    fn new(address: u64, len: usize, own: bool, context: Arc<GpuContext>, owner: Owner) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(Inner { address, number, len, own, context, mapping: Mutex::default(), owner });
        KNOWN.lock().insert((address, number), (len, Arc::downgrade(&inner)));
        Self::of(inner)
    }

    fn of(inner: Arc<Inner>) -> Self {
        GpuMemory { use_count: Arc::new(UseCount::new()), inner }
    }

    /// A handle that keeps the memory without counting as a user of it.
    pub(crate) fn uncounted(&self) -> Self {
        Self::of(self.inner.clone())
    }

    pub(crate) fn use_count(&self) -> &UseCount {
        &self.use_count
    }

    /// An uncounted handle of the memory with `len` bytes from `address` on: `Some(Err)` if it holds only some of them.
    #[cfg(feature = "software-card")]
    pub(super) fn find(address: u64, len: u64) -> Option<Result<GpuMemory, String>> {
        let end = address.checked_add(len)?;
        let mut part = None;
        let mut whole = None;
        let list = KNOWN.lock();
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
        // The drop of a handle takes the lock.
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

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length that a card registers: at least one byte of gdsync's allocations, as no region is empty.
    pub(crate) fn registered_len(&self) -> usize {
        if self.inner.own { self.len().max(1) } else { self.len() }
    }

    /// Returns whether the memory was made with this context, and is on the context's own GPU rather than on a peer that
    /// the context reaches.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the driver does not know the memory.
    pub fn is_of(&self, context: &Arc<CudaContext>) -> Result<bool, CudaError> {
        let context = GpuContext::of(context)?;
        let own = Arc::ptr_eq(&context, self.context());
        Ok(own && gpu_at(&context, self.address())? == context.ordinal)
    }

    pub(super) fn is_own(&self) -> bool {
        self.inner.own
    }

    pub(crate) fn set_mapping(&self, mapping: Weak<Mapping>) {
        *self.inner.mapping.lock() = mapping;
    }

    /// The newest mapping of this memory that still exists.
    #[cfg(feature = "software-card")]
    pub(super) fn mapping(&self) -> Option<Arc<Mapping>> {
        self.inner.mapping.lock().upgrade()
    }

    pub(crate) fn context(&self) -> &Arc<GpuContext> {
        &self.inner.context
    }

    /// Copies out, from `offset` on. The copy is not ordered with any stream, and may tear data that are being written.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], [`CudaError::OnGpu`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), CudaError> {
        self.check(offset, into.len())?;
        // SAFETY: checked to be inside, and alive as long as `self`.
        self.inner.context.with_copier(|copier| unsafe { copier.read(self.address() + offset as u64, into) })
    }

    /// Copies in, from `offset` on. The copy is not ordered with any stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], [`CudaError::OnGpu`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), CudaError> {
        self.check(offset, from.len())?;
        // SAFETY: checked to be inside, and alive as long as `self`.
        self.inner.context.with_copier(|copier| unsafe { copier.write(self.address() + offset as u64, from) })
    }

    fn check(&self, start: usize, count: usize) -> Result<(), CudaError> {
        let (len, end) = (self.len(), start.saturating_add(count));
        if end > len { Err(CudaError::OutOfBounds { start, end, len }) } else { Ok(()) }
    }

    /// The memory, for mappings.
    pub(super) fn range(&self) -> GpuRange {
        let gpu = Gpu::from_device(self.inner.context.ordinal);
        // SAFETY: this context, which is never destroyed, reaches the memory as long as `self` or the program keeps it.
        let range = unsafe { GpuRange::new(self.inner.context.raw, gpu, self.address(), self.len()) };
        // With `()` for an owner, only the program's promise keeps the memory ([`Self::from_raw`]).
        range.kept(!self.inner.owner.is::<()>())
    }

    /// Exports the memory as a dma-buf: returns its file descriptor, and the offset of the memory in it. It spans
    /// whole pages of the host, as the driver demands; the memory need not.
    ///
    /// # Errors
    /// [`DriverError::Call`](super::DriverError::Call) if the driver does not export it.
    pub fn dma_buf(&self) -> Result<(OwnedFd, u64), CudaError> {
        Ok(self.range().dma_buf()?)
    }
}

/// Gives a GPU access to the exportable memory of a context.
pub(super) fn share_mapped(context: &GpuContext, reader: i32) -> Result<(), CudaError> {
    // Dropped after the list is unlocked: their drops lock it.
    let all: Vec<Arc<Inner>> = KNOWN.lock().values().filter_map(|(_, weak)| weak.upgrade()).collect();
    let own = all.iter().filter(|inner| inner.context.id == context.id);
    let mut shared = own.filter_map(|inner| inner.owner.downcast_ref::<Exportable>());
    shared.try_for_each(|memory| memory.share(reader))
}

/// The driver's id of the allocation at an address (`CU_POINTER_ATTRIBUTE_BUFFER_ID`), unique in the process.
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

/// The driver's id of the host memory at an address, a new one for each allocation and each registration by the
/// program. `None` if the driver does not know the memory, or if gdsync registered it: the program may then free it,
/// and map other memory there, before the driver learns of it.
pub(crate) fn host_buffer_id(context: &GpuContext, address: u64) -> Result<Option<u64>, CudaError> {
    let _entered = context.enter()?;
    let (mut kind, mut start) = (0u32, 0u64);
    for (attribute, place) in [
        (sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (&raw mut kind).cast()),
        (sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, (&raw mut start).cast()),
    ] {
        // SAFETY: the places have the widths of the attributes; the driver checks the address.
        match unsafe { sys::cuPointerGetAttribute(place, attribute, address) } {
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(None),
            result => check("cuPointerGetAttribute", result)?,
        }
    }
    let is_host = kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    if !is_host || is_registered_by_us(start) {
        return Ok(None);
    }
    buffer_id(context, address).map(Some)
}

/// The GPU whose memory is at an address (`CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`).
fn gpu_at(context: &GpuContext, address: u64) -> Result<i32, CudaError> {
    let _entered = context.enter()?;
    let mut ordinal = 0i32;
    let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: the attribute is an int; the driver checks the address.
    check("cuPointerGetAttribute", unsafe {
        sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address)
    })?;
    Ok(ordinal)
}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuMemory({:#x}+{} on GPU {})", self.address(), self.len(), self.inner.context.ordinal)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        KNOWN.lock().remove(&(self.address, self.number));
        // Freeing waits for the GPU, which may wait for this thread: it is deferred.
        let owner = std::mem::replace(&mut self.owner, Box::new(()));
        if !owner.is::<()>() {
            self.context.defer(move || drop(owner));
        }
    }
}

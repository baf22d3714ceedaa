//! A cache of registrations, for programs that name their memory with each message.

#[deny(unsafe_code)]
mod table;

use crate::verbs::{
    Access, Error, GpuMemoryRegion, MemoryRegion, MemoryRegionInner, OutOfRange, ProtectionDomain, Region,
    RegistrationPath,
};
pub use table::{CacheLimits, CacheStatistics};

use crate::cuda::{GpuContext, GpuMemory, buffer_id, host_buffer_id};
use crate::memory::PinnedMemory;
use crate::memory::use_count::{UseCount, Watcher};
use cudarc::driver::CudaContext;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use table::{Extent, Table};

/// A cache of a protection domain's registrations, by address and access: registering memory takes a system call and
/// time for every page, and a look-up takes neither.
///
/// It is a cheap handle; clones name the same cache. It keeps its [`CacheLimits`] by evicting unused registrations,
/// the least recently used first. Registrations in use stay; if they leave no room, a new one is returned without
/// being cached. Work that the CPU has posted does not count as a use: its registrations may be evicted, and are
/// deregistered when it has completed. Any registration that covers the requested bytes and access serves a request.
///
/// A registration leaves the cache when the program and streams have dropped the last handle of its [`PinnedMemory`]
/// or [`GpuMemory`], or when [`RegistrationCache::invalidate`] names its addresses. It is deregistered when the last
/// work request that uses it has completed; until then the memory is kept.
///
/// ```
/// use gdsync::{Access, Device, PinnedMemory, ProtectionDomain};
/// use gdsync::verbs::RegistrationCache;
///
/// let cache = RegistrationCache::new(&ProtectionDomain::new(&Device::software()?)?);
/// let memory = PinnedMemory::allocate(1 << 16)?;
/// for _message in 0..100 {
///     let region = cache.host(&memory, Access::LOCAL_WRITE)?;
///     let _for_a_work_request = region.slice(..64)?;
/// }
/// assert_eq!((cache.statistics().misses, cache.statistics().hits), (1, 99));
/// drop(memory);
/// assert_eq!(cache.statistics().entries, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RegistrationCache {
    inner: Arc<Inner>,
}

struct Inner {
    pd: ProtectionDomain,
    table: Mutex<Table<MemoryRegionInner>>,
}

impl Watcher for Inner {
    fn unused(&self, memory: u64) {
        let gone = self.table.lock().forget(memory);
        // Dropped without the lock: deregistering calls the provider.
        drop(gone);
    }
}

/// Registered memory from a cache. It stays registered while this, or a work request that names it, exists.
pub type CachedRegion = Region<CachedMemory>;

/// The memory of a [`CachedRegion`]. It counts as a user of its memory, even if the registration covers more.
#[derive(Clone, Debug)]
pub struct CachedMemory(#[expect(dead_code, reason = "held, not looked at")] Handle);

#[derive(Clone, Debug)]
enum Handle {
    Host { _memory: PinnedMemory },
    Gpu { _memory: GpuMemory },
    Raw,
}

impl RegistrationCache {
    /// Makes a cache for memory of a protection domain, with the default limits.
    pub fn new(pd: &ProtectionDomain) -> Self {
        Self::with_limits(pd, CacheLimits::default())
    }

    /// Makes a cache for memory of a protection domain.
    pub fn with_limits(pd: &ProtectionDomain, limits: CacheLimits) -> Self {
        let inner = Inner { pd: pd.clone(), table: Mutex::new(Table::new(limits)) };
        RegistrationCache { inner: Arc::new(inner) }
    }

    /// Returns the protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// Returns pinned memory, registered as a whole with at least that access.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    pub fn host(&self, memory: &PinnedMemory, access: Access) -> Result<CachedRegion, Error> {
        let extent =
            Extent { addresses: addresses(memory.addr().get(), memory.len())?, access, identity: None };
        let handle = Handle::Host { _memory: memory.clone() };
        self.get(extent, Some(memory.use_count()), handle, memory.len(), || {
            MemoryRegion::register_inner(&self.inner.pd, memory, access)
        })
    }

    /// Registers as [`Self::host`] does, and returns a [`MemoryRegion`], with the memory's words and copies.
    ///
    /// ```
    /// use gdsync::{Access, Device, PinnedMemory, ProtectionDomain};
    /// use gdsync::verbs::RegistrationCache;
    ///
    /// let cache = RegistrationCache::new(&ProtectionDomain::new(&Device::software()?)?);
    /// let memory = PinnedMemory::allocate(1 << 16)?;
    /// let region = cache.host_region(&memory, Access::LOCAL_WRITE)?;
    /// region.write(0, b"hello");
    /// assert_eq!(region.lkey(), cache.host(&memory, Access::LOCAL_WRITE)?.lkey());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    pub fn host_region(&self, memory: &PinnedMemory, access: Access) -> Result<MemoryRegion, Error> {
        Ok(MemoryRegion::of(self.host(memory, access)?.inner, memory.clone()))
    }

    /// Registers as [`Self::gpu`] does, and returns a [`GpuMemoryRegion`].
    ///
    /// # Errors
    /// As [`Self::gpu`].
    pub fn gpu_region(&self, memory: &GpuMemory, access: Access) -> Result<GpuMemoryRegion, Error> {
        Ok(GpuMemoryRegion::of(self.gpu(memory, access)?.inner, memory.clone()))
    }

    /// Returns GPU memory, registered as a whole with at least that access.
    ///
    /// # Errors
    /// As [`GpuMemoryRegion::register`], and [`Error::Cuda`] if the driver does not know the memory.
    pub fn gpu(&self, memory: &GpuMemory, access: Access) -> Result<CachedRegion, Error> {
        let identity = Some(buffer_id(memory.context(), memory.address())?);
        let extent = Extent { addresses: addresses(memory.address(), memory.len())?, access, identity };
        let handle = Handle::Gpu { _memory: memory.clone() };
        self.get(extent, Some(memory.use_count()), handle, memory.len(), || {
            GpuMemoryRegion::register_inner(&self.inner.pd, memory, access)
        })
    }

    /// Returns `len` bytes of the program's GPU memory, registered with at least that access. Each request asks the
    /// driver which allocation is there: if the program has freed the memory and the address has been reused, the old
    /// registration is dropped, and the memory is registered again.
    ///
    /// # Errors
    /// As [`RegistrationCache::gpu`].
    ///
    /// # Safety
    /// `address..address + len` is memory of a GPU that the context reaches, and stays so as long as the returned
    /// region and everything made from it. Before the program frees it, it calls [`RegistrationCache::invalidate`],
    /// or else ensures that no remote side uses a key to it any more: as long as the registration is in the cache,
    /// its key stays valid.
    pub unsafe fn gpu_raw(
        &self,
        context: &Arc<CudaContext>,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<CachedRegion, Error> {
        let identity = Some(buffer_id(&*GpuContext::of(context)?, address)?);
        let extent = Extent { addresses: addresses(address, len)?, access, identity };
        self.get(extent, None, Handle::Raw, len, || {
            // SAFETY: the caller's.
            let memory = unsafe { GpuMemory::from_raw(context, address, len, ()) }?;
            GpuMemoryRegion::register_inner(&self.inner.pd, &memory, access)
        })
    }

    /// Returns `len` bytes of the program's host memory, registered with at least that access, if the CUDA driver
    /// allocated them (`cudaMallocHost`) or registered them (`cudaHostRegister`). As with
    /// [`RegistrationCache::gpu_raw`], each request asks the driver which memory is there. Returns `None` for other
    /// host memory, which must be a [`PinnedMemory`] ([`RegistrationCache::host`]).
    ///
    /// # Errors
    /// As [`MemoryRegion::register`], and [`Error::Cuda`] if the driver fails.
    ///
    /// # Safety
    /// As [`RegistrationCache::gpu_raw`], and as [`PinnedMemory::from_raw`], except for the end of the memory. The
    /// program unregisters memory before it frees it, as CUDA demands.
    pub unsafe fn cuda_host_raw(
        &self,
        context: &Arc<CudaContext>,
        address: u64,
        len: usize,
        access: Access,
    ) -> Result<Option<CachedRegion>, Error> {
        let Some(base) = NonNull::new(address as *mut u8) else { return Ok(None) };
        let context = GpuContext::of(context)?;
        let identity = host_buffer_id(&context, address)?;
        if identity.is_none() {
            return Ok(None);
        }
        let extent = Extent { addresses: addresses(address, len)?, access, identity };
        let region = self.get(extent, None, Handle::Raw, len, || {
            // SAFETY: the caller's. Only the card uses the memory by this registration, for the caller's work requests.
            let memory = unsafe { PinnedMemory::from_raw(base, len, ()) };
            MemoryRegion::register_inner(&self.inner.pd, &memory, access)
        })?;
        Ok(Some(region))
    }

    fn get(
        &self,
        extent: Extent,
        use_count: Option<&UseCount>,
        memory: Handle,
        len: usize,
        register: impl FnOnce() -> Result<MemoryRegionInner, Error>,
    ) -> Result<CachedRegion, Error> {
        let start = extent.addresses.start;
        let handed_out = |region| Region::part(region, start..start + len as u64, CachedMemory(memory));
        let (found, gone) = self.inner.table.lock().find(&extent);
        drop(gone);
        if let Some(region) = found {
            return Ok(handed_out(region));
        }
        // Registered without the lock, so that other threads can look up. Two threads that miss at the same time both
        // register, and both registrations are kept.
        let region = Arc::new(register()?);
        // The last user of counted memory drops its registration; nothing reports the end of other memory.
        let extent = if use_count.is_some() { Extent { identity: None, ..extent } } else { extent };
        if let Some(use_count) = use_count {
            let watcher: Weak<Inner> = Arc::downgrade(&self.inner);
            use_count.watch(watcher);
        }
        let gone = self.inner.table.lock().insert(extent, use_count.map(|count| count.id), region.clone());
        drop(gone);
        Ok(handed_out(region))
    }

    /// Removes every registration that covers one of these addresses, before memory is unmapped or freed. Returns
    /// their number. Those in use stay registered until they are not.
    pub fn invalidate(&self, addresses: Range<u64>) -> usize {
        let gone = self.inner.table.lock().invalidate(&addresses);
        gone.len()
    }

    /// Removes every registration. Returns their number.
    pub fn clear(&self) -> usize {
        let gone = self.inner.table.lock().clear();
        gone.len()
    }

    /// Returns the counters of the cache.
    pub fn statistics(&self) -> CacheStatistics {
        self.inner.table.lock().statistics
    }
}

/// The addresses of registered memory. For empty memory, one byte is registered.
fn addresses(start: u64, len: usize) -> Result<Range<u64>, Error> {
    let end = start.checked_add(len.max(1) as u64).ok_or(Error::OutOfRange(OutOfRange {
        what: "the length of memory to register",
        value: len as u64,
        limit: format!("{} bytes are left above its address {start:#x}", u64::MAX - start),
        remedy: "check the address and the length",
    }))?;
    Ok(start..end)
}

impl CachedRegion {
    /// Returns how the card reaches GPU memory; `None` for host memory.
    pub fn path(&self) -> Option<RegistrationPath> {
        self.inner.path()
    }
}

impl fmt::Debug for RegistrationCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("pd", &self.inner.pd)
            .field("statistics", &self.statistics())
            .finish()
    }
}

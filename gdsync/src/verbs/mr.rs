//! Memory regions, and slices of them.

use crate::cuda::GpuMemory;
use crate::memop::{Word32, Word64, WordError};
use crate::memory::{OutOfBounds, PinnedMemory, resolve};
use crate::verbs::deferred_release::DeferredRelease;
use crate::verbs::{Error, Owned, ProtectionDomain, ProtectionDomainInner, RemoteMemory, call};
use gdsync_sys::verbs::{self, ibv_mr};
use parking_lot::Mutex;
use std::ops::{Range, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

bitflags::bitflags! {
    /// Access rights of a card to a region, or of a remote side to a queue pair. Local reads are always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local card may write: receives and reads need it.
        const LOCAL_WRITE = verbs::IBV_ACCESS_LOCAL_WRITE;
        /// Remote RDMA writes; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = verbs::IBV_ACCESS_REMOTE_WRITE;
        /// Remote RDMA reads.
        const REMOTE_READ = verbs::IBV_ACCESS_REMOTE_READ;
        /// Remote atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = verbs::IBV_ACCESS_REMOTE_ATOMIC;
        /// The program may bind memory windows to the region; this library has none. Queue pairs ignore the right,
        /// and so does GPU memory that is registered as a dma-buf, for which the kernel refuses it.
        const MW_BIND = verbs::IBV_ACCESS_MW_BIND;
    }
}

/// Memory registered with a card, from which work requests send and into which they receive.
///
/// It is a cheap handle; clones name the same region. Work requests in flight hold it, so the memory stays registered
/// and mapped until the card has finished with it.
///
/// The memory is shared with hardware, so it is read and written through [`PinnedMemory`]'s copies and words; the
/// region dereferences to it.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};
/// let pd = ProtectionDomain::new(&Device::software()?)?;
/// let region = MemoryRegion::allocate(&pd, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// assert_eq!(region.write(100, b"hello"), 5);
/// let part = region.slice(100..105)?; // for a work request of this side
/// let remote = region.remote(); // for the remote side, by any channel
/// assert_eq!(remote.to_string().parse::<gdsync::RemoteMemory>()?, remote);
/// assert!(region.slice(4000..5000).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type MemoryRegion = Region<PinnedMemory>;

/// Memory registered with a card: a [`MemoryRegion`], a [`GpuMemoryRegion`](crate::verbs::GpuMemoryRegion), or a
/// region of a [`RegistrationCache`](crate::verbs::RegistrationCache). [`MemoryRegion`] has an example.
#[derive(Clone, Debug)]
pub struct Region<M> {
    pub(crate) inner: Arc<MemoryRegionInner>,
    /// Addresses of the memory, which the registration covers.
    addresses: Range<u64>,
    memory: M,
}

#[derive(Debug)]
pub(crate) struct MemoryRegionInner {
    registration: Arc<Registration>,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    access: Access,
    pub(crate) pd: Arc<ProtectionDomainInner>,
    /// Queues with posts that name the region and do not hold it.
    uses: Mutex<Vec<QueueUse>>,
}

#[derive(Debug)]
struct QueueUse {
    queue: Weak<DeferredDeregistration>,
    /// Number of the last post there that names it.
    last: Arc<AtomicU64>,
}

/// A region as the provider knows it, and its memory. Deregistered when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    // Dropped in this order: deregistered before the memory is released.
    /// `None` if the program registered the memory.
    _raw: Option<Owned<ibv_mr>>,
    memory: Backing,
    _pd: Arc<ProtectionDomainInner>,
}

/// Keeps the regions of a queue's posts registered.
pub(crate) type DeferredDeregistration = DeferredRelease<Arc<Registration>>;

/// Keeps the memory of a region, without counting as a user of it.
#[derive(Debug)]
pub(crate) enum Backing {
    Host {
        _memory: PinnedMemory,
    },
    Gpu {
        _memory: GpuMemory,
        path: RegistrationPath,
    },
    /// Memory that the program registered.
    Foreign,
}

/// The way in which a card reaches GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationPath {
    /// A dma-buf, which the driver exported and the kernel gave to the card (`ibv_reg_dmabuf_mr`).
    DmaBuf,
    /// A kernel module for GPU memory, nvidia-peermem or nv_peer_mem (`ibv_reg_mr`).
    PeerMemory,
    /// The copies of a software card.
    SoftwareCard,
}

impl MemoryRegion {
    /// Allocates `len` zeroed bytes and registers them. A length of 0 registers one page of which 0 bytes are usable.
    ///
    /// # Errors
    /// [`Error::Memory`] if the memory cannot be allocated, [`Error::Verbs`] if the provider refuses to register it
    /// (usually because of the locked-memory limit: `ulimit -l`).
    pub fn allocate(pd: &ProtectionDomain, len: usize, access: Access) -> Result<Self, Error> {
        let memory = PinnedMemory::allocate(len).map_err(|source| Error::Memory { len, source })?;
        Self::register(pd, memory, access)
    }

    /// Registers pinned memory.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses. No provider takes 0 bytes of [`PinnedMemory::from_raw`], where the
    /// next byte is not this memory's.
    pub fn register(pd: &ProtectionDomain, memory: PinnedMemory, access: Access) -> Result<Self, Error> {
        let inner = Arc::new(Self::register_inner(pd, &memory, access)?);
        Ok(Self::of(inner, memory))
    }

    /// A region of `memory`, which the registration covers.
    pub(crate) fn of(inner: Arc<MemoryRegionInner>, memory: PinnedMemory) -> Self {
        let start = memory.addr().get();
        Self::part(inner, start..start + memory.len() as u64, memory)
    }

    pub(crate) fn register_inner(
        pd: &ProtectionDomain,
        memory: &PinnedMemory,
        access: Access,
    ) -> Result<MemoryRegionInner, Error> {
        let (pd, len) = (pd.inner.clone(), memory.registered_len());
        let flags = access.bits() as libc::c_int;
        // SAFETY: the domain is allocated as long as `pd` lives; the memory is mapped as long as
        // `memory` lives, and both are kept until the region is deregistered.
        let raw = unsafe { (pd.device.api.reg_mr)(pd.raw(), memory.as_ptr().cast(), len, flags) };
        let raw = call::pointer("ibv_reg_mr", raw, || format!("{len} bytes, {access:?}"))?;
        let backing = Backing::Host { _memory: memory.uncounted() };
        Ok(MemoryRegionInner::new(raw, pd, access, backing))
    }

    /// Returns the 32-bit word at a byte offset, for a stream to wait for or to write.
    ///
    /// # Errors
    /// As [`Word32::new`].
    pub fn word32(&self, offset: usize) -> Result<Word32, WordError> {
        Word32::new(&self.memory, offset)
    }

    /// Returns the 64-bit word at a byte offset, for a stream to wait for or to write.
    ///
    /// # Errors
    /// As [`Word64::new`].
    pub fn word64(&self, offset: usize) -> Result<Word64, WordError> {
        Word64::new(&self.memory, offset)
    }
}

impl<M> Region<M> {
    /// A region of `memory` at these addresses, which the registration `inner` covers.
    pub(crate) fn part(inner: Arc<MemoryRegionInner>, addresses: Range<u64>, memory: M) -> Self {
        Region { inner, addresses, memory }
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the local key, for work requests of this side.
    pub fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    /// Returns the remote key, for the remote side.
    pub fn rkey(&self) -> u32 {
        self.inner.rkey
    }

    /// Returns a part of the region, for a work request: `region.slice(..)`, or 16 bytes by `region.slice(16..32)`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if the range is not inside the region.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, OutOfBounds> {
        let Range { start, end } = resolve(range, self.addresses.end - self.addresses.start)?;
        let (addr, len) = (self.addresses.start + start, (end - start) as usize);
        Ok(Slice { region: self.inner.clone(), addr, len, lkey: self.inner.lkey })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        (self.addresses.end - self.addresses.start) as usize
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the description of the whole region for a remote side.
    pub fn remote(&self) -> RemoteMemory {
        let Range { start, end } = self.addresses;
        RemoteMemory { addr: start, len: end - start, rkey: self.rkey() }
    }
}

impl std::ops::Deref for MemoryRegion {
    type Target = PinnedMemory;

    fn deref(&self) -> &PinnedMemory {
        self.memory()
    }
}

impl MemoryRegionInner {
    /// A region that the provider has just registered. `memory` keeps its bytes.
    pub(crate) fn new(
        raw: NonNull<ibv_mr>,
        pd: Arc<ProtectionDomainInner>,
        access: Access,
        memory: Backing,
    ) -> Self {
        // SAFETY: a region just returned by the provider is a valid `ibv_mr`; its keys never change.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        // SAFETY: work requests that name it hold the region, or their queue the registration, which holds the domain.
        let raw = unsafe { Owned::new(raw, pd.device.api.dereg_mr, "ibv_dereg_mr") };
        let registration = Arc::new(Registration { _raw: Some(raw), memory, _pd: pd.clone() });
        MemoryRegionInner { registration, lkey, rkey, access, pd, uses: Mutex::default() }
    }

    /// Stands for all memory that the program has registered in a domain: only its slices know their keys.
    pub(crate) fn foreign(pd: Arc<ProtectionDomainInner>) -> Self {
        let registration = Arc::new(Registration { _raw: None, memory: Backing::Foreign, _pd: pd.clone() });
        let (access, uses) = (Access::all(), Mutex::default());
        MemoryRegionInner { registration, lkey: 0, rkey: 0, access, pd, uses }
    }

    /// Alive while the region is registered.
    #[cfg(test)]
    pub(crate) fn registration(&self) -> Weak<Registration> {
        Arc::downgrade(&self.registration)
    }

    /// Makes `queue` keep the region registered for a post that is about to be made there. Returns the place for the
    /// number of the region's last post there.
    pub(crate) fn used_by(&self, queue: &Arc<DeferredDeregistration>) -> Arc<AtomicU64> {
        let mut uses = self.uses.lock();
        if let Some(known) = uses.iter().find(|one| ptr::eq(one.queue.as_ptr(), Arc::as_ptr(queue))) {
            return known.last.clone();
        }
        uses.retain(|one| one.queue.strong_count() > 0);
        let last = Arc::<AtomicU64>::default();
        uses.push(QueueUse { queue: Arc::downgrade(queue), last: last.clone() });
        last
    }

    /// How the card reaches GPU memory; `None` for host memory.
    pub(crate) fn path(&self) -> Option<RegistrationPath> {
        match self.registration.memory {
            Backing::Host { .. } | Backing::Foreign => None,
            Backing::Gpu { path, .. } => Some(path),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.access.contains(Access::LOCAL_WRITE)
    }
}

impl Drop for MemoryRegionInner {
    fn drop(&mut self) {
        for QueueUse { queue, last } in self.uses.get_mut() {
            if let Some(queue) = queue.upgrade() {
                // Written before the drop of the handle that the post borrowed.
                queue.keep(last.load(Ordering::Relaxed), || self.registration.clone());
            }
        }
    }
}

/// A part of a [`MemoryRegion`] that a work request sends or fills. It holds the region.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// // A message of two parts, gathered by the card.
/// let parts = [region.slice(..8)?, region.slice(32..48)?];
/// right.post_recv(&[region.slice(48..)?], 0)?;
/// left.post_send(WorkRequest::send(&parts[..1]))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Slice {
    region: Arc<MemoryRegionInner>,
    addr: u64,
    len: usize,
    lkey: u32,
}

impl Slice {
    /// Memory that the program registered, in the domain of `region`.
    #[inline(always)]
    pub(crate) fn foreign(region: Arc<MemoryRegionInner>, addr: u64, len: usize, lkey: u32) -> Self {
        Slice { region, addr, len, lkey }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn region(&self) -> &Arc<MemoryRegionInner> {
        &self.region
    }

    /// Returns the address by which the local card knows its first byte.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }
}

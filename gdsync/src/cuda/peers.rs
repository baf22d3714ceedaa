//! Access of one GPU's streams and kernels to the memory of another GPU.
//!
//! The driver grants it to a context at a time, for the memory of another context, and by three calls: for ordinary
//! allocations, for physical memory that was mapped, which queues and CPU mappings have, and for the
//! pool that stream-ordered allocations come from.
//!
//! And GPU memory that can be exported: physical memory with an address range of its own
//! (`cuMemCreate`, `cuMemMap`).

use crate::cuda::memory::{self, access};
use crate::cuda::{CudaError, Gpu, GpuContext, GpuMemory, RelaxedCapture, check};
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Lets streams and kernels of `gpu` reach the memory of `peer`, by NVLink or over PCI Express. From
/// then on, a stream of `gpu` waits for words in that memory ([`GpuWord32`](crate::memop::GpuWord32)),
/// writes them and copies bytes there; queues that lie there
/// ([`Placement::Gpu`](super::Placement::Gpu)) are rung and waited for by it. The other direction
/// takes a call of its own.
///
/// Nothing does that by itself: the driver takes its time for it, and keeps it for the life of the
/// process. A program calls this before its streams wait for anything. Undoing it
/// (`cuCtxDisablePeerAccess`) while streams use such memory loses the context.
///
/// # Errors
/// [`CudaError::NoPeerAccess`] names both GPUs.
///
/// # Example
/// ```no_run
/// use gdsync::cuda::{self, GpuMemory};
/// use gdsync::memop::{Condition, GpuWord32};
/// use gdsync::{Batch, CudaStream, Stream};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (gpu, peer) = (cuda::context(0)?, cuda::context(1)?);
/// cuda::enable_peer_access(&gpu, &peer)?;
/// let word = GpuWord32::new(&GpuMemory::allocate(&peer, 4)?, 0)?;
/// let stream = Stream::new(CudaStream::new(gpu.new_stream()?)?)?;
/// stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1))?;
/// word.store(1)?;
/// stream.synchronize()?;
/// # Ok(())
/// # }
/// ```
pub fn enable_peer_access(gpu: &Arc<CudaContext>, peer: &Arc<CudaContext>) -> Result<(), CudaError> {
    let peer = GpuContext::of(peer)?;
    GpuContext::of(gpu)?.enable_access(&peer)
}

/// Whether streams of one GPU can be given access to the memory of another, and by what way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCapabilities {
    /// [`enable_peer_access`] succeeds.
    pub access: bool,
    /// Atomic operations on the peer's memory are one step: so over NVLink, and not over PCI Express
    /// (`CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`).
    pub atomics: bool,
    /// The driver's grade of the way, 0 for the best
    /// (`CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK`).
    pub rank: i32,
}

/// Asks what streams of GPU `from` can do with the memory of GPU `to`. Makes no context.
///
/// # Errors
/// As [`device_count`](super::device_count), and
/// [`DriverError::NoDevice`](super::DriverError::NoDevice).
pub fn peer_capabilities(from: u32, to: u32) -> Result<PeerCapabilities, CudaError> {
    use sys::CUdevice_P2PAttribute as A;
    let (from, to) = (Gpu::new(from)?, Gpu::new(to)?);
    let access = from.can_access(to)?;
    // A GPU is no peer of itself, and of some pairs the driver grades nothing.
    let attribute = |attribute| if access { from.peer_attribute(to, attribute) } else { Ok(0) };
    Ok(PeerCapabilities {
        access,
        atomics: attribute(A::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        rank: attribute(A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

impl GpuContext {
    /// See [`enable_peer_access`].
    fn enable_access(&self, peer: &GpuContext) -> Result<(), CudaError> {
        if self.id == peer.id || self.peers.reaches(peer.id) {
            return Ok(());
        }
        let refused = |reason| CudaError::NoPeerAccess { gpu: self.ordinal, peer: peer.ordinal, reason };
        let is_same_gpu = self.ordinal == peer.ordinal;
        if !is_same_gpu && !self.gpu().can_access(peer.gpu())? {
            return Err(refused("the driver has no way between them".to_owned()));
        }
        let _entered = self.enter()?;
        let _mode = RelaxedCapture::new();
        // SAFETY: contexts that gdsync knows stay; that of this GPU is current.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.raw.as_raw(), 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            result => check("cuCtxEnablePeerAccess", result).map_err(|error| refused(error.to_string())),
        }?;
        if !is_same_gpu {
            let mut readers = peer.peers.readers.lock();
            memory::share_mapped(peer, self.ordinal).map_err(|error| refused(error.to_string()))?;
            readers.insert(self.ordinal);
            drop(readers);
            share_pool(peer, self.ordinal);
        }
        self.peers.reached.write().insert(peer.id);
        tracing::debug!(gpu = self.ordinal, peer = peer.ordinal, "a GPU reaches a peer's memory");
        Ok(())
    }

    /// Whether operations of this context may name memory of another one.
    pub(crate) fn reaches(&self, memory: &GpuMemory) -> bool {
        let owner = memory.context();
        // Of memory that the program made, only the driver knows of what kind it is.
        self.id == owner.id || self.peers.reaches(owner.id) && (memory.is_own() || self.knows(memory))
    }

    /// Whether the driver says that this context's kernels reach all of the memory by its address.
    fn knows(&self, memory: &GpuMemory) -> bool {
        let Ok(_entered) = self.enter() else { return false };
        let (first, last) = (memory.address(), memory.address() + memory.len().max(1) as u64 - 1);
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        [first, last].into_iter().all(|address| {
            let mut found = 0u64;
            // SAFETY: the attribute is a device pointer; the driver checks the address.
            let result = unsafe { sys::cuPointerGetAttribute((&raw mut found).cast(), attribute, address) };
            result == sys::CUresult::CUDA_SUCCESS && found == address
        })
    }
}

/// Gives a GPU access to what a context allocates in stream order.
fn share_pool(peer: &GpuContext, reader: i32) {
    let access = access(reader);
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is a valid place; the driver checks the device.
    let found = check("cuDeviceGetMemPool", unsafe { sys::cuDeviceGetMemPool(&mut pool, peer.ordinal) });
    let shared = found.and_then(|()| {
        // SAFETY: the device's pool, and one entry.
        check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(pool, &access, 1) })
    });
    if let Err(error) = shared {
        // `GpuContext::knows` finds such memory out of reach.
        tracing::debug!(%error, "a peer does not reach what is allocated in stream order");
    }
}

//! Access of one GPU's streams and kernels to the memory of another GPU.
//!
//! The driver grants access to one context, for the memory of another context, by three calls: for ordinary allocations,
//! for mapped physical memory (queues and CPU mappings), and for the pool of stream-ordered allocations.

use crate::cuda::memory::{self, access};
use crate::cuda::{CudaError, Gpu, GpuContext, GpuMemory, RelaxedCapture, check};
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// Lets streams and kernels of `gpu` reach the memory of `peer`, by NVLink or over PCI Express. Streams of `gpu` can
/// then wait for words in that memory ([`GpuWord32`](crate::memop::GpuWord32)), write them, copy bytes there, and ring
/// and wait for queues in it ([`Placement::Gpu`](super::Placement::Gpu)). The other direction takes a separate call.
///
/// The library never does this implicitly: it takes the driver time, and stays for the life of the process. A program
/// calls this before its streams wait for anything. Undoing it (`cuCtxDisablePeerAccess`) while streams use such
/// memory loses the context.
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

/// The operations that streams of one GPU can perform on the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerCapabilities {
    /// [`enable_peer_access`] succeeds.
    pub access: bool,
    /// True if atomic operations on the peer's memory are atomic: over NVLink, not over PCI Express
    /// (`CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`).
    pub atomics: bool,
    /// The driver's rank of the link, 0 for the fastest (`CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK`).
    pub rank: i32,
}

/// Returns what streams of GPU `from` can do with the memory of GPU `to`. Creates no context.
///
/// # Errors
/// As [`device_count`](super::device_count), and [`DriverError::NoDevice`](super::DriverError::NoDevice).
pub fn peer_capabilities(from: u32, to: u32) -> Result<PeerCapabilities, CudaError> {
    use sys::CUdevice_P2PAttribute as A;
    let (from, to) = (Gpu::new(from)?, Gpu::new(to)?);
    let access = from.can_access(to)?;
    // A GPU is no peer of itself, and the driver does not rank some pairs.
    let attribute = |attribute| if access { from.peer_attribute(to, attribute) } else { Ok(0) };
    Ok(PeerCapabilities {
        access,
        atomics: attribute(A::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
        rank: attribute(A::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
    })
}

impl GpuContext {
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
        // SAFETY: contexts are never destroyed; that of this GPU is current.
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

    /// Returns whether operations of this context may name the memory.
    pub(crate) fn reaches(&self, memory: &GpuMemory) -> bool {
        let owner = memory.context();
        // Only the driver knows the kind of memory that the program allocated.
        self.id == owner.id
            || self.peers.reaches(owner.id) && (memory.is_own() || self.driver_reaches(memory))
    }

    /// Returns whether the driver says that this context's kernels reach all of the memory by its address.
    fn driver_reaches(&self, memory: &GpuMemory) -> bool {
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

/// Gives a GPU access to the stream-ordered allocations of a context.
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
        // `GpuContext::driver_reaches` finds such memory unreachable.
        tracing::debug!(%error, "a peer does not reach what is allocated in stream order");
    }
}

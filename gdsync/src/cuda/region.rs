//! GPU memory registered with a card.

use super::context::Consistency;
use super::error::CudaError;
use super::memory::GpuMemory;
use crate::error::{Error, QueueError};
use crate::mr::{Access, Backing, MemoryRegionInner, RemoteMemory, Slice};
use crate::pd::ProtectionDomain;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::ibv_mr;
use std::io;
use std::ops::RangeBounds;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// GPU memory registered with a card: payload that never passes through host memory.
///
/// A cheap handle; clones name the same region. Work requests in flight hold it.
///
/// A software card copies to and from it on a stream of its own. A real card reaches it over PCIe: through a dma-buf
/// (rdma-core 34, Linux 5.12 and the open NVIDIA kernel modules) or, failing that, through the `nvidia-peermem` module.
#[derive(Clone, Debug)]
pub struct GpuMemoryRegion {
    inner: Arc<MemoryRegionInner>,
    memory: GpuMemory,
}

impl GpuMemoryRegion {
    /// Registers GPU memory.
    ///
    /// # Errors
    /// [`Error::GpuRegistration`] where the card cannot have it, with the reason of each way that was tried;
    /// [`Error::GpuConsistency`] where a real card would write into memory whose GPU shows writes in no order and cannot flush
    /// them: a stream that has waited for the completion could still see old data.
    pub fn register(pd: &ProtectionDomain, memory: GpuMemory, access: Access) -> Result<Self, Error> {
        let real = pd.inner.device.api.provider != Provider::Software;
        let consistency = memory.context().capabilities().consistency();
        if real && access.contains(Access::LOCAL_WRITE) && consistency == Consistency::Impossible {
            return Err(Error::GpuConsistency { gpu: memory.context().ordinal() });
        }
        let (address, len) = (memory.address(), memory.len());
        let raw = register(pd, &memory, access)?;
        let inner =
            MemoryRegionInner::new(raw, pd.inner.clone(), access, address, len, Backing::Gpu(memory.clone()));
        Ok(GpuMemoryRegion { inner: Arc::new(inner), memory })
    }

    /// The memory.
    pub fn memory(&self) -> &GpuMemory {
        &self.memory
    }

    /// A part of the region, for a work request.
    ///
    /// # Errors
    /// [`QueueError::OutOfBounds`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, QueueError> {
        Slice::new(&self.inner, range)
    }

    /// Its local key, in host order: what kernels that post by themselves name it by.
    pub fn lkey(&self) -> u32 {
        self.inner.lkey()
    }

    /// What the remote side has to know to read or write it.
    pub fn remote(&self) -> RemoteMemory {
        self.inner.remote()
    }
}

/// The ways to give GPU memory to a card, the best first.
fn register(
    pd: &ProtectionDomain,
    memory: &GpuMemory,
    access: Access,
) -> Result<std::ptr::NonNull<ibv_mr>, Error> {
    let by_dma_buf = dma_buf(pd, memory, access);
    let dma_buf = match by_dma_buf {
        Ok(raw) => return Ok(raw),
        Err(reason) => reason,
    };
    let (pd, len) = (&pd.inner, memory.len().max(1));
    // SAFETY: the domain is allocated as long as `pd` lives; the memory is kept until the region is deregistered. The address
    // is a GPU's, which the provider's peer memory takes, or refuses.
    let raw = unsafe {
        (pd.device.api.reg_mr)(
            pd.raw(),
            memory.address() as *mut libc::c_void,
            len,
            access.bits() as libc::c_int,
        )
    };
    std::ptr::NonNull::new(raw).ok_or_else(|| Error::GpuRegistration {
        len,
        dma_buf,
        peer_memory: io::Error::last_os_error().to_string(),
    })
}

fn dma_buf(
    pd: &ProtectionDomain,
    memory: &GpuMemory,
    access: Access,
) -> Result<std::ptr::NonNull<ibv_mr>, String> {
    let api = pd.inner.device.api;
    let Some(reg_dmabuf_mr) = api.reg_dmabuf_mr else {
        return Err(match api.provider {
            Provider::Software => "the software card reaches GPU memory without".to_owned(),
            _ => "libibverbs has no ibv_reg_dmabuf_mr, which came with rdma-core 34".to_owned(),
        });
    };
    if !memory.context().capabilities().dma_buf {
        return Err("the GPU's driver makes no dma-bufs (the open kernel modules do)".to_owned());
    }
    let (fd, offset) = memory.dma_buf().map_err(|error: CudaError| error.to_string())?;
    let (len, flags) = (memory.len().max(1), access.bits() as libc::c_int);
    // SAFETY: the domain is allocated as long as `pd` lives; the kernel takes a reference of its own to the dma-buf.
    let raw = unsafe { reg_dmabuf_mr(pd.inner.raw(), offset, len, memory.address(), fd.as_raw_fd(), flags) };
    std::ptr::NonNull::new(raw).ok_or_else(|| io::Error::last_os_error().to_string())
}

/// How the software card reaches GPU memory.
#[cfg(feature = "software-card")]
mod software {
    use super::*;
    use softhca::{PeerMemory, PeerMemoryError, PeerRegion};

    pub(super) struct Client;

    /// Holds the memory, so that it is freed after the card has let go of it.
    #[derive(Debug)]
    struct Region(GpuMemory);

    impl PeerMemory for Client {
        fn name(&self) -> &str {
            "CUDA"
        }

        fn acquire(
            &self,
            addr: u64,
            len: u64,
            _writable: bool,
        ) -> Result<Option<Arc<dyn PeerRegion>>, PeerMemoryError> {
            match GpuMemory::find(addr, len) {
                None => Ok(None),
                Some(Ok(memory)) => Ok(Some(Arc::new(Region(memory)))),
                Some(Err(reason)) => Err(PeerMemoryError::new(reason)),
            }
        }
    }

    impl Region {
        fn offset(&self, addr: u64) -> usize {
            addr.wrapping_sub(self.0.address()) as usize
        }
    }

    impl PeerRegion for Region {
        fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), PeerMemoryError> {
            self.0.read(self.offset(addr), into).map_err(|error| PeerMemoryError::new(error.to_string()))
        }

        fn write(&self, addr: u64, from: &[u8]) -> Result<(), PeerMemoryError> {
            self.0.write(self.offset(addr), from).map_err(|error| PeerMemoryError::new(error.to_string()))
        }
    }
}

/// Makes GPU memory known to the software cards of this process, once.
#[cfg(feature = "software-card")]
pub(super) fn tell_software_cards() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| softhca::register_peer_memory(Arc::new(software::Client)));
}

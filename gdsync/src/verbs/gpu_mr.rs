//! GPU memory registered with a card.

use crate::cuda::mapped::MappedMemory;
use crate::cuda::{Consistency, CudaError, GpuMemory};
use crate::verbs::mr::Backing;
use crate::verbs::{
    Access, Error, MemoryRegionInner, ProtectionDomain, Region, RegistrationError, RegistrationPath,
};
use cudarc::driver::CudaContext;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::ibv_mr;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// GPU memory registered with a card: the card moves its bytes without host memory. [`crate::cuda`] has an example.
///
/// It is a cheap handle; clones name the same region. Work requests in flight hold it.
///
/// A software card reaches it through a CPU mapping that exists when it is registered
/// ([`crate::advanced::mapped::MappedMemory`]), or else by copies on gdsync's stream. A real card reaches it over PCIe: through
/// a dma-buf (rdma-core 34, Linux 5.12 and the open NVIDIA kernel modules) or, failing that, through the
/// `nvidia-peermem` module.
pub type GpuMemoryRegion = Region<GpuMemory>;

impl GpuMemoryRegion {
    /// Registers GPU memory.
    ///
    /// # Errors
    /// [`RegistrationError::Refused`] if every way to register it failed, with each reason;
    /// [`RegistrationError::NoOrder`] if a real card would write into memory of a GPU that shows writes in no order
    /// and cannot flush them: a stream that has waited for the completion could still see old data.
    pub fn register(pd: &ProtectionDomain, memory: GpuMemory, access: Access) -> Result<Self, Error> {
        let inner = Arc::new(Self::register_inner(pd, &memory, access)?);
        Ok(Self::of(inner, memory))
    }

    /// Allocates `len` zeroed bytes of a GPU, and registers them. For a software card they are mapped for the CPU if a backend
    /// can do that ([`MappedMemory::allocate`], in pieces of typically 2 MiB): then the card's stores need no call of the driver,
    /// which may stand behind a call of the program that waits for the GPU.
    ///
    /// # Errors
    /// [`CudaError::OnGpu`] if the memory cannot be allocated; otherwise as [`Self::register`].
    pub fn allocate(
        pd: &ProtectionDomain,
        context: &Arc<CudaContext>,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let is_software = pd.inner.device.api.provider == Provider::Software;
        let mapped = is_software.then(|| MappedMemory::allocate(context, len));
        let memory = match &mapped {
            Some(Ok(mapped)) => mapped.gpu().clone(),
            _ => GpuMemory::allocate(context, len)?,
        };
        if let Some(Err(error)) = &mapped {
            tracing::debug!(%error, "GPU memory is not mapped for the card");
        }
        Self::register(pd, memory, access)
    }

    /// A region of `memory`, which the registration covers.
    pub(crate) fn of(inner: Arc<MemoryRegionInner>, memory: GpuMemory) -> Self {
        let start = memory.address();
        Self::part(inner, start..start + memory.len() as u64, memory)
    }

    pub(crate) fn register_inner(
        pd: &ProtectionDomain,
        memory: &GpuMemory,
        access: Access,
    ) -> Result<MemoryRegionInner, Error> {
        let real = pd.inner.device.api.provider != Provider::Software;
        let consistency = memory.context().capabilities.consistency();
        if real && access.contains(Access::LOCAL_WRITE) && consistency == Consistency::Impossible {
            return Err(Error::Registration(RegistrationError::NoOrder { gpu: memory.context().ordinal }));
        }
        let (raw, path) = register(pd, memory, access)?;
        let access = if path == RegistrationPath::DmaBuf { access - Access::MW_BIND } else { access };
        tracing::debug!(?memory, ?path, "GPU memory is registered");
        let backing = Backing::Gpu { _memory: memory.uncounted(), path };
        Ok(MemoryRegionInner::new(raw, pd.inner.clone(), access, backing))
    }

    /// Returns how the card reaches the memory.
    pub fn path(&self) -> RegistrationPath {
        // Regions of GPU memory have one.
        self.inner.path().unwrap_or(RegistrationPath::PeerMemory)
    }
}

/// Registers the memory by the best way that works.
fn register(
    pd: &ProtectionDomain,
    memory: &GpuMemory,
    access: Access,
) -> Result<(NonNull<ibv_mr>, RegistrationPath), Error> {
    let dma_buf = match dma_buf(pd, memory, access) {
        Ok(raw) => return Ok((raw, RegistrationPath::DmaBuf)),
        Err(reason) => reason,
    };
    let (pd, len) = (&pd.inner, memory.registered_len());
    let (address, flags) = (memory.address() as *mut libc::c_void, access.bits() as libc::c_int);
    // SAFETY: the domain is allocated as long as `pd` lives; the memory is kept until the region is deregistered. The
    // provider's peer memory takes or refuses the address, which is a GPU's.
    let raw = unsafe { (pd.device.api.reg_mr)(pd.raw(), address, len, flags) };
    let path = match pd.device.api.provider {
        Provider::Software => RegistrationPath::SoftwareCard,
        _ => RegistrationPath::PeerMemory,
    };
    match NonNull::new(raw) {
        Some(raw) => Ok((raw, path)),
        None => {
            let peer_memory = io::Error::last_os_error().to_string();
            let gpu = memory.context().ordinal;
            Err(Error::Registration(RegistrationError::Refused { gpu, len, dma_buf, peer_memory }))
        }
    }
}

fn dma_buf(pd: &ProtectionDomain, memory: &GpuMemory, access: Access) -> Result<NonNull<ibv_mr>, String> {
    let api = pd.inner.device.api;
    let Some(reg_dmabuf_mr) = api.reg_dmabuf_mr else {
        return Err(match api.provider {
            Provider::Software => "the software card reaches GPU memory without".to_owned(),
            _ => "libibverbs has no ibv_reg_dmabuf_mr, which came with rdma-core 34".to_owned(),
        });
    };
    if !memory.context().capabilities.dma_buf {
        return Err("the GPU's driver makes no dma-bufs (the open kernel modules do)".to_owned());
    }
    let (fd, offset) = memory.dma_buf().map_err(|error: CudaError| error.to_string())?;
    // The kernel's `UVERBS_METHOD_REG_DMABUF_MR` refuses the right to bind windows.
    let (len, flags) = (memory.registered_len(), (access - Access::MW_BIND).bits() as libc::c_int);
    // SAFETY: the domain is allocated as long as `pd` lives; the kernel takes a reference to the dma-buf.
    let raw = unsafe { reg_dmabuf_mr(pd.inner.raw(), offset, len, memory.address(), fd.as_raw_fd(), flags) };
    NonNull::new(raw).ok_or_else(|| io::Error::last_os_error().to_string())
}

//! Choice of the backend: support by the machine, which needs neither a context nor GPU memory, and mapping by the
//! backend that the environment names, or by the first that works.

use crate::backend::{Caching, MappingBackend, MappingError, Refusal};
use crate::driver;
use crate::gpu::Gpu;
use crate::kernel::{self, File, Kernel};
use crate::mapping::{Mapped, Mapping};
use crate::range::GpuRange;
use crate::{gdrdrv, nvrm};
use gdsync_sys::host::page_size;
use std::ffi::OsString;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

/// Environment variable with the backend's name.
const VARIABLE: &str = "GDSYNC_MAPPING";

impl Mapping {
    /// Maps GPU memory by the first working backend, or by the one named by `GDSYNC_MAPPING`. gdrdrv and dma-buf map
    /// memory from `cuMemAlloc` (gdrdrv the surrounding GPU pages of 64 KiB, dma-buf the CPU's pages), nvrm only
    /// exportable memory: from `cuMemCreate` with handles of POSIX file descriptors.
    ///
    /// If the memory is freed while mapped: dma-buf and nvrm hold a reference, so the mapping stays, and its stores
    /// are visible only through it. The same holds for gdrdrv if its module maps persistently (2.5 and newer, with
    /// drivers that support it); otherwise every later access fails with [`MappingError::Freed`]. (An access during
    /// the free raises SIGBUS: the check detects a mistake, programs must not rely on it.)
    ///
    /// # Errors
    /// [`MappingError::Unavailable`] with each tried backend's reason, [`MappingError::Refused`] if the environment
    /// names a backend, [`MappingError::UnknownBackend`] if that is unknown.
    pub fn pin(memory: &GpuRange) -> Result<Self, MappingError> {
        MappingBackend::first_working(|backend, by_name| Self::by(backend, by_name, memory))
    }

    /// Maps as [`Mapping::pin`] does, by this backend. nvrm tries unknown drivers, too.
    ///
    /// # Errors
    /// [`MappingError::Refused`], with the backend's reason, if it cannot map the memory.
    pub fn pin_by(backend: MappingBackend, memory: &GpuRange) -> Result<Self, MappingError> {
        Self::by(backend, true, memory)
    }

    fn by(backend: MappingBackend, by_name: bool, memory: &GpuRange) -> Result<Self, MappingError> {
        let mapped =
            map(backend, by_name, memory).map_err(|refusal| MappingError::Refused { backend, refusal })?;
        let mapping = Mapping::new(mapped, memory.len(), !memory.kept)?;
        tracing::debug!(?mapping, ?memory, "GPU memory is mapped for the CPU");
        Ok(mapping)
    }
}

fn map(backend: MappingBackend, by_name: bool, memory: &GpuRange) -> Result<Mapped, Refusal> {
    let (gpu, kernel) = (memory.gpu(), kernel::system());
    backend.check_support_on(gpu, by_name)?;
    match backend {
        MappingBackend::Gdrdrv => {
            memory.synchronise_copies();
            gdrdrv::Gdrdrv::open(&kernel)?.map(memory.address(), memory.len())
        }
        MappingBackend::DmaBuf => {
            let made = memory.dma_buf();
            let (fd, offset) =
                made.map_err(|error| Refusal::driver("make a dma-buf of the memory", error))?;
            map_dma_buf(&kernel, fd, offset as usize, memory.len(), gpu.is_coherent())
        }
        // (A stand-in was refused above.)
        MappingBackend::ResourceManager | MappingBackend::StandIn => {
            let exported = memory.export().map_err(|error| {
                Refusal::new(
                    "export the memory",
                    error,
                    "allocate it by gdsync's MappedMemory::allocate, or by cuMemCreate with POSIX file descriptors",
                )
            })?;
            let bus = gpu.pci_address().map_err(|error| Refusal::driver("find the GPU", error))?;
            let mut mapped = nvrm::map(&kernel, (&bus, by_name), exported.fd.as_fd(), exported.size)?;
            mapped.info.offset = exported.offset;
            Ok(mapped)
        }
    }
}

/// The loaded gdrdrv module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GdrdrvModule {
    /// Its protocol version: major, minor.
    pub version: (u16, u16),
    /// True if pinned memory stays when CUDA frees it (`GDRDRV_ATTR_USE_PERSISTENT_MAPPING`).
    pub keeps_memory: bool,
}

impl GdrdrvModule {
    /// Queries the module.
    ///
    /// # Errors
    /// [`Refusal`] if it is not loaded, or gdsync does not support its protocol.
    pub fn ask() -> Result<Self, Refusal> {
        Self::of(&kernel::system())
    }

    fn of(kernel: &Arc<dyn Kernel>) -> Result<Self, Refusal> {
        let module = gdrdrv::Gdrdrv::open(kernel)?;
        Ok(GdrdrvModule { version: module.version(), keeps_memory: module.keeps_memory() })
    }
}

impl MappingBackend {
    /// Returns the result of `map` with the first backend that is not [`MappingError::Refused`]. If the environment
    /// (`GDSYNC_MAPPING`) names a backend, only that one is tried, and `map`'s second argument is true.
    ///
    /// # Errors
    /// [`MappingError::Unavailable`], [`MappingError::UnknownBackend`], and those of `map`.
    pub fn first_working<T>(map: impl Fn(Self, bool) -> Result<T, MappingError>) -> Result<T, MappingError> {
        if let Some(backend) = Self::from_environment()? {
            return map(backend, true);
        }
        let mut tried = Vec::new();
        for backend in Self::ALL {
            match map(backend, false) {
                Err(MappingError::Refused { backend, refusal }) => {
                    tracing::debug!(%backend, %refusal, "a way to map GPU memory does not work");
                    tried.push((backend, refusal));
                }
                result => return result,
            }
        }
        Err(MappingError::Unavailable { tried })
    }

    /// Returns the backend that the environment names (`GDSYNC_MAPPING`).
    ///
    /// # Errors
    /// [`MappingError::UnknownBackend`].
    pub fn from_environment() -> Result<Option<Self>, MappingError> {
        Self::named(std::env::var_os(VARIABLE))
    }

    /// Parses a variable's value; an empty value names no backend.
    fn named(value: Option<OsString>) -> Result<Option<Self>, MappingError> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
        let parsed = value.to_string_lossy().parse();
        parsed.map(Some).map_err(|reason| MappingError::UnknownBackend { variable: VARIABLE, reason })
    }

    /// Checks whether the machine supports the backend on at least one GPU, as far as can be determined without
    /// memory to map. `by_name`: nvrm is accepted on unknown drivers, too.
    ///
    /// # Errors
    /// [`Refusal`] names what is missing. A stand-in is always refused: it maps no GPU memory.
    pub fn check_support(self, by_name: bool) -> Result<(), Refusal> {
        self.check_support_by(&kernel::system(), by_name, || {
            let count = driver::device_count().map_err(|error| Refusal::driver("count the GPUs", error))?;
            Ok((0..count).any(|gpu| Gpu::new(gpu).is_ok_and(Gpu::makes_dma_bufs)))
        })
    }

    /// Like [`MappingBackend::check_support`], for this GPU.
    ///
    /// # Errors
    /// As [`MappingBackend::check_support`].
    pub fn check_support_on(self, gpu: Gpu, by_name: bool) -> Result<(), Refusal> {
        self.check_support_by(&kernel::system(), by_name, || Ok(gpu.makes_dma_bufs()))
    }

    fn check_support_by(
        self,
        kernel: &Arc<dyn Kernel>,
        by_name: bool,
        makes_dma_bufs: impl FnOnce() -> Result<bool, Refusal>,
    ) -> Result<(), Refusal> {
        match self {
            MappingBackend::Gdrdrv => gdrdrv::Gdrdrv::open(kernel).map(drop),
            MappingBackend::DmaBuf => {
                let version = driver::version();
                let version = version.map_err(|error| Refusal::driver("look at the driver", error))?;
                // Checked before any GPU is queried: most drivers are too old regardless of the GPU.
                check_dma_buf(version, true)?;
                check_dma_buf(version, makes_dma_bufs()?)
            }
            MappingBackend::ResourceManager => {
                nvrm::check(kernel, by_name)?;
                let path = gdsync_sys::nvrm::CONTROL_PATH;
                File::open(kernel, path).map(drop).map_err(|error| Refusal::open(path, &error, nvrm::MISSING))
            }
            MappingBackend::StandIn => {
                Err(Refusal::new("map GPU memory", "a stand-in has none", "make one by Mapping::stand_in"))
            }
        }
    }
}

/// The first CUDA driver whose dma-bufs the CPU can map, in the format of `cuDriverGetVersion`: 13.3.
const DMA_BUF_DRIVER: u32 = 13_030;

/// Checks whether the CPU can map a driver's dma-bufs, before one is created.
fn check_dma_buf(driver: u32, supported: bool) -> Result<(), Refusal> {
    if driver < DMA_BUF_DRIVER {
        let reason = format!("it is of CUDA {}.{}", driver / 1000, driver % 1000 / 10);
        return Err(Refusal::new("look at the driver", reason, "install a driver of CUDA 13.3 or newer"));
    }
    if !supported {
        let remedy = "use NVIDIA's open kernel modules, and Linux 5.12 or newer";
        return Err(Refusal::new("look at the GPU", "its driver makes no dma-bufs", remedy));
    }
    Ok(())
}

/// Maps the whole CPU pages of a dma-buf; the memory begins `offset` bytes after the dma-buf's start.
fn map_dma_buf(
    kernel: &Arc<dyn Kernel>,
    fd: OwnedFd,
    offset: usize,
    len: usize,
    coherent: bool,
) -> Result<Mapped, Refusal> {
    let file = File { kernel: kernel.clone(), fd: fd.into_raw_fd() };
    let page = page_size();
    let size = offset.checked_add(len.max(1)).and_then(|end| end.checked_next_multiple_of(page)).ok_or_else(
        || Refusal::new("map the dma-buf", format!("{len} bytes leave the address space"), "map less"),
    )?;
    let pages = file.map(size, 0).map_err(|error| {
        let remedy = match error.raw_os_error() {
            // 524 is the kernel's internal ENOTSUPP, which libc lacks.
            Some(524 | libc::EOPNOTSUPP | libc::ENODEV) => {
                "install a driver of CUDA 13.3 or newer, with open kernel modules"
            }
            Some(libc::ENOMEM) => "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY): unmap something",
            Some(libc::EINVAL) => "map memory that one allocation holds, whole pages of it",
            _ => "see the kernel's log (dmesg)",
        };
        Refusal::new("map the dma-buf", error, remedy)
    })?;
    // The dma-buf references the memory, which stays even if CUDA frees it first.
    let caching = if coherent { Caching::Cached } else { Caching::WriteCombining };
    Ok(Mapped::new(pages, file, (MappingBackend::DmaBuf, caching), page, offset))
}

#[cfg(test)]
mod tests;

//! Choice of the backend: support by the machine, which needs neither a context nor GPU memory, and mapping by the
//! backend that the environment names, or by the first that works.

use crate::backend::{MappingBackend, MappingError, Refusal};
use crate::driver;
use crate::gpu::Gpu;
use crate::kernel::{self, File, Kernel};
use crate::mapping::{Mapped, Mapping};
use crate::range::GpuRange;
use crate::{dma_buf, gdrdrv, nvrm};
use std::ffi::OsString;
use std::os::fd::AsFd;
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
    /// names a backend, [`MappingError::UnknownBackend`].
    pub fn pin(memory: &GpuRange) -> Result<Self, MappingError> {
        MappingBackend::first(|backend, by_name| Self::by(backend, by_name, memory))
    }

    /// Like [`Mapping::pin`], by this backend. nvrm tries unknown drivers, too.
    ///
    /// # Errors
    /// [`MappingError::Refused`].
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
    backend.offered_on(gpu, by_name)?;
    match backend {
        MappingBackend::Gdrdrv => {
            memory.synchronise_copies();
            gdrdrv::Gdrdrv::open(&kernel)?.map(memory.address(), memory.len())
        }
        MappingBackend::DmaBuf => {
            let made = memory.dma_buf();
            let (fd, offset) =
                made.map_err(|error| Refusal::driver("make a dma-buf of the memory", error))?;
            dma_buf::map(&kernel, fd, offset as usize, memory.len(), gpu.is_coherent())
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
    /// Returns the result of `attempt` with the first backend that is not [`MappingError::Refused`]. If the
    /// environment (`GDSYNC_MAPPING`) names a backend, only that one is tried, and `attempt`'s second argument is
    /// true.
    ///
    /// # Errors
    /// [`MappingError::Unavailable`], [`MappingError::UnknownBackend`], and those of `attempt`.
    pub fn first<T>(attempt: impl Fn(Self, bool) -> Result<T, MappingError>) -> Result<T, MappingError> {
        if let Some(backend) = Self::asked_for()? {
            return attempt(backend, true);
        }
        let mut tried = Vec::new();
        for backend in Self::ALL {
            match attempt(backend, false) {
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
    pub fn asked_for() -> Result<Option<Self>, MappingError> {
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
    pub fn offered(self, by_name: bool) -> Result<(), Refusal> {
        self.offered_by(&kernel::system(), by_name, || {
            let count = driver::device_count().map_err(|error| Refusal::driver("count the GPUs", error))?;
            Ok((0..count).any(|gpu| Gpu::new(gpu).is_ok_and(Gpu::makes_dma_bufs)))
        })
    }

    /// Like [`MappingBackend::offered`], for this GPU.
    ///
    /// # Errors
    /// As [`MappingBackend::offered`].
    pub fn offered_on(self, gpu: Gpu, by_name: bool) -> Result<(), Refusal> {
        self.offered_by(&kernel::system(), by_name, || Ok(gpu.makes_dma_bufs()))
    }

    fn offered_by(
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
                dma_buf::check(version, true)?;
                dma_buf::check(version, makes_dma_bufs()?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fakes::{Fake, Gdrdrv, Nvrm};
    use gdsync_sys::gdrdrv::version;

    #[test]
    fn a_backend_is_asked_for_by_its_name() {
        let named = |name: &str| MappingBackend::named(Some(name.into()));
        for backend in MappingBackend::ALL {
            assert_eq!(named(&backend.to_string()), Ok(Some(backend)));
        }
        assert_eq!((named(""), MappingBackend::named(None)), (Ok(None), Ok(None)));
        for unknown in ["stand-in", "GDRDRV", "gdrcopy"] {
            let error = named(unknown).unwrap_err().to_string();
            assert!(
                error.contains(unknown) && error.contains("GDSYNC_MAPPING") && error.contains("dma-buf"),
                "{error}"
            );
        }
    }

    fn offered(backend: MappingBackend, kernel: &Arc<dyn Kernel>, by_name: bool) -> Result<(), Refusal> {
        backend.offered_by(kernel, by_name, || Ok(true))
    }

    #[test]
    fn a_module_says_its_version_and_whether_it_keeps_memory() {
        for (minor, keeps) in [(6, true), (5, false), (3, false)] {
            let fake = Fake::with_gdrdrv(Gdrdrv::new(version(2, minor), keeps));
            let module = GdrdrvModule::of(&fake.kernel()).unwrap();
            assert_eq!((module.version, module.keeps_memory), ((2, minor), keeps));
            assert_eq!(offered(MappingBackend::Gdrdrv, &fake.kernel(), false), Ok(()));
            fake.end();
        }
        let fake = Fake::with_gdrdrv(Gdrdrv::new(version(1, 9), false));
        assert_eq!(
            GdrdrvModule::of(&fake.kernel()).map(drop),
            offered(MappingBackend::Gdrdrv, &fake.kernel(), false)
        );
        assert!(GdrdrvModule::of(&fake.kernel()).is_err());
        fake.end();
    }

    #[test]
    fn the_resource_manager_counts_where_its_driver_is_known_and_its_file_opens() {
        let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
        let works = |by_name| offered(MappingBackend::ResourceManager, &fake.kernel(), by_name);
        assert_eq!((works(false), works(true)), (Ok(()), Ok(())));
        fake.end();
        let fake = Fake::with_nvrm("610.1.2", Nvrm::new(&[0], 0));
        let works = |by_name| offered(MappingBackend::ResourceManager, &fake.kernel(), by_name);
        assert!(works(false).unwrap_err().reason.contains("610"));
        assert_eq!(works(true), Ok(()));
        fake.end();
        // The driver's version file exists, as in a container, but not its device file.
        let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
        fake.state().no_open = Some((gdsync_sys::nvrm::CONTROL_PATH.to_owned(), libc::ENOENT));
        let refusal = offered(MappingBackend::ResourceManager, &fake.kernel(), false).unwrap_err();
        assert!(refusal.remedy.contains("container"), "{refusal}");
        fake.end();
    }

    #[test]
    fn a_machine_without_them_says_what_is_missing() {
        let kernel = Fake::new().kernel();
        for backend in [MappingBackend::Gdrdrv, MappingBackend::ResourceManager, MappingBackend::StandIn] {
            let refusal = offered(backend, &kernel, false).unwrap_err();
            assert!(!refusal.remedy.is_empty(), "{refusal}");
        }
        assert!(MappingBackend::StandIn.offered(true).is_err());
    }
}

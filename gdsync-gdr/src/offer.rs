//! Mapping support of a machine, queried without a context and without GPU memory.

use crate::driver;
use crate::error::Refusal;
use crate::gpu::Gpu;
use crate::info::MappingBackend;
use crate::kernel::{self, File, Kernel};
use crate::{dma_buf, gdrdrv, nvrm};
use std::sync::Arc;

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

//! What a machine offers, asked without a GPU's context and without memory of it.

use super::kernel::{File, Kernel, System};
use super::{MappingBackend, Refusal, dma_buf, gdrdrv, nvrm};
use crate::cuda::{self, CudaError};
use std::sync::Arc;

/// What is known of gdrdrv, where it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GdrdrvModule {
    /// Its protocol: major, minor.
    pub version: (u16, u16),
    /// What is pinned stays if CUDA frees it first (`GDRDRV_ATTR_USE_PERSISTENT_MAPPING`).
    pub keeps_memory: bool,
}

impl GdrdrvModule {
    /// Asks the module.
    ///
    /// # Errors
    /// [`Refusal`] where it is not loaded, or not one that gdsync works with.
    pub fn ask() -> Result<Self, Refusal> {
        Self::of(&system())
    }

    fn of(kernel: &Arc<dyn Kernel>) -> Result<Self, Refusal> {
        let module = gdrdrv::Gdrdrv::open(kernel)?;
        Ok(GdrdrvModule { version: module.version(), keeps_memory: module.keeps_memory() })
    }
}

impl MappingBackend {
    /// Whether the machine has what the backend needs, as far as that can be said without a GPU's context and without memory:
    /// [`super::available`] knows better, and costs more. `by_name`: nvrm counts on drivers, too, on which it is only not known to
    /// work.
    ///
    /// # Errors
    /// [`Refusal`] with what is missing. A stand-in is always refused: it maps no GPU memory.
    pub fn offered(self, by_name: bool) -> Result<(), Refusal> {
        match self {
            MappingBackend::DmaBuf => dma_bufs(),
            _ => self.offered_by(&system(), by_name),
        }
    }

    fn offered_by(self, kernel: &Arc<dyn Kernel>, by_name: bool) -> Result<(), Refusal> {
        match self {
            MappingBackend::Gdrdrv => gdrdrv::Gdrdrv::open(kernel).map(drop),
            MappingBackend::ResourceManager => {
                nvrm::check(kernel, by_name)?;
                let path = gdsync_sys::nvrm::CONTROL_PATH;
                File::open(kernel, path).map(drop).map_err(|error| Refusal::open(path, &error, nvrm::MISSING))
            }
            MappingBackend::DmaBuf | MappingBackend::StandIn => Err(no_gpu_memory()),
        }
    }
}

fn system() -> Arc<dyn Kernel> {
    Arc::new(System)
}

pub(super) fn no_gpu_memory() -> Refusal {
    Refusal::new("map GPU memory", "a stand-in has none", "make one by Mapping::stand_in")
}

/// Of any GPU.
fn dma_bufs() -> Result<(), Refusal> {
    let failed = |error: CudaError| {
        Refusal::new("look at the driver", error, "see what the CUDA driver says of that error")
    };
    let version = cuda::driver_version().map_err(failed)?;
    // Before any GPU is asked: most drivers are too old, whatever their GPUs can do.
    dma_buf::check(version, true)?;
    let count = cuda::device_count().map_err(failed)?;
    let supported = (0..count).any(|gpu| cuda::describe(gpu).is_ok_and(|gpu| gpu.capabilities.dma_buf));
    dma_buf::check(version, supported)
}

#[cfg(test)]
mod tests {
    use super::super::fakes::{Fake, Gdrdrv, Nvrm};
    use super::*;
    use gdsync_sys::gdrdrv::version;

    #[test]
    fn a_module_says_its_version_and_whether_it_keeps_memory() {
        for (minor, keeps) in [(6, true), (5, false), (3, false)] {
            let fake = Fake::with_gdrdrv(Gdrdrv::new(version(2, minor), keeps));
            let module = GdrdrvModule::of(&fake.kernel()).unwrap();
            assert_eq!((module.version, module.keeps_memory), ((2, minor), keeps));
            assert_eq!(MappingBackend::Gdrdrv.offered_by(&fake.kernel(), false), Ok(()));
            fake.end();
        }
        let fake = Fake::with_gdrdrv(Gdrdrv::new(version(1, 9), false));
        assert_eq!(
            GdrdrvModule::of(&fake.kernel()).map(drop),
            MappingBackend::Gdrdrv.offered_by(&fake.kernel(), false)
        );
        assert!(GdrdrvModule::of(&fake.kernel()).is_err());
        fake.end();
    }

    #[test]
    fn the_resource_manager_counts_where_its_driver_is_known_and_its_file_opens() {
        let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
        let offered = |by_name| MappingBackend::ResourceManager.offered_by(&fake.kernel(), by_name);
        assert_eq!((offered(false), offered(true)), (Ok(()), Ok(())));
        fake.end();
        let fake = Fake::with_nvrm("610.1.2", Nvrm::new(&[0], 0));
        let offered = |by_name| MappingBackend::ResourceManager.offered_by(&fake.kernel(), by_name);
        assert!(offered(false).unwrap_err().reason.contains("610"));
        assert_eq!(offered(true), Ok(()));
        fake.end();
        // The driver's version is there, as in a container, but not its file.
        let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
        fake.state().no_open = Some((gdsync_sys::nvrm::CONTROL_PATH.to_owned(), libc::ENOENT));
        let refusal = MappingBackend::ResourceManager.offered_by(&fake.kernel(), false).unwrap_err();
        assert!(refusal.remedy.contains("container"), "{refusal}");
        fake.end();
    }

    #[test]
    fn a_machine_without_them_says_what_is_missing() {
        let kernel = Fake::new().kernel();
        for backend in [MappingBackend::Gdrdrv, MappingBackend::ResourceManager, MappingBackend::StandIn] {
            let refusal = backend.offered_by(&kernel, false).unwrap_err();
            assert!(!refusal.remedy.is_empty(), "{refusal}");
        }
        assert!(MappingBackend::StandIn.offered(true).is_err());
    }
}

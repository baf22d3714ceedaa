//! Mapping GPU memory by the backend that the environment names, or by the first that works.

use crate::error::{MappingError, Refusal};
use crate::info::MappingBackend;
use crate::kernel;
use crate::mapping::{Mapped, Mapping};
use crate::range::GpuRange;
use crate::{dma_buf, gdrdrv, nvrm};
use std::ffi::OsString;
use std::os::fd::AsFd;

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
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! GPU memory with a CPU mapping.

use super::kernel::{Kernel, System};
use super::mapping::{Mapped, Mapping};
use super::offer::no_gpu_memory;
use super::{MappingBackend, MappingError, Refusal, VARIABLE, dma_buf, gdrdrv, nvrm};
use crate::cuda::{self, CudaError, GpuContext, GpuMemory};
use cudarc::driver::CudaContext;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

/// GPU memory that the CPU, too, can load from and store to. Clones name the same memory and the same mapping.
///
/// The mapping goes with the last clone. The GPU memory is kept by it and by every clone of [`MappedMemory::gpu`]; memory of
/// gdsync's own is given back when the GPU is idle, so that dropping never waits for a stream.
#[derive(Clone)]
pub struct MappedMemory {
    // In the order in which they go.
    mapping: Arc<Mapping>,
    gpu: GpuMemory,
}

impl MappedMemory {
    /// Allocates `len` zeroed bytes of GPU memory, and maps them by the first backend that works (or the one that `GDSYNC_MAPPING`
    /// names). GPUs give such memory in large pieces, 2 MiB as a rule, of which each allocation takes at least one.
    ///
    /// # Errors
    /// [`MappingError::Unavailable`] with the reason of each backend that was tried, [`MappingError::Refused`] where one was
    /// asked for by name, [`MappingError::Cuda`] where the memory cannot be had.
    pub fn allocate(context: &Arc<CudaContext>, len: usize) -> Result<Self, MappingError> {
        Self::allocate_in(&GpuContext::of(context)?, len)
    }

    /// As [`MappedMemory::allocate`].
    pub(crate) fn allocate_in(context: &Arc<GpuContext>, len: usize) -> Result<Self, MappingError> {
        Self::first(|backend, named| Self::fresh(backend, named, context, len))
    }

    /// As [`MappedMemory::allocate`], by this backend.
    ///
    /// # Errors
    /// [`MappingError::Refused`], [`MappingError::Cuda`].
    pub fn allocate_by(
        backend: MappingBackend,
        context: &Arc<CudaContext>,
        len: usize,
    ) -> Result<Self, MappingError> {
        Self::fresh(backend, true, &GpuContext::of(context)?, len)
    }

    /// Maps GPU memory that is there already, by the first backend that can: gdrdrv and dma-buf what `cuMemAlloc` gave (gdrdrv the
    /// GPU's pages of 64 KiB that hold it, dma-buf the CPU's), nvrm only what was allocated exportable: by
    /// [`MappedMemory::allocate`], or by `cuMemCreate` with handles of POSIX file descriptors.
    ///
    /// The memory is kept. If it is of [`GpuMemory::from_raw`] and its owner frees it all the same, dma-buf and nvrm have a
    /// reference of their own: the mapping goes on, and nobody else sees what it stores. So has gdrdrv where its module maps
    /// persistently (2.5 and newer, on drivers that can); else every access is [`MappingError::Freed`] from then on. (One that is
    /// under way at that moment gets SIGBUS: this is a mistake that is caught, not a way to work.)
    ///
    /// # Errors
    /// As [`MappedMemory::allocate`].
    pub fn pin(memory: &GpuMemory) -> Result<Self, MappingError> {
        Self::first(|backend, named| Self::existing(backend, named, memory.clone()))
    }

    /// As [`MappedMemory::pin`], by this backend.
    ///
    /// # Errors
    /// As [`MappedMemory::allocate_by`].
    pub fn pin_by(backend: MappingBackend, memory: &GpuMemory) -> Result<Self, MappingError> {
        Self::existing(backend, true, memory.clone())
    }

    /// The GPU memory: payload of messages, words for streams, arguments of kernels.
    pub fn gpu(&self) -> &GpuMemory {
        &self.gpu
    }

    /// The GPU's address of the first byte.
    pub fn address(&self) -> u64 {
        self.gpu().address()
    }

    /// By the first backend that works. One asked for by name is the only one.
    fn first(
        attempt: impl Fn(MappingBackend, bool) -> Result<Self, MappingError>,
    ) -> Result<Self, MappingError> {
        if let Some(backend) = MappingBackend::asked_for()? {
            return attempt(backend, true);
        }
        let mut tried = Vec::new();
        for backend in MappingBackend::ALL {
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

    fn fresh(
        backend: MappingBackend,
        named: bool,
        context: &Arc<GpuContext>,
        len: usize,
    ) -> Result<Self, MappingError> {
        let refused = |refusal| MappingError::Refused { backend, refusal };
        // Before any memory is taken.
        Prober::of(context, named).check(backend).map_err(refused)?;
        let memory = Self::existing(backend, named, GpuMemory::allocate_exportable(context, len)?)?;
        memory.verify().map_err(refused)?;
        Ok(memory)
    }

    fn existing(backend: MappingBackend, named: bool, gpu: GpuMemory) -> Result<Self, MappingError> {
        let mapped = Prober::of(gpu.context(), named)
            .map(backend, &gpu)
            .map_err(|refusal| MappingError::Refused { backend, refusal })?;
        let mapping = Mapping::new(mapped, gpu.len(), !gpu.is_kept())?;
        tracing::debug!(?mapping, ?gpu, "GPU memory is mapped for the CPU");
        let mapping = Arc::new(mapping);
        gpu.set_mapping(Arc::downgrade(&mapping));
        Ok(MappedMemory { mapping, gpu })
    }

    /// Whether the mapping is of this memory at all: both ends, both ways. Leaves zeroes.
    fn verify(&self) -> Result<(), Refusal> {
        let (gpu, mapping) = (self.gpu(), &self.mapping);
        let odd = |what: &str| {
            Refusal::new(
                "compare the mapping with the memory",
                what,
                "use another way, and tell gdsync's authors",
            )
        };
        let failed = |error: &dyn fmt::Display| odd(&error.to_string());
        let size = gpu.len().min(8);
        let token = 0x6764_7379_6e63_2121_u64 ^ gpu.address();
        for (at, token) in [(0, token), (gpu.len() - size, !token)] {
            let (token, mut seen) = (&token.to_ne_bytes()[..size], [0; 8]);
            gpu.write(at, token).map_err(|error| failed(&error))?;
            mapping.copy_from(at, &mut seen[..size]).map_err(|error| failed(&error))?;
            if seen[..size] != *token {
                return Err(odd("the CPU does not see what the GPU's memory holds"));
            }
            mapping.copy_to(at, &[0; 8][..size]).map_err(|error| failed(&error))?;
            gpu.read(at, &mut seen[..size]).map_err(|error| failed(&error))?;
            if seen[..size] != [0; 8][..size] {
                return Err(odd("the GPU does not see what the CPU stored"));
            }
        }
        Ok(())
    }
}

impl Deref for MappedMemory {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.mapping
    }
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedMemory({:?}, {:?})", self.gpu, self.mapping)
    }
}

/// One GPU, and the system's kernel.
struct Prober<'a> {
    context: &'a Arc<GpuContext>,
    kernel: Arc<dyn Kernel>,
    /// Asked for by name: what is only not known to work is tried.
    named: bool,
}

impl<'a> Prober<'a> {
    fn of(context: &'a Arc<GpuContext>, named: bool) -> Self {
        Prober { context, kernel: Arc::new(System), named }
    }

    /// What can be said without memory.
    fn check(&self, backend: MappingBackend) -> Result<(), Refusal> {
        match backend {
            MappingBackend::Gdrdrv => gdrdrv::Gdrdrv::open(&self.kernel).map(drop),
            MappingBackend::DmaBuf => {
                let version =
                    cuda::driver_version().map_err(|error| cuda_refusal("look at the driver", &error))?;
                dma_buf::check(version, self.context.capabilities().dma_buf)
            }
            MappingBackend::ResourceManager => nvrm::check(&self.kernel, self.named),
            MappingBackend::StandIn => Err(no_gpu_memory()),
        }
    }

    fn map(&self, backend: MappingBackend, memory: &GpuMemory) -> Result<Mapped, Refusal> {
        self.check(backend)?;
        match backend {
            MappingBackend::Gdrdrv => {
                memory.synchronise_copies();
                gdrdrv::Gdrdrv::open(&self.kernel)?.map(memory.address(), memory.len())
            }
            MappingBackend::DmaBuf => {
                let (fd, offset) =
                    memory.dma_buf().map_err(|error| cuda_refusal("make a dma-buf of the memory", &error))?;
                dma_buf::map(&self.kernel, fd, offset as usize, memory.len(), self.context.is_coherent())
            }
            // (A stand-in was refused above.)
            MappingBackend::ResourceManager | MappingBackend::StandIn => {
                let exported = memory.export().map_err(|error| {
                    Refusal::new(
                        "export the memory",
                        error,
                        "allocate it by MappedMemory::allocate, or by cuMemCreate with POSIX file descriptors",
                    )
                })?;
                let bus = self.context.bus_id().map_err(|error| cuda_refusal("find the GPU", &error))?;
                let gpu = nvrm::Gpu { bus: &bus, any_driver: self.named };
                let mut mapped = nvrm::map(&self.kernel, &gpu, exported.fd.as_fd(), exported.size)?;
                mapped.info.offset = exported.offset;
                Ok(mapped)
            }
        }
    }
}

fn cuda_refusal(step: &str, error: &CudaError) -> Refusal {
    Refusal::new(step, error, "see what the CUDA driver says of that error")
}

/// A backend, and why it does not work on a GPU, if it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Availability {
    /// The backend.
    pub backend: MappingBackend,
    /// Why it does not work.
    pub refusal: Option<Refusal>,
}

/// Tries each backend on a GPU, with a small allocation that is mapped, checked and dropped. Drivers that are only not known to work
/// with nvrm count as not working, unless `GDSYNC_MAPPING` asks for it.
///
/// # Errors
/// [`MappingError::Cuda`] where the GPU has no memory to try it with; [`MappingError::UnknownBackend`].
pub fn available(context: &Arc<CudaContext>) -> Result<Vec<Availability>, MappingError> {
    let context = GpuContext::of(context)?;
    let asked_for = MappingBackend::asked_for()?;
    MappingBackend::ALL
        .into_iter()
        .map(|backend| match MappedMemory::fresh(backend, asked_for == Some(backend), &context, 1) {
            Ok(_) => Ok(Availability { backend, refusal: None }),
            Err(MappingError::Refused { refusal, .. }) => {
                Ok(Availability { backend, refusal: Some(refusal) })
            }
            Err(error) => Err(error),
        })
        .collect()
}

impl MappingBackend {
    /// That which the environment names.
    fn asked_for() -> Result<Option<Self>, MappingError> {
        Self::named(std::env::var_os(VARIABLE))
    }

    /// That which a variable names; none where it is empty.
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

//! CPU mappings of GPU memory: [`MappedMemory`] joins the library's [`GpuMemory`] to a [`Mapping`]
//! of the crate `gdsync-gdr`, whose types are re-exported here.

pub use gdsync_gdr::{
    Caching, GdrdrvModule, LoadKernel, Mapping, MappingBackend, MappingError, MappingInfo, Refusal,
    StoreKernel,
};

use crate::cuda::{CudaError, GpuContext, GpuMemory};
use cudarc::driver::CudaContext;
use gdsync_gdr::Gpu;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// GPU memory that the CPU can load from and store to. Clones name the same memory and the same mapping.
///
/// The drop of the last clone removes the mapping. Every clone, and every clone of [`MappedMemory::gpu`], keeps the
/// memory. Memory that gdsync allocated is freed when the GPU is idle, so that dropping never waits for a stream.
///
/// # Example
/// ```no_run
/// use gdsync::cuda;
/// use gdsync::advanced::mapped::MappedMemory;
///
/// let context = cuda::context(0)?;
/// let memory = MappedMemory::allocate(&context, 4096)?;
/// memory.copy_to(128, b"kernels see this")?;
/// let mut back = [0; 7];
/// memory.copy_from(128, &mut back)?;
/// assert_eq!(&back, b"kernels");
/// // The same memory, for kernels, streams and cards.
/// println!("{:?}, {:?}", memory.gpu(), memory.info());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MappedMemory {
    // Dropped in this order.
    mapping: Arc<Mapping>,
    gpu: GpuMemory,
}

impl MappedMemory {
    /// Allocates `len` zeroed bytes of GPU memory, and maps them by the first backend that works (or the one that
    /// `GDSYNC_MAPPING` names). Each allocation takes at least one of the GPU's pieces, typically 2 MiB.
    ///
    /// # Errors
    /// [`MappingError::Unavailable`] with the reason of each backend that was tried, [`MappingError::Refused`] if the
    /// environment names a backend, [`MappingError::Driver`] or [`MappingError::Allocation`] if the memory cannot be
    /// allocated.
    pub fn allocate(context: &Arc<CudaContext>, len: usize) -> Result<Self, MappingError> {
        let context = GpuContext::of(context)?;
        MappingBackend::first_working(|backend, by_name| Self::verified(backend, by_name, &context, len))
    }

    /// Allocates as [`MappedMemory::allocate`] does, and maps by this backend.
    ///
    /// # Errors
    /// [`MappingError::Refused`] if the backend does not work; otherwise as [`MappedMemory::allocate`].
    pub fn allocate_by(
        backend: MappingBackend,
        context: &Arc<CudaContext>,
        len: usize,
    ) -> Result<Self, MappingError> {
        Self::verified(backend, true, &GpuContext::of(context)?, len)
    }

    /// Maps existing GPU memory, by the first backend that can: see [`Mapping::pin`], which also says what happens if
    /// the owner of memory of [`GpuMemory::from_raw`] frees it although this keeps it.
    ///
    /// # Errors
    /// As [`Mapping::pin`].
    pub fn pin(memory: &GpuMemory) -> Result<Self, MappingError> {
        Ok(Self::of(Mapping::pin(&memory.range())?, memory.clone()))
    }

    /// Maps as [`MappedMemory::pin`] does, by this backend.
    ///
    /// # Errors
    /// As [`Mapping::pin_by`].
    pub fn pin_by(backend: MappingBackend, memory: &GpuMemory) -> Result<Self, MappingError> {
        Ok(Self::of(Mapping::pin_by(backend, &memory.range())?, memory.clone()))
    }

    /// Returns the GPU memory: payload of messages, words for streams, arguments of kernels.
    pub fn gpu(&self) -> &GpuMemory {
        &self.gpu
    }

    /// Returns the GPU's address of the first byte.
    pub fn address(&self) -> u64 {
        self.gpu().address()
    }

    fn of(mapping: Mapping, gpu: GpuMemory) -> Self {
        let mapping = Arc::new(mapping);
        gpu.set_mapping(Arc::downgrade(&mapping));
        MappedMemory { mapping, gpu }
    }

    fn verified(
        backend: MappingBackend,
        by_name: bool,
        context: &Arc<GpuContext>,
        len: usize,
    ) -> Result<Self, MappingError> {
        let refused = |refusal| MappingError::Refused { backend, refusal };
        // Before memory is allocated.
        backend.check_support_on(Gpu::from_device(context.ordinal), by_name).map_err(refused)?;
        let memory = Self::pin_by(backend, &GpuMemory::allocate_exportable(context, len)?)?;
        memory.verify().map_err(refused)?;
        Ok(memory)
    }

    /// Checks that the mapping is of this memory, at both ends and in both directions. Leaves zeroes.
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

impl From<CudaError> for MappingError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Driver(error) => MappingError::Driver(error),
            other => MappingError::Allocation { reason: other.to_string() },
        }
    }
}

/// A backend, and the reason if it does not work on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Availability {
    /// The backend.
    pub backend: MappingBackend,
    /// The reason why it does not work.
    pub refusal: Option<Refusal>,
}

/// Tries each backend on a GPU, with a small allocation that is mapped, checked and dropped. Refuses nvrm on untested
/// drivers, unless `GDSYNC_MAPPING` asks for it.
///
/// # Errors
/// [`MappingError::Driver`] or [`MappingError::Allocation`] if the GPU has no memory for the test;
/// [`MappingError::UnknownBackend`].
pub fn available(context: &Arc<CudaContext>) -> Result<Vec<Availability>, MappingError> {
    let context = GpuContext::of(context)?;
    let asked_for = MappingBackend::from_environment()?;
    let attempt = |backend| match MappedMemory::verified(backend, asked_for == Some(backend), &context, 1) {
        Ok(_) => Ok(Availability { backend, refusal: None }),
        Err(MappingError::Refused { refusal, .. }) => Ok(Availability { backend, refusal: Some(refusal) }),
        Err(error) => Err(error),
    };
    MappingBackend::ALL.into_iter().map(attempt).collect()
}

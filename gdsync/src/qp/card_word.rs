//! Words that cards and streams share.

use crate::cuda::CudaError;
use crate::memop::{GpuWord64, Named, Place, StreamWord, Word64};
use crate::verbs::{
    Error, GpuMemoryRegion, MemoryRegion, ProtectionDomain, ProtectionDomainInner, RemoteMemory,
};
use std::sync::Arc;

/// A word of 64 bits that a card and streams share: of host memory or of GPU memory, registered with
/// the card.
///
/// Clones name the same word and keep it registered.
#[derive(Clone, Debug)]
pub struct CardWord(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    word: Word,
    pd: Arc<ProtectionDomainInner>,
    lkey: u32,
    remote: RemoteMemory,
}

/// The word, and the region that keeps it registered.
#[derive(Debug)]
enum Word {
    Host { word: Word64, _region: MemoryRegion },
    Gpu { word: GpuWord64, _region: GpuMemoryRegion },
}

impl CardWord {
    /// The word at an offset of a region. Its value stays.
    ///
    /// # Errors
    /// [`Error::Word`].
    pub(crate) fn in_region(region: &MemoryRegion, offset: usize) -> Result<Self, Error> {
        let word = region.word64(offset)?;
        let remote = part(region.remote(), offset);
        let (pd, lkey) = (region.inner.pd.clone(), region.lkey());
        let word = Word::Host { word, _region: region.clone() };
        Ok(CardWord(Arc::new(Inner { word, pd, lkey, remote })))
    }

    /// As [`Self::in_region`], in GPU memory.
    pub(crate) fn in_gpu_region(region: &GpuMemoryRegion, offset: usize) -> Result<Self, Error> {
        let word = GpuWord64::new(region.memory(), offset)?;
        let remote = part(region.remote(), offset);
        let (pd, lkey) = (region.inner.pd.clone(), region.lkey());
        let word = Word::Gpu { word, _region: region.clone() };
        Ok(CardWord(Arc::new(Inner { word, pd, lkey, remote })))
    }

    /// Its value now. In GPU memory this is a copy by the driver, which takes some microseconds.
    ///
    /// # Errors
    /// [`CudaError::Driver`](crate::cuda::CudaError::Driver) where the driver cannot read it.
    pub fn load(&self) -> Result<u64, CudaError> {
        match &self.0.word {
            Word::Host { word, .. } => Ok(word.load()),
            Word::Gpu { word, .. } => word.load(),
        }
    }

    /// Its address, as the card and kernels know it: the host's, or in GPU memory the GPU's.
    pub fn address(&self) -> u64 {
        self.0.remote.addr
    }

    /// Whether it lies in GPU memory.
    pub fn is_in_gpu_memory(&self) -> bool {
        matches!(self.0.word, Word::Gpu { .. })
    }

    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn store(&self, value: u64) -> Result<(), CudaError> {
        match &self.0.word {
            Word::Host { word, .. } => word.store(value),
            Word::Gpu { word, .. } => word.store(value)?,
        }
        Ok(())
    }

    /// Its value now, where a look takes no driver.
    pub(crate) fn peek(&self) -> Option<u64> {
        match &self.0.word {
            Word::Host { word, .. } => Some(word.load()),
            Word::Gpu { .. } => None,
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    pub(crate) fn remote(&self) -> RemoteMemory {
        self.0.remote
    }

    pub(crate) fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: self.0.pd.clone() }
    }
}

/// The word's part of its region, in which it lies.
fn part(whole: RemoteMemory, offset: usize) -> RemoteMemory {
    RemoteMemory { addr: whole.addr.wrapping_add(offset as u64), len: size_of::<u64>() as u64, ..whole }
}

impl Named for CardWord {
    fn place(&self) -> Place {
        match &self.0.word {
            Word::Host { word, .. } => word.place(),
            Word::Gpu { word, .. } => word.place(),
        }
    }
}

impl StreamWord<u64> for CardWord {}

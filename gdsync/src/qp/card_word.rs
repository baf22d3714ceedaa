//! Words that cards and streams share.

use crate::cuda::CudaError;
use crate::memop::{GpuWord64, Named, Place, StreamWord, Word64};
use crate::verbs::{
    Error, GpuMemoryRegion, MemoryRegion, MemoryRegionInner, ProtectionDomain, Region, RemoteMemory,
};
use gdsync_sys::prm::wait;
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
    /// What keeps it registered.
    region: Arc<MemoryRegionInner>,
    remote: RemoteMemory,
}

#[derive(Debug)]
enum Word {
    Host(Word64),
    Gpu(GpuWord64),
}

impl CardWord {
    /// The word at a byte offset of a region. Its value stays.
    ///
    /// # Errors
    /// [`Error::Word`] where the offset is not aligned to 8 bytes or lies outside.
    pub fn in_region(region: &MemoryRegion, offset: usize) -> Result<Self, Error> {
        Ok(Self::part(region, offset, Word::Host(region.word64(offset)?)))
    }

    /// As [`Self::in_region`], in GPU memory.
    pub(crate) fn in_gpu_region(region: &GpuMemoryRegion, offset: usize) -> Result<Self, Error> {
        Ok(Self::part(region, offset, Word::Gpu(GpuWord64::new(region.memory(), offset)?)))
    }

    /// A word of a region, in which it lies.
    fn part<M>(region: &Region<M>, offset: usize, word: Word) -> Self {
        let RemoteMemory { addr, rkey, .. } = region.remote();
        let remote =
            RemoteMemory { addr: addr.wrapping_add(offset as u64), len: size_of::<u64>() as u64, rkey };
        CardWord(Arc::new(Inner { word, region: region.inner.clone(), remote }))
    }

    /// Its value now. In GPU memory this is a copy by the driver, which takes some microseconds.
    ///
    /// # Errors
    /// [`CudaError::Driver`](crate::cuda::CudaError::Driver) where the driver cannot read it.
    pub fn load(&self) -> Result<u64, CudaError> {
        match &self.0.word {
            Word::Host(word) => Ok(word.load()),
            Word::Gpu(word) => word.load(),
        }
    }

    /// Its address, as the card and kernels know it: the host's, or in GPU memory the GPU's.
    pub fn address(&self) -> u64 {
        self.0.remote.addr
    }

    /// Stores a number as cards compare it ([`Trigger::word_of`](crate::Trigger::word_of)), unless the word has reached it,
    /// modulo 2^64. For words that cards wait for: of a [`Collector`](crate::Collector), the word is the card's to write.
    ///
    /// # Errors
    /// [`CudaError::Driver`](crate::cuda::CudaError::Driver) where the word is in GPU memory and the driver cannot
    /// write it.
    pub fn raise(&self, number: u64) -> Result<(), CudaError> {
        if is_behind(self.load()?, number) {
            self.store(wait::word(number))?;
        }
        Ok(())
    }

    /// # Errors
    /// [`CudaError::Driver`].
    pub(crate) fn store(&self, value: u64) -> Result<(), CudaError> {
        match &self.0.word {
            Word::Host(word) => word.store(value),
            Word::Gpu(word) => word.store(value)?,
        }
        Ok(())
    }

    /// Its value now, where a look takes no driver.
    pub(crate) fn peek(&self) -> Option<u64> {
        match &self.0.word {
            Word::Host(word) => Some(word.load()),
            Word::Gpu(_) => None,
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.0.region.lkey
    }

    /// The word, as the remote side's RDMA writes name it: where its region has
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE).
    pub fn remote(&self) -> RemoteMemory {
        self.0.remote
    }

    /// What keeps it registered.
    pub(crate) fn region(&self) -> Arc<MemoryRegionInner> {
        self.0.region.clone()
    }

    pub(crate) fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: self.0.region.pd.clone() }
    }
}

/// Whether a word has still to reach a number.
pub(super) fn is_behind(word: u64, number: u64) -> bool {
    (number.wrapping_sub(wait::word(word)) as i64) > 0
}

impl Named for CardWord {
    fn place(&self) -> Place {
        match &self.0.word {
            Word::Host(word) => word.place(),
            Word::Gpu(word) => word.place(),
        }
    }
}

impl StreamWord<u64> for CardWord {}

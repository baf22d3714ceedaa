//! Words that cards and streams share.

use crate::cuda::CudaError;
use crate::memop::{GpuWord64, Named, Place, StreamWord, Word64};
use crate::verbs::{
    Error, GpuMemoryRegion, MemoryRegion, MemoryRegionInner, ProtectionDomain, ProtectionDomainInner,
    RemoteMemory,
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
    pd: Arc<ProtectionDomainInner>,
    lkey: u32,
    remote: RemoteMemory,
}

/// The word, and the region that keeps it registered.
#[derive(Debug)]
enum Word {
    Host { word: Word64, region: MemoryRegion },
    Gpu { word: GpuWord64, region: GpuMemoryRegion },
}

impl CardWord {
    /// The word at a byte offset of a region. Its value stays.
    ///
    /// # Errors
    /// [`Error::Word`] where the offset is not aligned to 8 bytes or lies outside.
    pub fn in_region(region: &MemoryRegion, offset: usize) -> Result<Self, Error> {
        let word = region.word64(offset)?;
        let remote = part(region.remote(), offset);
        let (pd, lkey) = (region.inner.pd.clone(), region.lkey());
        let word = Word::Host { word, region: region.clone() };
        Ok(CardWord(Arc::new(Inner { word, pd, lkey, remote })))
    }

    /// As [`Self::in_region`], in GPU memory.
    pub(crate) fn in_gpu_region(region: &GpuMemoryRegion, offset: usize) -> Result<Self, Error> {
        let word = GpuWord64::new(region.memory(), offset)?;
        let remote = part(region.remote(), offset);
        let (pd, lkey) = (region.inner.pd.clone(), region.lkey());
        let word = Word::Gpu { word, region: region.clone() };
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

    /// The word, as the remote side's RDMA writes name it: where its region has
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE).
    pub fn remote(&self) -> RemoteMemory {
        self.0.remote
    }

    /// What keeps it registered.
    pub(crate) fn region(&self) -> Arc<MemoryRegionInner> {
        match &self.0.word {
            Word::Host { region, .. } => region.inner.clone(),
            Word::Gpu { region, .. } => region.inner.clone(),
        }
    }

    pub(crate) fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: self.0.pd.clone() }
    }
}

/// Whether a word has still to reach a number.
pub(super) fn is_behind(word: u64, number: u64) -> bool {
    (number.wrapping_sub(wait::word(word)) as i64) > 0
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

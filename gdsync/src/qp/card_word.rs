//! Words that cards and streams share.

use crate::cuda::CudaError;
use crate::memop::{GpuWord64, Location, Named, StreamWord, Word64};
use crate::verbs::{
    Error, GpuMemoryRegion, MemoryRegion, MemoryRegionInner, ProtectionDomain, Region, RemoteMemory,
};
use gdsync_sys::prm::wait;
use std::sync::Arc;

/// A 64-bit word of host or GPU memory, registered with the card and shared by card and streams. Clones name the
/// same word and keep it registered.
#[derive(Clone, Debug)]
pub struct CardWord(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    word: Word,
    /// Keeps the word registered.
    region: Arc<MemoryRegionInner>,
    remote: RemoteMemory,
}

#[derive(Debug)]
enum Word {
    Host(Word64),
    Gpu(GpuWord64),
}

impl CardWord {
    /// Returns the word at a byte offset of a region. The value is left as it is.
    ///
    /// # Errors
    /// [`Error::Word`] if the offset is not aligned to 8 bytes or lies outside.
    pub fn in_region(region: &MemoryRegion, offset: usize) -> Result<Self, Error> {
        Ok(Self::part(region, offset, Word::Host(region.word64(offset)?)))
    }

    pub(crate) fn in_gpu_region(region: &GpuMemoryRegion, offset: usize) -> Result<Self, Error> {
        Ok(Self::part(region, offset, Word::Gpu(GpuWord64::new(region.memory(), offset)?)))
    }

    fn part<M>(region: &Region<M>, offset: usize, word: Word) -> Self {
        let RemoteMemory { addr, rkey, .. } = region.remote();
        let remote =
            RemoteMemory { addr: addr.wrapping_add(offset as u64), len: size_of::<u64>() as u64, rkey };
        CardWord(Arc::new(Inner { word, region: region.inner.clone(), remote }))
    }

    /// Reads the value. In GPU memory, this is a copy by the driver, which takes some microseconds.
    ///
    /// # Errors
    /// [`CudaError::Driver`](crate::cuda::CudaError::Driver) if the driver cannot read it.
    pub fn load(&self) -> Result<u64, CudaError> {
        match &self.0.word {
            Word::Host(word) => Ok(word.load()),
            Word::Gpu(word) => word.load(),
        }
    }

    /// Returns its address for the card and kernels: a host address, or for GPU memory the GPU's.
    pub fn address(&self) -> u64 {
        self.0.remote.addr
    }

    /// Stores a number in the form that cards compare ([`Trigger::word_of`](crate::Trigger::word_of)), unless the
    /// word has reached it modulo 2^64. For words that cards wait for; only the card writes the word of a
    /// [`Collector`](crate::advanced::Collector).
    ///
    /// # Errors
    /// [`CudaError::Driver`](crate::cuda::CudaError::Driver) if the word is in GPU memory and the driver cannot
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

    /// Replaces the number in a word of host memory that a stream or a card may write meanwhile, if it is `from`.
    pub(crate) fn replace(&self, from: u64, to: u64) -> bool {
        match &self.0.word {
            Word::Host(word) => word.replace(wait::word(from), wait::word(to)),
            // Has no atomic exchange with the GPU.
            Word::Gpu(_) => false,
        }
    }

    /// Reads the value if that needs no call of the driver.
    pub(crate) fn peek(&self) -> Option<u64> {
        match &self.0.word {
            Word::Host(word) => Some(word.load()),
            Word::Gpu(_) => None,
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.0.region.lkey
    }

    /// Returns the word as the target of the remote side's RDMA writes. Its region needs
    /// [`Access::REMOTE_WRITE`](crate::Access::REMOTE_WRITE).
    pub fn remote(&self) -> RemoteMemory {
        self.0.remote
    }

    pub(crate) fn region(&self) -> Arc<MemoryRegionInner> {
        self.0.region.clone()
    }

    pub(crate) fn protection_domain(&self) -> ProtectionDomain {
        ProtectionDomain { inner: self.0.region.pd.clone() }
    }
}

/// Returns whether a word has not reached a number yet.
pub(super) fn is_behind(word: u64, number: u64) -> bool {
    (number.wrapping_sub(wait::word(word)) as i64) > 0
}

impl Named for CardWord {
    fn location(&self) -> Location {
        match &self.0.word {
            Word::Host(word) => word.location(),
            Word::Gpu(word) => word.location(),
        }
    }
}

impl StreamWord<u64> for CardWord {}

//! Words of pinned host memory that kernels write, and the CPU reads.

use crate::failure::Failure;
use gdsync::PinnedMemory;
use gdsync::cudarc::driver::CudaContext;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) struct Words {
    memory: PinnedMemory,
    address: u64,
}

impl Words {
    /// Zeroes.
    pub(super) fn new(context: &Arc<CudaContext>, count: u64) -> Result<Self, Failure> {
        let memory = PinnedMemory::allocate(usize::try_from(count * 8)?)?;
        let address = gdsync::cuda::pin(context, &memory)?;
        Ok(Words { memory, address })
    }

    /// The GPU's address of a word.
    pub(super) fn address(&self, index: u64) -> u64 {
        self.address + 8 * index
    }

    /// The value of a word. The last kernel that writes it must have ended, as the CPU knows by an
    /// event.
    pub(super) fn load(&self, index: u64) -> u64 {
        self.memory.words64()[index as usize].load(Ordering::Acquire)
    }
}

//! The memory of the kernels' indices.

use super::error::DeviceQpError;
use super::layout::{Progress, STATE_BYTES};
use crate::cuda::GpuMemory;
use crate::memop::MemOpStream;
use crate::memory::PinnedMemory;
use std::sync::atomic::Ordering;

/// The memory of the indices that the threads of kernels share.
#[derive(Debug)]
pub(super) enum State {
    /// Every device reaches it.
    Pinned(PinnedMemory),
    /// On the GPU that runs the kernels: their atomics do not cross PCIe.
    Gpu(GpuMemory),
}

impl State {
    pub(super) fn new(memory: Option<&GpuMemory>) -> Result<Self, DeviceQpError> {
        match memory {
            None => Ok(State::Pinned(PinnedMemory::allocate(STATE_BYTES).map_err(DeviceQpError::Memory)?)),
            Some(memory) if memory.len() < STATE_BYTES => {
                Err(DeviceQpError::StateTooShort { needed: STATE_BYTES, given: memory.len() })
            }
            Some(memory) => Ok(State::Gpu(memory.clone())),
        }
    }

    /// The address for kernels.
    pub(super) fn address(&self, device: &impl MemOpStream) -> Result<u64, DeviceQpError> {
        match self {
            State::Pinned(memory) => Ok(device.translate(memory.addr(), STATE_BYTES)?.get()),
            State::Gpu(memory) => {
                device.owns(memory)?;
                Ok(memory.address())
            }
        }
    }

    /// Writes the first indices, and zeroes everywhere else.
    pub(super) fn start(&self, progress: &Progress) -> Result<(), DeviceQpError> {
        let zeroes = [0u8; STATE_BYTES];
        match self {
            State::Pinned(memory) => drop(memory.write(0, &zeroes)),
            State::Gpu(memory) => memory.write(0, &zeroes)?,
        }
        self.write(progress)
    }

    pub(super) fn write(&self, progress: &Progress) -> Result<(), DeviceQpError> {
        for (at, value) in progress.words() {
            match self {
                // Release: a thread that sees an index also sees what the CPU wrote before.
                State::Pinned(memory) => memory.words64()[at].store(value, Ordering::Release),
                State::Gpu(memory) => memory.write(at * 8, &value.to_ne_bytes())?,
            }
        }
        Ok(())
    }

    pub(super) fn read(&self) -> Result<Progress, DeviceQpError> {
        match self {
            // Acquire: the kernels wrote the blocks before the indices.
            State::Pinned(memory) => {
                Ok(Progress::from_words(|at| memory.words64()[at].load(Ordering::Acquire)))
            }
            State::Gpu(memory) => {
                let mut bytes = [0u8; STATE_BYTES];
                memory.read(0, &mut bytes)?;
                let word = |at: usize| bytes.chunks_exact(8).nth(at).and_then(|word| word.try_into().ok());
                Ok(Progress::from_words(|at| word(at).map_or(0, u64::from_ne_bytes)))
            }
        }
    }
}

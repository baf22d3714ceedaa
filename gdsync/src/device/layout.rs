//! The structures of `gdsync/device/queue.cuh`, for the host.

use crate::cuda::GpuMemory;
use crate::device::DeviceQpError;
use crate::memop::{Location, MemOpStream, Site, StreamError};
use crate::memory::PinnedMemory;
use crate::qp::{Collector, Trigger};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use std::sync::atomic::Ordering;
use zerocopy::{Immutable, IntoBytes};

/// `GDSYNC_DEVICE_QP_VERSION`.
pub(super) const VERSION: u32 = 1;
/// `GDSYNC_DEVICE_QP_MAILBOX`.
pub(super) const MAILBOX: u32 = 1;
/// `GDSYNC_DEVICE_RINGING`, in the word [`READY`].
const RINGING: u64 = 1 << 63;
/// `GDSYNC_DEVICE_ERROR_WORK`, with the card's syndrome in the low byte and the vendor's in the next byte.
pub(super) const ERROR_WORK: u64 = 0x1_0000;
/// `GDSYNC_DEVICE_ERROR_RETURNED`.
pub(super) const ERROR_RETURNED: u64 = 0x8_0000;

/// A queue pair for kernels: `struct gdsync_device_qp` of `gdsync/device_verbs.cuh`, passed by value or by address.
///
/// Plain data with addresses of the device that the queue pair is attached to. It is invalid once its
/// [`super::DeviceQp`] was detached or dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable)]
pub struct DeviceQpData {
    /// Ring of the send queue, 64 bytes per block.
    pub send_ring: u64,
    /// Word of the doorbell record that counts send blocks.
    pub send_record: u64,
    /// Doorbell register, or mailbox.
    pub doorbell: u64,
    /// Ring of the send completion queue, 64 bytes per entry.
    pub completion_ring: u64,
    /// Word of its doorbell record with the consumer index.
    pub completion_record: u64,
    /// The indices that the threads of kernels share: 320 bytes.
    pub state: u64,
    /// Number of blocks of the send ring, minus one.
    pub send_mask: u32,
    /// Number of entries of the completion ring, minus one.
    pub completion_mask: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Maximum number of outstanding blocks.
    pub limit: u32,
    /// Bit 0: the doorbell is a mailbox.
    pub flags: u32,
    /// Version of the layout.
    pub version: u32,
    /// How long a thread waits for another thread in the middle of a call, in nanoseconds.
    pub stall_ns: u64,
    /// Zeroes.
    pub reserved: [u64; 6],
}

// SAFETY: plain integers, in the layout that kernels expect, which a test compares.
unsafe impl cudarc::driver::DeviceRepr for DeviceQpData {}

/// Bytes of memory for [`DeviceQpOptions::state`](super::DeviceQpOptions::state): `struct gdsync_device_state`.
pub const STATE_BYTES: usize = 5 * BASIC_BLOCK;

/// The words of `gdsync_device_state` that the CPU uses. It writes them only while no kernel posts or polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) reserved: u64,
    pub(super) ready: u64,
    pub(super) posted: u64,
    pub(super) completed: u64,
    pub(super) consumed: u64,
    pub(super) error: u64,
}

const RESERVED: usize = 0;
const READY: usize = 8;
const POSTED: usize = 16;
const COMPLETED: usize = 24;
const CONSUMED: usize = 25;
const ERROR: usize = 32;

impl Progress {
    pub(super) fn from_words(word: impl Fn(usize) -> u64) -> Self {
        Progress {
            reserved: word(RESERVED),
            ready: word(READY) & !RINGING,
            posted: word(POSTED),
            completed: word(COMPLETED),
            consumed: word(CONSUMED),
            error: word(ERROR),
        }
    }

    pub(super) fn words(&self) -> [(usize, u64); 6] {
        [
            (RESERVED, self.reserved),
            (READY, self.ready),
            (POSTED, self.posted),
            (COMPLETED, self.completed),
            (CONSUMED, self.consumed),
            (ERROR, self.error),
        ]
    }
}

/// A trigger for kernels, passed by value or by address: `struct gdsync_trigger` of `gdsync/device/trigger.cuh`.
///
/// Plain data with an address of the device that it was made for, valid as long as the [`Trigger`] or a clone of it
/// lives. The code that launches kernels (which is `unsafe`) promises that they have ended before the last is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
pub struct TriggerData {
    /// The word: 64 bits with [`Trigger::word_of`] the newest ticket.
    pub word: u64,
}

/// A [`Collector`] for kernels, as [`TriggerData`]: `struct gdsync_collector` of `gdsync/device/trigger.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
pub struct CollectorData {
    /// The arrival word: 64 bits, in native byte order.
    pub word: u64,
}

// SAFETY: a plain integer, in the layout that kernels expect, which a test compares.
unsafe impl cudarc::driver::DeviceRepr for TriggerData {}
// SAFETY: as above.
unsafe impl cudarc::driver::DeviceRepr for CollectorData {}

impl Trigger {
    /// Returns the trigger for kernels of a device: the GPU of a CUDA stream, or threads of this process
    /// ([`crate::stream::Cpu`]). They release work that the program has prepared and whose ticket it has taken
    /// ([`crate::PreparedSend::into_ticket`]), each ticket in its turn.
    ///
    /// # Errors
    /// [`StreamError`] if the device cannot reach the word: it is in the memory of another GPU, or of a GPU for
    /// threads of the CPU.
    pub fn for_kernels(&self, device: &impl MemOpStream) -> Result<TriggerData, StreamError> {
        Ok(TriggerData { word: address(&self.inner.location(), device)? })
    }
}

impl Collector {
    /// Returns the collector for kernels of a device, which wait for the numbers of [`Collector::collect`].
    ///
    /// # Errors
    /// [`StreamError`] if the device cannot reach the arrival word.
    pub fn for_kernels(&self, device: &impl MemOpStream) -> Result<CollectorData, StreamError> {
        Ok(CollectorData { word: address(&self.inner.location(), device)? })
    }
}

fn address(location: &Location, device: &impl MemOpStream) -> Result<u64, StreamError> {
    if let Some(memory) = location.gpu_memory() {
        device.check_same_gpu(memory)?;
    }
    match location.site() {
        Site::Host(at) => Ok(device.translate(at, size_of::<u64>())?.get()),
        Site::Stream(at) => Ok(at.get()),
    }
}

/// The memory of the indices that the threads of kernels share.
#[derive(Debug)]
pub(super) enum StateMemory {
    /// Memory that every device reaches.
    Pinned(PinnedMemory),
    /// Memory of the GPU that runs the kernels: their atomics do not cross PCIe.
    Gpu(GpuMemory),
}

impl StateMemory {
    pub(super) fn new(memory: Option<&GpuMemory>) -> Result<Self, DeviceQpError> {
        match memory {
            None => Ok(Self::Pinned(PinnedMemory::allocate(STATE_BYTES).map_err(DeviceQpError::Memory)?)),
            Some(memory) if memory.len() < STATE_BYTES => {
                Err(DeviceQpError::StateTooShort { needed: STATE_BYTES, given: memory.len() })
            }
            Some(memory) => Ok(Self::Gpu(memory.clone())),
        }
    }

    pub(super) fn address(&self, device: &impl MemOpStream) -> Result<u64, DeviceQpError> {
        match self {
            StateMemory::Pinned(memory) => Ok(device.translate(memory.addr(), STATE_BYTES)?.get()),
            StateMemory::Gpu(memory) => {
                device.check_same_gpu(memory)?;
                Ok(memory.address())
            }
        }
    }

    /// Writes the initial indices, and zeroes everywhere else.
    pub(super) fn start(&self, progress: &Progress) -> Result<(), DeviceQpError> {
        let zeroes = [0u8; STATE_BYTES];
        match self {
            StateMemory::Pinned(memory) => drop(memory.write(0, &zeroes)),
            StateMemory::Gpu(memory) => memory.write(0, &zeroes)?,
        }
        self.write(progress)
    }

    pub(super) fn write(&self, progress: &Progress) -> Result<(), DeviceQpError> {
        for (at, value) in progress.words() {
            match self {
                // Release: a thread that sees an index also sees what the CPU wrote before.
                StateMemory::Pinned(memory) => memory.words64()[at].store(value, Ordering::Release),
                StateMemory::Gpu(memory) => memory.write(at * 8, &value.to_ne_bytes())?,
            }
        }
        Ok(())
    }

    pub(super) fn read(&self) -> Result<Progress, DeviceQpError> {
        match self {
            // Acquire: the kernels wrote the blocks before the indices.
            StateMemory::Pinned(memory) => {
                Ok(Progress::from_words(|at| memory.words64()[at].load(Ordering::Acquire)))
            }
            StateMemory::Gpu(memory) => {
                let mut bytes = [0u8; STATE_BYTES];
                memory.read(0, &mut bytes)?;
                let word = |at: usize| bytes.chunks_exact(8).nth(at).and_then(|word| word.try_into().ok());
                Ok(Progress::from_words(|at| word(at).map_or(0, u64::from_ne_bytes)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<DeviceQpData>(), align_of::<DeviceQpData>()), (128, 8));
        let offsets = [
            offset_of!(DeviceQpData, send_ring),
            offset_of!(DeviceQpData, send_record),
            offset_of!(DeviceQpData, doorbell),
            offset_of!(DeviceQpData, completion_ring),
            offset_of!(DeviceQpData, completion_record),
            offset_of!(DeviceQpData, state),
            offset_of!(DeviceQpData, send_mask),
            offset_of!(DeviceQpData, completion_mask),
            offset_of!(DeviceQpData, qpn),
            offset_of!(DeviceQpData, limit),
            offset_of!(DeviceQpData, flags),
            offset_of!(DeviceQpData, version),
            offset_of!(DeviceQpData, stall_ns),
            offset_of!(DeviceQpData, reserved),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 68, 72, 80]);
    }

    #[test]
    fn words_go_back_to_where_they_came_from() {
        let progress = Progress { reserved: 1, ready: 2, posted: 3, completed: 4, consumed: 5, error: 6 };
        let mut memory = [0u64; STATE_BYTES / 8];
        for (at, value) in progress.words() {
            memory[at] = value;
        }
        memory[READY] |= RINGING;
        assert_eq!(Progress::from_words(|at| memory[at]), progress);
    }
}

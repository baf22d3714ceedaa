//! Triggers and collectors as kernels take them: `gdsync/device/trigger.cuh`.

use crate::memop::{MemOpStream, Place, Site, StreamError};
use crate::qp::{Collector, Trigger};
use zerocopy::{Immutable, IntoBytes};

/// A trigger as kernels take it, by value or by address: `struct gdsync_trigger` of
/// `gdsync/device/trigger.cuh`.
///
/// Plain data with an address of the device that it was made for. It holds as long as the
/// [`Trigger`] or a clone of it lives. The code that launches kernels (which is `unsafe`) promises
/// that they have ended before the last is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
pub struct TriggerData {
    /// The word: 64 bits, which hold [`Trigger::word_of`] the newest ticket.
    pub word: u64,
}

/// A collector as kernels take it, by value or by address: `struct gdsync_collector` of
/// `gdsync/device/trigger.cuh`.
///
/// As [`TriggerData`], for a [`Collector`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
pub struct CollectorData {
    /// The arrival word: 64 bits, a native number.
    pub word: u64,
}

// SAFETY: a plain integer, in the layout that kernels expect, which a test compares.
unsafe impl cudarc::driver::DeviceRepr for TriggerData {}
// SAFETY: as above.
unsafe impl cudarc::driver::DeviceRepr for CollectorData {}

impl Trigger {
    /// The trigger for kernels of a device: of the GPU of a CUDA stream, or for threads of this
    /// process ([`crate::stream::Cpu`]). They release what the program has prepared and taken the
    /// ticket of ([`crate::PreparedSend::into_ticket`]), each ticket when its turn has come.
    ///
    /// # Errors
    /// [`StreamError`] where the device cannot reach the word: one in the memory of another GPU, or
    /// of a GPU for threads of the CPU.
    pub fn for_kernels(&self, device: &impl MemOpStream) -> Result<TriggerData, StreamError> {
        Ok(TriggerData { word: address(&self.inner.place(), device)? })
    }
}

impl Collector {
    /// The collector for kernels of a device, which wait for the numbers of
    /// [`Collector::collect`].
    ///
    /// # Errors
    /// [`StreamError`] where the device cannot reach the arrival word.
    pub fn for_kernels(&self, device: &impl MemOpStream) -> Result<CollectorData, StreamError> {
        Ok(CollectorData { word: address(&self.inner.place(), device)? })
    }
}

/// The device's address of a word.
fn address(place: &Place, device: &impl MemOpStream) -> Result<u64, StreamError> {
    if let Some(memory) = place.gpu_memory() {
        device.owns(memory)?;
    }
    match place.site() {
        Site::Host(at) => Ok(device.translate(at, size_of::<u64>())?.get()),
        Site::Stream(at) => Ok(at.get()),
    }
}

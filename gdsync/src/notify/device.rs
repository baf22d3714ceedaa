//! Queues and segments in the hands of kernels: `gdsync/device/notify.cuh`.

use super::segment::{RemoteSegment, Segment, SegmentMemory};
use super::{NotifyError, Queue};
use crate::cuda::{GpuContext, GpuMemory, WritesOrdering};
use crate::device::{DeviceQp, DeviceQpData, DeviceQpOptions, STATE_BYTES};
use crate::memop::MemOpStream;
use crate::memory::PinnedMemory;
use crate::stream::DoorbellPath;
use cudarc::driver::CudaContext;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{Immutable, IntoBytes};

/// `GDSYNC_NOTIFY_VERSION`.
const VERSION: u32 = 1;
/// `GDSYNC_SEGMENT_ATOMIC_IN_GPU`.
const ATOMIC_IN_GPU: u32 = 1;

/// A queue as kernels know it: `struct gdsync_queue` of `gdsync/device/notify.cuh`, given to them by value.
///
/// Plain data with an address of the device that the queue was handed over to. It means nothing once the [`DeviceQueue`] that it comes
/// from was dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceQueueData {
    /// [`DeviceQpData`] of each rank, one after the other.
    pub queue_pairs: u64,
    /// Ranks.
    pub size: u32,
    /// This rank.
    pub rank: u32,
    /// Version of the layout.
    pub version: u32,
    /// Zeroes.
    pub zero: u32,
    /// Zeroes.
    pub reserved: u64,
}

// SAFETY: plain integers, in the layout that kernels have of it.
unsafe impl cudarc::driver::DeviceRepr for DeviceQueueData {}

/// A segment as kernels know it: `struct gdsync_segment` of `gdsync/device/notify.cuh`, given to them by value.
///
/// Plain data with addresses of the device that it was described to. It means nothing once the [`DeviceSegment`] that it comes from was
/// dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSegmentData {
    /// `struct gdsync_segment_part` of each rank, one after the other.
    pub parts: u64,
    /// The own data, as kernels name it.
    pub data: u64,
    /// The own notifications, as kernels name them.
    pub words: u64,
    /// The own data, as the card names it.
    pub card_data: u64,
    /// Bytes of the own data.
    pub bytes: u64,
    /// The card's key of the own part.
    pub lkey: u32,
    /// Own notifications.
    pub count: u32,
    /// Ranks.
    pub size: u32,
    /// Version of the layout.
    pub version: u32,
    /// 1 where the own notifications are in host memory, in which atomic operations of the device are one step for its own threads alone
    /// ([`crate::memop::MemOpCaps::host_atomics`]), else 0.
    pub flags: u32,
    /// Zeroes.
    pub reserved: u32,
}

// SAFETY: plain integers, in the layout that kernels have of it.
unsafe impl cudarc::driver::DeviceRepr for DeviceSegmentData {}

/// `struct gdsync_segment_part`.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct Part {
    data: u64,
    bytes: u64,
    words: u64,
    count: u32,
    rkey: u32,
}

/// How a [`Queue`] is handed over to kernels.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceQueueOptions {
    /// How kernels ring the card.
    pub doorbells: DoorbellPath,
    /// How long a thread of a kernel waits for another one that is in the middle of a call, before the queue pair counts as failed.
    pub stall: Duration,
    /// The GPU whose memory the descriptions of the queue pairs, and the indices that threads share, are put into. Without one they are
    /// in pinned memory, and each look at them crosses PCIe.
    pub tables: Option<Arc<CudaContext>>,
}

impl Default for DeviceQueueOptions {
    /// As [`DeviceQpOptions::default`].
    fn default() -> Self {
        let DeviceQpOptions { doorbells, stall, .. } = DeviceQpOptions::default();
        DeviceQueueOptions { doorbells, stall, tables: None }
    }
}

impl DeviceQueueOptions {
    /// Sets [`DeviceQueueOptions::doorbells`](#structfield.doorbells).
    pub fn doorbells(mut self, path: DoorbellPath) -> Self {
        self.doorbells = path;
        self
    }

    /// Sets [`DeviceQueueOptions::stall`](#structfield.stall).
    pub fn stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Sets [`DeviceQueueOptions::tables`](#structfield.tables).
    pub fn tables(mut self, context: &Arc<CudaContext>) -> Self {
        self.tables = Some(context.clone());
        self
    }
}

/// What kernels look things up in.
#[derive(Debug)]
enum Table {
    Pinned(PinnedMemory),
    Gpu(GpuMemory),
}

impl Table {
    fn new(bytes: &[u8], gpu: Option<&Arc<CudaContext>>) -> Result<Self, NotifyError> {
        if let Some(context) = gpu {
            return Ok(Table::Gpu(GpuMemory::holding(&GpuContext::of(context)?, bytes)?));
        }
        let memory = PinnedMemory::allocate(bytes.len()).map_err(NotifyError::Memory)?;
        memory.write(0, bytes);
        Ok(Table::Pinned(memory))
    }

    /// Its address for kernels.
    fn address(&self, device: &impl MemOpStream) -> Result<u64, NotifyError> {
        Ok(match self {
            Table::Pinned(memory) => device.translate(memory.addr(), memory.len())?.get(),
            Table::Gpu(memory) => {
                device.reaches(memory)?;
                memory.address()
            }
        })
    }
}

/// A [`Queue`] that kernels drive: they write and notify through `gdsync/device/notify.cuh`.
///
/// While this lives, writes of the CPU and of streams through the queue are refused ([`StateError::DeviceAttached`](crate::queue::StateError::DeviceAttached)); the other queues
/// of the team are nobody's concern. [`DeviceQueue::detach_device`] ends that. Dropped instead, each queue pair of it is treated as
/// [`DeviceQp`] says.
///
/// # Kernels
/// [`DeviceQueue::data`] is for kernels of the device that the queue was handed to. Who launches them (which is `unsafe`) promises that they
/// have ended before this is dropped.
#[derive(Debug)]
pub struct DeviceQueue {
    queue_pairs: Vec<DeviceQp>,
    data: DeviceQueueData,
    _table: Table,
    queue: Queue,
}

impl Queue {
    /// Hands the queue pairs to all ranks to kernels of a device: of the GPU of a CUDA stream, or to threads of this process
    /// ([`crate::stream::Cpu`]). Flushes first, for as long as [`super::TeamConfig::timeout`] says.
    ///
    /// Each rank does so by itself, when it likes: what the others write here needs nothing of this queue.
    ///
    /// # Errors
    /// As [`Queue::flush`]; [`NotifyError::HandOver`] says what is in the way; [`NotifyError::Unreachable`], [`NotifyError::Memory`],
    /// [`NotifyError::Cuda`]. Nothing is handed over then.
    pub fn attach_device(
        &self,
        device: &impl MemOpStream,
        options: &DeviceQueueOptions,
    ) -> Result<DeviceQueue, NotifyError> {
        let (rank, size) = self.place();
        self.flush(self.timeout())?;
        let hand_over = |rank| {
            let mut of_one = DeviceQpOptions::default().doorbells(options.doorbells).stall(options.stall);
            if let Some(context) = &options.tables {
                of_one = of_one.state(&GpuMemory::allocate(context, STATE_BYTES)?);
            }
            let handed = self.queue_pair(rank)?.attach_device(device, &of_one);
            handed.map_err(|source| NotifyError::HandOver { rank, source })
        };
        // Where one fails, those before it go back: nothing was posted.
        let queue_pairs = (0..size).map(hand_over).collect::<Result<Vec<_>, _>>()?;
        let descriptions: Vec<DeviceQpData> = queue_pairs.iter().map(DeviceQp::data).collect();
        let table = Table::new(descriptions.as_bytes(), options.tables.as_ref())?;
        let data = DeviceQueueData {
            queue_pairs: table.address(device)?,
            size,
            rank,
            version: VERSION,
            zero: 0,
            reserved: 0,
        };
        Ok(DeviceQueue { queue_pairs, data, _table: table, queue: self.clone() })
    }
}

impl DeviceQueue {
    /// What kernels are given.
    pub fn data(&self) -> DeviceQueueData {
        self.data
    }

    /// The queue pair to a rank.
    ///
    /// # Errors
    /// [`NotifyError::Rank`].
    pub fn queue_pair(&self, rank: u32) -> Result<&DeviceQp, NotifyError> {
        let size = self.data.size;
        self.queue_pairs.get(rank as usize).ok_or(NotifyError::Rank { rank, size })
    }

    /// Takes the queue back from kernels, all of which have ended: waits until everything that they have posted has completed, to all
    /// ranks, and lets the CPU and streams go on. A failure that kernels met is told by what uses the queue next, as
    /// [`NotifyError::PeerDead`] or [`NotifyError::Failed`]; this is no error of taking it back. Calling it again does nothing.
    ///
    /// # Errors
    /// [`NotifyError::HandOver`], of the first rank that cannot be taken back. The others are, and it can be tried again.
    pub fn detach_device(&self, timeout: Duration) -> Result<&Queue, NotifyError> {
        let started = Instant::now();
        let mut result = Ok(&self.queue);
        for (rank, queue_pair) in (0..).zip(&self.queue_pairs) {
            let taken = queue_pair.detach_device(timeout.saturating_sub(started.elapsed()));
            if let Err(source) = taken {
                result = result.and(Err(NotifyError::HandOver { rank, source }));
            }
        }
        result
    }
}

/// A [`Segment`] as kernels of a device know it. It may be described to several.
///
/// # Kernels
/// [`DeviceSegment::data`] is for kernels of the device that it was described to. Who launches them (which is `unsafe`) promises that they
/// have ended before this is dropped.
#[derive(Debug)]
pub struct DeviceSegment {
    data: DeviceSegmentData,
    _table: Table,
    /// Keeps the registration.
    _segment: Segment,
}

impl DeviceSegment {
    /// What kernels are given.
    pub fn data(&self) -> DeviceSegmentData {
        self.data
    }
}

impl Segment {
    /// Describes the segment to kernels of a device: of the GPU of a CUDA stream, or to threads of this process ([`crate::stream::Cpu`]). What
    /// kernels look up of the other ranks is put into the memory of the GPU `tables`, else into pinned memory, which they reach over PCIe.
    ///
    /// # Errors
    /// [`NotifyError::Unreachable`] where the device cannot reach the part here; [`NotifyError::Consistency`] where that is memory of a GPU
    /// that keeps no order for running kernels; [`NotifyError::Memory`], [`NotifyError::Cuda`].
    pub fn describe_to_device(
        &self,
        device: &impl MemOpStream,
        tables: Option<&Arc<CudaContext>>,
    ) -> Result<DeviceSegment, NotifyError> {
        // A kernel of the GPU that owns the memory is all that the order has to hold for.
        self.check_order(|gpu| gpu.writes_ordering != WritesOrdering::None)?;
        let parts: Vec<Part> = self.remotes().iter().map(Part::of).collect();
        let table = Table::new(parts.as_bytes(), tables)?;
        let (address, lkey, is_atomic) = match self.memory() {
            SegmentMemory::Host(region) => {
                let memory = region.memory();
                let address = device.translate(memory.addr(), memory.len())?.get();
                (address, region.lkey(), device.caps().host_atomics)
            }
            SegmentMemory::Gpu(region) => {
                device.reaches(region.memory())?;
                (region.memory().address(), region.lkey(), true)
            }
        };
        let own = self.remote(self.rank())?;
        let data = DeviceSegmentData {
            parts: table.address(device)?,
            data: address,
            words: address + (own.notifications.addr - own.data.addr),
            card_data: own.data.addr,
            bytes: own.data.len,
            lkey,
            count: self.notifications(),
            size: parts.len() as u32,
            version: VERSION,
            flags: if is_atomic { 0 } else { ATOMIC_IN_GPU },
            reserved: 0,
        };
        Ok(DeviceSegment { data, _table: table, _segment: self.clone() })
    }
}

impl Part {
    fn of(remote: &RemoteSegment) -> Self {
        let RemoteSegment { data, notifications } = remote;
        Part {
            data: data.addr,
            bytes: data.len,
            words: notifications.addr,
            count: (notifications.len / size_of::<u32>() as u64) as u32,
            rkey: data.rkey,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_that_of_the_header() {
        assert_eq!((size_of::<DeviceQueueData>(), align_of::<DeviceQueueData>()), (32, 8));
        let offsets = [
            offset_of!(DeviceQueueData, queue_pairs),
            offset_of!(DeviceQueueData, size),
            offset_of!(DeviceQueueData, rank),
            offset_of!(DeviceQueueData, version),
            offset_of!(DeviceQueueData, reserved),
        ];
        assert_eq!(offsets, [0, 8, 12, 16, 24]);
        assert_eq!((size_of::<Part>(), align_of::<Part>()), (32, 8));
        let offsets = [
            offset_of!(Part, data),
            offset_of!(Part, bytes),
            offset_of!(Part, words),
            offset_of!(Part, count),
            offset_of!(Part, rkey),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 28]);
        assert_eq!((size_of::<DeviceSegmentData>(), align_of::<DeviceSegmentData>()), (64, 8));
        let offsets = [
            offset_of!(DeviceSegmentData, parts),
            offset_of!(DeviceSegmentData, data),
            offset_of!(DeviceSegmentData, words),
            offset_of!(DeviceSegmentData, card_data),
            offset_of!(DeviceSegmentData, bytes),
            offset_of!(DeviceSegmentData, lkey),
            offset_of!(DeviceSegmentData, count),
            offset_of!(DeviceSegmentData, size),
            offset_of!(DeviceSegmentData, version),
            offset_of!(DeviceSegmentData, flags),
            offset_of!(DeviceSegmentData, reserved),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 44, 48, 52, 56, 60]);
    }
}

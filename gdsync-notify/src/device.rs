//! Queues and segments for kernels: `gdsync/device/notify.cuh`.

use crate::config::setters;
use crate::connections::Connections;
use crate::error::NotifyError;
use crate::liveness::RankState;
use crate::memory::RemoteSegment;
use crate::memory::SegmentMemory;
use crate::queue::Queue;
use crate::segment::Segment;
use gdsync::PinnedMemory;
use gdsync::cuda::{GpuMemory, WritesOrdering};
use gdsync::cudarc::driver::{CudaContext, DeviceRepr};
use gdsync::device::{DeviceQp, DeviceQpData, DeviceQpOptions, STATE_BYTES};
use gdsync::memop::MemOpStream;
use gdsync::stream::DoorbellPath;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{Immutable, IntoBytes};

/// `GDSYNC_NOTIFY_VERSION`.
const VERSION: u32 = 1;
/// `GDSYNC_QUEUE_OUT_OF_ORDER`.
const OUT_OF_ORDER: u64 = 1;
/// `GDSYNC_SEGMENT_ATOMIC_IN_GPU`.
const ATOMIC_IN_GPU: u32 = 1;

/// A queue, passed to kernels by value: `struct gdsync_queue` of `gdsync/device/notify.cuh`.
///
/// Plain data with an address of the attached device, valid until its [`DeviceQueue`] is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceQueueData {
    /// The array of each rank's [`DeviceQpData`].
    pub queue_pairs: u64,
    /// The number of ranks.
    pub size: u32,
    /// This rank.
    pub rank: u32,
    /// The layout's version.
    pub version: u32,
    /// Zeroes.
    pub zero: u32,
    /// 1 if the queue pairs place messages out of order, so that notifications wait for the writes before them, else 0.
    pub flags: u64,
}

// SAFETY: plain integers, in the layout of the device header.
unsafe impl DeviceRepr for DeviceQueueData {}

/// A segment, passed to kernels by value: `struct gdsync_segment` of `gdsync/device/notify.cuh`.
///
/// Plain data with addresses of the device, valid until its [`DeviceSegment`] is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSegmentData {
    /// The array of each rank's `struct gdsync_segment_part`.
    pub parts: u64,
    /// The address of this rank's data for kernels.
    pub data: u64,
    /// The address of this rank's notifications for kernels.
    pub words: u64,
    /// The address of this rank's data for the card.
    pub card_data: u64,
    /// Bytes of this rank's data.
    pub bytes: u64,
    /// The lkey of this rank's part.
    pub lkey: u32,
    /// The number of this rank's notifications.
    pub count: u32,
    /// The number of ranks.
    pub size: u32,
    /// The layout's version.
    pub version: u32,
    /// 1 if this rank's notifications are in host memory where an atomic operation of the device is a single step for
    /// the device's own threads only ([`gdsync::memop::MemOpCaps::host_atomics`]), else 0.
    pub flags: u32,
    /// 1: `struct gdsync_segment_watch` follows the parts.
    pub watched: u32,
}

// SAFETY: plain integers, in the layout of the device header.
unsafe impl DeviceRepr for DeviceSegmentData {}

/// `struct gdsync_segment_part`.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct SegmentPart {
    data: u64,
    bytes: u64,
    words: u64,
    count: u32,
    rkey: u32,
}

/// `struct gdsync_segment_watch`, of the size of a part, behind the last part.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct SegmentWatch {
    /// The address of this rank's notification statuses for kernels.
    statuses: u64,
    reserved: [u64; 3],
}

/// Options of an attached [`Queue`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceQueueOptions {
    /// How kernels ring doorbells.
    pub doorbells: DoorbellPath,
    /// How long a thread of a kernel waits for another thread in the middle of a call before the queue pair counts as
    /// failed.
    pub stall: Duration,
    /// The GPU whose memory holds the descriptions of the queue pairs and the indices that threads share. By default
    /// they are in pinned memory, and each access of a kernel crosses PCIe.
    pub tables: Option<Arc<CudaContext>>,
}

impl Default for DeviceQueueOptions {
    fn default() -> Self {
        let DeviceQpOptions { doorbells, stall, .. } = DeviceQpOptions::default();
        DeviceQueueOptions { doorbells, stall, tables: None }
    }
}

setters!(DeviceQueueOptions: doorbells: DoorbellPath, stall: Duration);

impl DeviceQueueOptions {
    /// Sets [`Self::tables`](#structfield.tables).
    pub fn tables(mut self, context: &Arc<CudaContext>) -> Self {
        self.tables = Some(context.clone());
        self
    }
}

#[derive(Debug)]
enum Table {
    Pinned(PinnedMemory),
    Gpu(GpuMemory),
}

impl Table {
    fn new(bytes: &[u8], gpu: Option<&Arc<CudaContext>>) -> Result<Self, NotifyError> {
        if let Some(context) = gpu {
            let memory = GpuMemory::allocate(context, bytes.len())?;
            memory.write(0, bytes)?;
            return Ok(Table::Gpu(memory));
        }
        let memory = PinnedMemory::allocate(bytes.len()).map_err(NotifyError::Memory)?;
        memory.write(0, bytes);
        Ok(Table::Pinned(memory))
    }

    fn address(&self, device: &impl MemOpStream) -> Result<u64, NotifyError> {
        Ok(match self {
            Table::Pinned(memory) => device.translate(memory.addr(), memory.len())?.get(),
            Table::Gpu(memory) => {
                device.check_same_gpu(memory)?;
                memory.address()
            }
        })
    }
}

/// A [`Queue`] that kernels drive through `gdsync/device/notify.cuh`.
///
/// While this exists, requests of the CPU and of streams through the queue are refused
/// ([`StateError::DeviceAttached`](gdsync::queue::StateError::DeviceAttached)); the team's other queues are not
/// affected. [`DeviceQueue::detach_device`] ends that. If this is dropped instead, each of its queue pairs is treated
/// as [`DeviceQp`] describes.
///
/// # Kernels
/// [`DeviceQueue::data`] is for kernels of the attached device. A caller that launches them (which is `unsafe`)
/// promises that they have ended before this is dropped.
#[derive(Debug)]
pub struct DeviceQueue {
    /// `None` for dropped ranks.
    queue_pairs: Vec<Option<DeviceQp>>,
    data: DeviceQueueData,
    _table: Table,
    queue: Queue,
}

impl Queue {
    /// Attaches the queue pairs to all ranks to a device: the GPU of a CUDA stream, or threads of this process
    /// ([`gdsync::stream::Cpu`]). Flushes first, for up to [`TeamConfig::timeout`](crate::TeamConfig::timeout).
    ///
    /// Attaching concerns this rank alone: other ranks' writes to it do not use this queue.
    ///
    /// # Errors
    /// As [`Queue::flush`]; [`NotifyError::AttachOrDetach`] with the reason; [`NotifyError::Unreachable`],
    /// [`NotifyError::Memory`], [`NotifyError::Cuda`]. After an error nothing is attached.
    pub fn attach_device(
        &self,
        device: &impl MemOpStream,
        options: &DeviceQueueOptions,
    ) -> Result<DeviceQueue, NotifyError> {
        let Connections { rank, size, timeout, .. } = *self.team;
        let is_out_of_order = self.team.places_out_of_order();
        if is_out_of_order && self.team.options.max_reads == 0 {
            return Err(NotifyError::NoReads);
        }
        self.flush(timeout)?;
        let attach = |rank| {
            if matches!(self.team.liveness.state(rank), RankState::Dropped(_)) {
                return Ok(None);
            }
            let mut of_one = DeviceQpOptions::default().doorbells(options.doorbells).stall(options.stall);
            if let Some(context) = &options.tables {
                of_one = of_one.state(&GpuMemory::allocate(context, STATE_BYTES)?);
            }
            let attached = self.queue_pair(rank)?.attach_device(device, &of_one);
            attached.map(Some).map_err(|source| NotifyError::AttachOrDetach { rank, source })
        };
        // If one fails, dropping the earlier ones detaches them: nothing was posted.
        let queue_pairs = (0..size).map(attach).collect::<Result<Vec<_>, _>>()?;
        // Zeroes for dropped ranks: kernels refuse that version.
        let none = [0; size_of::<DeviceQpData>()];
        let descriptions: Vec<u8> = queue_pairs
            .iter()
            .flat_map(|one| one.as_ref().map_or(none, |one| zerocopy::transmute!(one.data())))
            .collect();
        let table = Table::new(&descriptions, options.tables.as_ref())?;
        let data = DeviceQueueData {
            queue_pairs: table.address(device)?,
            size,
            rank,
            version: VERSION,
            zero: 0,
            flags: if is_out_of_order { OUT_OF_ORDER } else { 0 },
        };
        Ok(DeviceQueue { queue_pairs, data, _table: table, queue: self.clone() })
    }
}

impl DeviceQueue {
    /// The kernels' argument.
    pub fn data(&self) -> DeviceQueueData {
        self.data
    }

    /// Returns the queue pair to a rank.
    ///
    /// # Errors
    /// [`NotifyError::Rank`]; [`NotifyError::PeerDead`] for a dropped rank.
    pub fn queue_pair(&self, rank: u32) -> Result<&DeviceQp, NotifyError> {
        let size = self.data.size;
        match self.queue_pairs.get(rank as usize) {
            Some(Some(queue_pair)) => Ok(queue_pair),
            Some(None) => {
                self.queue.team.liveness.check_alive(rank).and(Err(NotifyError::Rank { rank, size }))
            }
            None => Err(NotifyError::Rank { rank, size }),
        }
    }

    /// Detaches the queue from the device, all of whose kernels have ended: waits until all their posts, to all ranks, have
    /// completed. The CPU and streams may then post again. A failure that kernels met is no error of this call; the next
    /// use of the queue reports it, as [`NotifyError::PeerDead`] or [`NotifyError::Failed`]. A second call does nothing.
    ///
    /// # Errors
    /// [`NotifyError::AttachOrDetach`] for the first rank that cannot be detached. The others are, and the caller may retry.
    pub fn detach_device(&self, timeout: Duration) -> Result<&Queue, NotifyError> {
        let started = Instant::now();
        let mut result = Ok(&self.queue);
        for (rank, queue_pair) in (0..).zip(&self.queue_pairs) {
            let Some(queue_pair) = queue_pair else { continue };
            let detached = queue_pair.detach_device(timeout.saturating_sub(started.elapsed()));
            if let Err(source) = detached {
                result = result.and(Err(NotifyError::AttachOrDetach { rank, source }));
            }
        }
        result
    }
}

/// A [`Segment`] described to a device's kernels. A segment may be described to several devices.
///
/// # Kernels
/// [`DeviceSegment::data`] is for kernels of that device. A caller that launches them (which is `unsafe`) promises that
/// they have ended before this is dropped.
#[derive(Debug)]
pub struct DeviceSegment {
    data: DeviceSegmentData,
    _table: Table,
    /// Kernels that wait are waiters of the segment.
    _waiter: Arc<()>,
    _segment: Segment,
}

impl DeviceSegment {
    /// The kernels' argument.
    pub fn data(&self) -> DeviceSegmentData {
        self.data
    }
}

impl Segment {
    /// Describes the segment to kernels of a device: the GPU of a CUDA stream, or threads of this process
    /// ([`gdsync::stream::Cpu`]). The table of the other ranks' parts is in the memory of the GPU `tables`, or, without
    /// one, in pinned memory, which kernels reach over PCIe.
    ///
    /// # Errors
    /// [`NotifyError::Unreachable`] if the device cannot reach this rank's part; [`NotifyError::Consistency`] if that is
    /// memory of a GPU without ordering for running kernels; [`NotifyError::TwoKeys`] if a rank has registered memory with
    /// notifications ([`Team::register`](crate::Team::register)); [`NotifyError::Memory`], [`NotifyError::Cuda`].
    pub fn describe_to_device(
        &self,
        device: &impl MemOpStream,
        tables: Option<&Arc<CudaContext>>,
    ) -> Result<DeviceSegment, NotifyError> {
        // Only kernels of the GPU that owns the memory read it, so ordering for the owner suffices.
        self.check_order(|gpu| gpu.writes_ordering != WritesOrdering::None)?;
        let remotes = self.shared().remotes();
        let with_two_keys = (0..).zip(&remotes).find(|(_, one)| one.is_some_and(|one| one.has_two_keys()));
        if let Some((rank, _)) = with_two_keys {
            return Err(NotifyError::TwoKeys { rank });
        }
        let parts: Vec<SegmentPart> =
            remotes.iter().map(|one| one.as_ref().map_or(SegmentPart::NONE, SegmentPart::of)).collect();
        let waiter = self.shared().waiter()?;
        let statuses = self.shared().notifications.statuses();
        let statuses = device.translate(statuses.addr(), statuses.len())?.get();
        let watch = SegmentWatch { statuses, reserved: [0; 3] };
        let table = Table::new(&[parts.as_bytes(), watch.as_bytes()].concat(), tables)?;
        let (address, lkey, is_atomic) = match self.memory() {
            SegmentMemory::Host(region) => {
                let memory = region.memory();
                let address = device.translate(memory.addr(), memory.len())?.get();
                (address, region.lkey(), device.caps().host_atomics)
            }
            SegmentMemory::Gpu(region) => {
                device.check_same_gpu(region.memory())?;
                (region.memory().address(), region.lkey(), true)
            }
        };
        let own = self.remote(self.rank())?;
        let data = DeviceSegmentData {
            parts: table.address(device)?,
            data: address,
            // Registered memory has no notifications here; otherwise both have the same base.
            words: address.wrapping_add(own.notifications.addr.wrapping_sub(own.data.addr)),
            card_data: own.data.addr,
            bytes: own.data.len,
            lkey,
            count: self.notifications(),
            size: parts.len() as u32,
            version: VERSION,
            flags: if is_atomic { 0 } else { ATOMIC_IN_GPU },
            watched: 1,
        };
        Ok(DeviceSegment { data, _table: table, _waiter: waiter, _segment: self.clone() })
    }
}

impl SegmentPart {
    /// The part of a dropped rank.
    const NONE: SegmentPart = SegmentPart { data: 0, bytes: 0, words: 0, count: 0, rkey: 0 };

    fn of(remote: &RemoteSegment) -> Self {
        let RemoteSegment { data, notifications } = remote;
        SegmentPart {
            data: data.addr,
            bytes: data.len,
            words: notifications.addr,
            count: remote.count(),
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
            offset_of!(DeviceQueueData, flags),
        ];
        assert_eq!(offsets, [0, 8, 12, 16, 24]);
        assert_eq!((size_of::<SegmentPart>(), align_of::<SegmentPart>()), (32, 8));
        let offsets = [
            offset_of!(SegmentPart, data),
            offset_of!(SegmentPart, bytes),
            offset_of!(SegmentPart, words),
            offset_of!(SegmentPart, count),
            offset_of!(SegmentPart, rkey),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 28]);
        assert_eq!((size_of::<SegmentWatch>(), align_of::<SegmentWatch>()), (32, 8));
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
            offset_of!(DeviceSegmentData, watched),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 44, 48, 52, 56, 60]);
    }
}

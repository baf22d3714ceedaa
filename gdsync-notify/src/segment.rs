//! Memory that other ranks write into, with notifications.

use crate::error::NotifyError;
use crate::layout::{RemoteSegment, WORD, total, words_at};
use crate::word::{NotificationWord, Taker};
use gdsync::cuda::{self, Consistency, GpuCapabilities, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::{GpuWord32, Word32};
use gdsync::verbs::{GpuMemoryRegion, Provider};
use gdsync::{Access, MemoryRegion, ProtectionDomain, RemoteMemory, Slice};
use gdsync_sys::pause::Pause;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Memory of which every rank of a [`Team`](crate::Team) has a part, with notifications: 32-bit
/// words, whose value 0 means "not set". A cheap handle.
///
/// The notifications lie behind the data, in the same memory: a card writes to one memory in order,
/// and nothing orders its writes to a GPU's memory with those to the host's.
///
/// ```
/// use gdsync::{Device, ProtectionDomain};
/// use gdsync_notify::bootstrap::Bootstrap;
/// use gdsync_notify::{NotifyError, Team, TeamConfig};
/// use std::time::Duration;
///
/// const LONG: Duration = Duration::from_secs(30);
///
/// fn rank(bootstrap: Bootstrap) -> Result<(), NotifyError> {
///     let pd = ProtectionDomain::new(&Device::software()?)?;
///     let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
///     // 32 bytes here; the parts may differ in length. Rank 0 fills the last 8 bytes of both.
///     let segment = team.allocate(32, 4)?;
///     if team.rank() == 0 {
///         segment.write(0, b"8 bytes.")?;
///         for rank in 0..2 {
///             team.queue(0)?.write_notify(&segment.slice(..8)?, rank, &segment, 24, 3, 1)?;
///         }
///         team.queue(0)?.flush(LONG)?;
///     }
///     assert_eq!(segment.notify_waitsome(0..4, LONG)?, Some(3));
///     assert_eq!((segment.notify_reset(3)?, segment.notify_reset(3)?), (1, 0));
///     let mut found = [0; 8];
///     segment.read(24, &mut found)?;
///     assert_eq!(&found, b"8 bytes.");
///     team.barrier()
/// }
///
/// # fn main() -> Result<(), NotifyError> {
/// std::thread::scope(|scope| {
///     let ranks = Bootstrap::threads(2, LONG)?;
///     let threads: Vec<_> = ranks.into_iter().map(|one| scope.spawn(|| rank(one))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Segment {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    own: OwnPart,
    remotes: Vec<RemoteSegment>,
}

/// The part of this rank.
#[derive(Debug)]
pub(crate) struct OwnPart {
    rank: u32,
    memory: SegmentMemory,
    len: usize,
    notifications: u32,
    /// The card is no software card. It promises an order of its writes into GPU memory to the
    /// GPU's streams only.
    is_real: bool,
    /// The GPU of [`SegmentMemory::Gpu`].
    gpu: Option<Gpu>,
}

#[derive(Debug)]
struct Gpu {
    number: i32,
    capabilities: GpuCapabilities,
    taker: Taker,
}

/// This rank's memory of a [`Segment`]: data, and behind them notifications.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SegmentMemory {
    /// In host memory.
    Host(MemoryRegion),
    /// In GPU memory.
    Gpu(GpuMemoryRegion),
}

impl OwnPart {
    pub(crate) fn host(
        pd: &ProtectionDomain,
        rank: u32,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let region = MemoryRegion::allocate(pd, total(len, notifications)?, ACCESS)?;
        Ok(Self::new(pd, rank, SegmentMemory::Host(region), len, notifications, None))
    }

    pub(crate) fn gpu(
        pd: &ProtectionDomain,
        rank: u32,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let (number, capabilities) = (context.cu_device(), cuda::capabilities(context)?);
        let gpu = Gpu { number, capabilities, taker: Taker::new(context)? };
        let memory = GpuMemory::allocate(context, total(len, notifications)?)?;
        let region = GpuMemoryRegion::register(pd, memory, ACCESS)?;
        Ok(Self::new(pd, rank, SegmentMemory::Gpu(region), len, notifications, Some(gpu)))
    }

    fn new(
        pd: &ProtectionDomain,
        rank: u32,
        memory: SegmentMemory,
        len: usize,
        notifications: u32,
        gpu: Option<Gpu>,
    ) -> Self {
        let is_real = pd.device().provider() != Provider::Software;
        OwnPart { rank, memory, len, notifications, is_real, gpu }
    }

    /// The line that the other ranks get.
    pub(crate) fn describe(&self) -> String {
        let whole = match &self.memory {
            SegmentMemory::Host(region) => region.remote(),
            SegmentMemory::Gpu(region) => region.remote(),
        };
        RemoteSegment::describe(whole, self.len, self.notifications)
    }
}

impl Segment {
    /// From the own part, and the descriptions of all parts.
    pub(crate) fn new(own: OwnPart, texts: &[String]) -> Result<Self, NotifyError> {
        let remotes = texts.iter().map(|text| RemoteSegment::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Segment { inner: Arc::new(Inner { own, remotes }) })
    }

    /// Bytes of data of this rank; other ranks may have more or fewer.
    pub fn len(&self) -> usize {
        self.inner.own.len
    }

    /// True if this rank has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notifications of this rank, numbered from 0.
    pub fn notifications(&self) -> u32 {
        self.inner.own.notifications
    }

    /// The memory of this rank.
    pub fn memory(&self) -> &SegmentMemory {
        &self.inner.own.memory
    }

    /// Where the part of a rank is, as plain data.
    ///
    /// # Errors
    /// [`NotifyError::Rank`].
    pub fn remote(&self, rank: u32) -> Result<RemoteSegment, NotifyError> {
        let size = self.inner.remotes.len() as u32;
        self.inner.remotes.get(rank as usize).copied().ok_or(NotifyError::Rank { rank, size })
    }

    pub(crate) fn rank(&self) -> u32 {
        self.inner.own.rank
    }

    pub(crate) fn remotes(&self) -> &[RemoteSegment] {
        &self.inner.remotes
    }

    /// A slice of this rank's data, to be written from: `segment.slice(..)`,
    /// `segment.slice(16..32)`.
    ///
    /// # Errors
    /// [`NotifyError::Local`] if the range leaves the data.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, NotifyError> {
        // The region holds the notifications, too: the range is checked against the data alone.
        let part = RemoteMemory { addr: 0, len: self.len() as u64, rkey: 0 }.slice(range)?;
        let range = part.addr as usize..(part.addr + part.len) as usize;
        Ok(match self.memory() {
            SegmentMemory::Host(region) => region.slice(range)?,
            SegmentMemory::Gpu(region) => region.slice(range)?,
        })
    }

    /// Copies this rank's data out, from a byte offset on. Not in the order of any stream.
    ///
    /// # Errors
    /// [`NotifyError::OutOfSegment`], [`NotifyError::Cuda`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), NotifyError> {
        self.check_own(offset, into.len())?;
        match self.memory() {
            SegmentMemory::Host(region) => _ = region.read(offset, into),
            SegmentMemory::Gpu(region) => region.memory().read(offset, into)?,
        }
        Ok(())
    }

    /// Copies bytes into this rank's data, from a byte offset on. Not in the order of any stream.
    ///
    /// # Errors
    /// [`NotifyError::OutOfSegment`], [`NotifyError::Cuda`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), NotifyError> {
        self.check_own(offset, from.len())?;
        match self.memory() {
            SegmentMemory::Host(region) => _ = region.write(offset, from),
            SegmentMemory::Gpu(region) => region.memory().write(offset, from)?,
        }
        Ok(())
    }

    fn check_own(&self, offset: usize, len: usize) -> Result<(), NotifyError> {
        check_part(self.rank(), offset as u64, len as u64, self.len() as u64)
    }

    /// A notification of this rank, for a stream to wait for
    /// ([`WaitNotification::wait_notification`](crate::WaitNotification::wait_notification)).
    ///
    /// # Errors
    /// [`NotifyError::Notification`].
    pub fn notification(&self, id: u32) -> Result<NotificationWord, NotifyError> {
        let (rank, count) = (self.rank(), self.notifications());
        if id >= count {
            return Err(NotifyError::Notification { rank, id, count });
        }
        let offset = words_at(self.len()) + id as usize * WORD;
        Ok(match self.memory() {
            SegmentMemory::Host(region) => NotificationWord::Host(Word32::new(region, offset)?),
            SegmentMemory::Gpu(region) => NotificationWord::Gpu(GpuWord32::new(region.memory(), offset)?),
        })
    }

    /// Waits until one of the notifications of a range is set, and returns the lowest such number;
    /// `None` after `timeout`. With a timeout of 0 it looks once. A caller that gets a number sees
    /// what was written before that notification, which stays set until [`Self::notify_reset`].
    ///
    /// In GPU memory each look is a copy by the driver, which takes some microseconds.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] for a range that ends behind the notifications,
    /// [`NotifyError::Cuda`], [`NotifyError::Consistency`].
    pub fn notify_waitsome(&self, ids: Range<u32>, timeout: Duration) -> Result<Option<u32>, NotifyError> {
        let (rank, count) = (self.rank(), self.notifications());
        if ids.end > count {
            return Err(NotifyError::Notification { rank, id: ids.end - 1, count });
        }
        let mut pause = Pause::new();
        loop {
            let found = self.first_of(ids.clone())?;
            if found.is_some() || ids.is_empty() || pause.elapsed() >= timeout {
                return Ok(found);
            }
            pause.pause();
        }
    }

    /// Refuses a reader that could see a notification without its data: `is_ordered` says whether
    /// the GPU that has the segment shows that reader a real card's writes in order.
    pub(crate) fn check_order(
        &self,
        is_ordered: impl Fn(GpuCapabilities) -> bool,
    ) -> Result<(), NotifyError> {
        let OwnPart { gpu, is_real, .. } = &self.inner.own;
        match gpu {
            // The software card finishes each copy before it begins the next.
            Some(gpu) if *is_real && !is_ordered(gpu.capabilities) => {
                Err(NotifyError::Consistency { gpu: gpu.number })
            }
            _ => Ok(()),
        }
    }

    fn first_of(&self, ids: Range<u32>) -> Result<Option<u32>, NotifyError> {
        let first = words_at(self.len()) / WORD;
        match self.memory() {
            SegmentMemory::Host(region) => {
                let words = &region.words32()[first..];
                let is_set = |id: &u32| {
                    // Acquire: pairs with the card's write of the word, which follows its writes of
                    // the data.
                    words.get(*id as usize).is_some_and(|word| word.load(Ordering::Acquire) != 0)
                };
                Ok(ids.into_iter().find(is_set))
            }
            SegmentMemory::Gpu(region) => {
                self.check_order(|gpu| gpu.consistency() == Consistency::Ordered)?;
                let mut bytes = vec![0; ids.len() * WORD];
                region.memory().read((first + ids.start as usize) * WORD, &mut bytes)?;
                let mut words = bytes.chunks_exact(WORD);
                Ok(words.position(|word| word.iter().any(|byte| *byte != 0)).map(|i| ids.start + i as u32))
            }
        }
    }

    /// Clears a notification and returns its old value, 0 if it was not set. This is one step: of
    /// two callers one gets the value, and a notification that arrives meanwhile is either returned
    /// or stays set.
    ///
    /// In GPU memory this launches a kernel on a stream of its own, and waits for it.
    ///
    /// # Errors
    /// [`NotifyError::Notification`], [`NotifyError::Cuda`].
    pub fn notify_reset(&self, id: u32) -> Result<u32, NotifyError> {
        match (self.notification(id)?, &self.inner.own.gpu) {
            (NotificationWord::Gpu(word), Some(gpu)) => Ok(gpu.taker.take(&word)?),
            (NotificationWord::Gpu(word), None) => Ok(word.load()?),
            (NotificationWord::Host(word), _) => Ok(word.swap(0)),
        }
    }

    /// The target of a write into a rank's part.
    pub(crate) fn part_of(&self, rank: u32, offset: u64, len: u64) -> Result<RemoteMemory, NotifyError> {
        let RemoteSegment { data, .. } = self.remote(rank)?;
        check_part(rank, offset, len, data.len)?;
        Ok(RemoteMemory { addr: data.addr.wrapping_add(offset), len, rkey: data.rkey })
    }

    /// The target of a notification of a rank's part.
    pub(crate) fn notification_of(
        &self,
        rank: u32,
        id: u32,
        value: u32,
    ) -> Result<RemoteMemory, NotifyError> {
        let RemoteSegment { notifications, .. } = self.remote(rank)?;
        let count = (notifications.len / WORD as u64) as u32;
        if id >= count {
            return Err(NotifyError::Notification { rank, id, count });
        }
        if value == 0 {
            return Err(NotifyError::ZeroValue { id });
        }
        let addr = notifications.addr.wrapping_add(u64::from(id) * WORD as u64);
        Ok(RemoteMemory { addr, len: WORD as u64, rkey: notifications.rkey })
    }
}

fn check_part(rank: u32, offset: u64, len: u64, size: u64) -> Result<(), NotifyError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(NotifyError::OutOfSegment { rank, offset, len, size }),
    }
}

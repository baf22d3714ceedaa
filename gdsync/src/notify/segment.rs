//! Memory that other ranks write into, with notifications.

use super::NotifyError;
use super::word::{NotificationWord, Taker};
use crate::cuda::{Consistency, GpuCapabilities, GpuMemory};
use crate::memop::{GpuWord32, Word32};
use crate::memory::OutOfBounds;
use crate::queue::error::QueueError;
use crate::util::pause::Pause;
use crate::verbs::gpu_mr::GpuMemoryRegion;
use crate::verbs::mr::{Access, MemoryRegion, RemoteMemory, Slice};
use crate::verbs::pd::ProtectionDomain;
use cudarc::driver::CudaContext;
use gdsync_sys::api::Provider;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Notifications begin at a multiple of this, so that no cache line holds data and one of them.
const ALIGNMENT: usize = 64;
/// Bytes of a notification.
const WORD: usize = size_of::<u32>();

/// Memory that every rank of a [`super::Team`] has a part of, and notifications: words of 32 bits, 0 where there is none. A cheap handle.
///
/// The notifications lie behind the data, in the same memory: a card writes to one memory in order, and nothing orders its writes to a
/// GPU's with those to the host's.
#[derive(Clone, Debug)]
pub struct Segment {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    rank: u32,
    memory: SegmentMemory,
    len: usize,
    notifications: u32,
    remotes: Vec<RemoteSegment>,
    /// The card is a real one, which only promises an order to a GPU's streams.
    real: bool,
    taker: Option<Taker>,
}

/// The memory of a [`Segment`] here: data, and behind it notifications.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SegmentMemory {
    /// In host memory.
    Host(MemoryRegion),
    /// In GPU memory.
    Gpu(GpuMemoryRegion),
}

/// Where the part of a rank is, for who writes to it without this library's calls, such as a kernel: plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The data.
    pub data: RemoteMemory,
    /// The notifications: 32-bit words in the order of that rank's host, by their number.
    pub notifications: RemoteMemory,
}

impl Segment {
    pub(super) fn host(
        pd: &ProtectionDomain,
        rank: u32,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let region = MemoryRegion::allocate(pd, total(len, notifications)?, access())?;
        Ok(Self::new(pd, rank, SegmentMemory::Host(region), len, notifications, None))
    }

    pub(super) fn gpu(
        pd: &ProtectionDomain,
        rank: u32,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Self, NotifyError> {
        let taker = Taker::new(context)?;
        let memory = GpuMemory::allocate(context, total(len, notifications)?)?;
        let region = GpuMemoryRegion::register(pd, memory, access())?;
        Ok(Self::new(pd, rank, SegmentMemory::Gpu(region), len, notifications, Some(taker)))
    }

    fn new(
        pd: &ProtectionDomain,
        rank: u32,
        memory: SegmentMemory,
        len: usize,
        notifications: u32,
        taker: Option<Taker>,
    ) -> Self {
        let real = pd.inner.device.api.provider != Provider::Software;
        let inner = Inner { rank, memory, len, notifications, remotes: Vec::new(), real, taker };
        Segment { inner: Arc::new(inner) }
    }

    /// What the other ranks are told.
    pub(super) fn describe(&self) -> String {
        let Inner { memory, len, notifications, .. } = &*self.inner;
        let whole = match memory {
            SegmentMemory::Host(region) => region.remote(),
            SegmentMemory::Gpu(region) => region.remote(),
        };
        format!("{whole} {len} {notifications}")
    }

    /// With what the other ranks told.
    pub(super) fn with_remotes(self, texts: &[String]) -> Result<Self, NotifyError> {
        let remotes = texts.iter().map(|text| parse_remote(text)).collect::<Result<Vec<_>, _>>()?;
        let Segment { inner } = self;
        // Nobody has another handle yet.
        let Ok(inner) = Arc::try_unwrap(inner) else {
            return Err(bad_description("a segment in use").into());
        };
        Ok(Segment { inner: Arc::new(Inner { remotes, ..inner }) })
    }

    /// Bytes of data here; other ranks may have more or fewer.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// True where there are none here.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notifications here, numbered from 0 on.
    pub fn notifications(&self) -> u32 {
        self.inner.notifications
    }

    /// The memory.
    pub fn memory(&self) -> &SegmentMemory {
        &self.inner.memory
    }

    /// Where the part of a rank is, as plain data.
    ///
    /// # Errors
    /// [`NotifyError::Rank`].
    pub fn remote(&self, rank: u32) -> Result<RemoteSegment, NotifyError> {
        let size = self.inner.remotes.len() as u32;
        self.inner.remotes.get(rank as usize).copied().ok_or(NotifyError::Rank { rank, size })
    }

    pub(super) fn rank(&self) -> u32 {
        self.inner.rank
    }

    pub(super) fn remotes(&self) -> &[RemoteSegment] {
        &self.inner.remotes
    }

    /// A part of the data here, to be written from: `segment.slice(..)`, `segment.slice(16..32)`.
    ///
    /// # Errors
    /// [`NotifyError::Local`] where it lies outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, NotifyError> {
        let len = self.len();
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => len,
        };
        if start > end || end > len {
            let (start, end, len) = (start as u64, end as u64, len as u64);
            return Err(QueueError::Bounds(OutOfBounds { start, end, len }).into());
        }
        Ok(match self.memory() {
            SegmentMemory::Host(region) => region.slice(start..end)?,
            SegmentMemory::Gpu(region) => region.slice(start..end)?,
        })
    }

    /// Copies data out, from a byte offset on. Not in the order of any stream.
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

    /// Copies data in, from a byte offset on. Not in the order of any stream.
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
        check_part(self.inner.rank, offset as u64, len as u64, self.len() as u64)
    }

    /// A notification here, for a stream to wait for ([`crate::Batch::wait_notification`]).
    ///
    /// # Errors
    /// [`NotifyError::Notification`].
    pub fn notification(&self, id: u32) -> Result<NotificationWord, NotifyError> {
        let Inner { rank, notifications: count, len, .. } = *self.inner;
        if id >= count {
            return Err(NotifyError::Notification { rank, id, count });
        }
        let offset = words_at(len) + id as usize * WORD;
        Ok(match self.memory() {
            SegmentMemory::Host(region) => NotificationWord::Host(Word32::new(region, offset)?),
            SegmentMemory::Gpu(region) => NotificationWord::Gpu(GpuWord32::new(region.memory(), offset)?),
        })
    }

    /// Waits until one of the notifications of a range is there, and says which: the first of the range that is. `None` after `timeout`; of
    /// 0, it only looks. Whoever sees it sees what was written before it. It stays until [`Self::notify_reset`].
    ///
    /// In GPU memory each look is a copy by the driver, some microseconds.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] for a range that ends behind the notifications, [`NotifyError::Cuda`],
    /// [`NotifyError::Consistency`].
    pub fn notify_waitsome(&self, ids: Range<u32>, timeout: Duration) -> Result<Option<u32>, NotifyError> {
        let Inner { rank, notifications: count, .. } = *self.inner;
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

    /// Refuses those who could see a notification without the data, for what the GPU shows of a real card's writes, if it is in GPU memory.
    pub(super) fn check_order(&self, shown: impl Fn(GpuCapabilities) -> bool) -> Result<(), NotifyError> {
        if let SegmentMemory::Gpu(region) = self.memory() {
            let context = region.memory().context();
            // The software card has finished each copy before it begins the next.
            if self.inner.real && !shown(context.capabilities()) {
                return Err(NotifyError::Consistency { gpu: context.ordinal() });
            }
        }
        Ok(())
    }

    fn first_of(&self, ids: Range<u32>) -> Result<Option<u32>, NotifyError> {
        let first = words_at(self.len()) / WORD;
        match self.memory() {
            SegmentMemory::Host(region) => {
                let words = &region.words32()[first..];
                let is_set = |id: &u32| {
                    // Acquire: pairs with the card's write of the word, which comes after those of the data.
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

    /// Takes a notification away, and says what its value was: 0 where there was none. As one step: of two that take it one gets it,
    /// and one that comes at the same time is either taken or stays.
    ///
    /// In GPU memory this is a kernel on a stream of its own, and waits for it.
    ///
    /// # Errors
    /// [`NotifyError::Notification`], [`NotifyError::Cuda`].
    pub fn notify_reset(&self, id: u32) -> Result<u32, NotifyError> {
        match (self.notification(id)?, &self.inner.taker) {
            (NotificationWord::Gpu(word), Some(taker)) => Ok(taker.take(&word)?),
            (NotificationWord::Gpu(word), None) => Ok(word.load()?),
            (NotificationWord::Host(word), _) => Ok(word.swap(0)),
        }
    }

    /// Where a write to a rank's part goes.
    pub(super) fn part_of(&self, rank: u32, offset: u64, len: u64) -> Result<RemoteMemory, NotifyError> {
        let RemoteSegment { data, .. } = self.remote(rank)?;
        check_part(rank, offset, len, data.len)?;
        Ok(RemoteMemory { addr: data.addr.wrapping_add(offset), len, rkey: data.rkey })
    }

    /// Where a notification of a rank's part is written.
    pub(super) fn notification_of(
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

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Where the notifications of a segment with so many bytes of data begin.
fn words_at(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// Bytes of data and notifications.
fn total(len: usize, notifications: u32) -> Result<usize, NotifyError> {
    let words = (notifications as usize).checked_mul(WORD);
    let total =
        len.checked_next_multiple_of(ALIGNMENT).zip(words).and_then(|(data, words)| data.checked_add(words));
    total.ok_or_else(|| {
        let source = std::io::ErrorKind::OutOfMemory.into();
        crate::verbs::error::Error::Memory { len, source }.into()
    })
}

fn bad_description(text: &str) -> crate::verbs::error::Error {
    crate::verbs::error::Error::Parse(crate::verbs::ParseError {
        what: "segment",
        reason: format!("{text:?} is not addr:len:rkey len notifications"),
    })
}

/// What another rank told of its part.
fn parse_remote(text: &str) -> Result<RemoteSegment, NotifyError> {
    let bad = || bad_description(text);
    let fields: Vec<&str> = text.split(' ').collect();
    let [whole, len, notifications] = fields[..] else { return Err(bad().into()) };
    let whole: RemoteMemory = whole.parse()?;
    let (len, count): (usize, u32) = match (len.parse(), notifications.parse()) {
        (Ok(len), Ok(count)) => (len, count),
        _ => return Err(bad().into()),
    };
    if total(len, count)? as u64 != whole.len {
        return Err(bad().into());
    }
    Ok(RemoteSegment { data: whole.slice(..len)?, notifications: whole.slice(words_at(len)..)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_ranks_tell_is_read_back_and_parts_do_not_overlap(addr in 0u64..1 << 48, len in 0usize..1 << 20, count in 0u32..5000, rkey: u32) {
            let whole = RemoteMemory { addr, len: total(len, count).unwrap() as u64, rkey };
            let remote = parse_remote(&format!("{whole} {len} {count}")).unwrap();
            prop_assert_eq!((remote.data.len, remote.notifications.len), (len as u64, u64::from(count) * 4));
            prop_assert!(remote.data.addr + remote.data.len <= remote.notifications.addr);
            prop_assert_eq!(remote.notifications.addr + remote.notifications.len, addr + whole.len);
            prop_assert_eq!((remote.notifications.addr - addr) % 64, 0);
        }

        #[test]
        fn what_makes_no_sense_is_refused(text: String, len in 0usize..1000, count in 0u32..100) {
            prop_assert!(parse_remote(&text).is_err());
            let short = RemoteMemory { addr: 0, len: total(len, count).unwrap() as u64 + 1, rkey: 0 };
            let told = format!("{short} {len} {count}");
            prop_assert!(parse_remote(&told).is_err());
        }
    }
}

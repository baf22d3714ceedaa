//! Segments: memory that other ranks write into, with notifications.

use crate::cause::Unset;
use crate::error::NotifyError;
use crate::liveness::Liveness;
use crate::memory::{LocalPart, RemoteSegment, SegmentMemory, SharedSegment, WORD, check_part};
use crate::notifications::{ALL, ANY, Lookup};
use crate::word::NotificationWord;
use gdsync::cuda::{Consistency, GpuCapabilities};
use gdsync::cudarc::driver::CudaContext;
use gdsync::memop::{GpuWord32, Word32, explain};
use gdsync::{RemoteMemory, Slice};
use gdsync_sys::pause::Pause;
use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory of which every rank of a [`Team`](crate::Team) has a part, with notifications: 32-bit words, 0 if not set. It
/// is a cheap handle.
///
/// The notifications are behind the data in the same memory, or, if the program has provided the memory
/// ([`Team::register`](crate::Team::register)), in other memory of the host or the same GPU. A card's writes over one
/// path are performed in order; nothing orders its writes to a GPU's memory with those to the host's.
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
    local: LocalPart,
    shared: Arc<SharedSegment>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Of GPU memory, whose waiters do not keep it.
        if self.shared.has_waiters() {
            self.shared.notifications.release_all(self.local.rank);
        }
    }
}

impl Segment {
    pub(crate) fn new(
        own: LocalPart,
        texts: &[Option<String>],
        liveness: &Arc<Liveness>,
    ) -> Result<Self, NotifyError> {
        let words = own.words();
        let shared = SharedSegment::new(own.describe()?, texts, words, own.notifications, liveness.clone())?;
        Ok(Segment { inner: Arc::new(Inner { local: own, shared: Arc::new(shared) }) })
    }

    pub(crate) fn shared(&self) -> &Arc<SharedSegment> {
        &self.inner.shared
    }

    /// Returns the length of this rank's data in bytes; other ranks may have more or fewer.
    pub fn len(&self) -> usize {
        self.inner.local.len
    }

    /// Returns true if this rank has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of this rank's notifications, which count from 0.
    pub fn notifications(&self) -> u32 {
        self.inner.local.notifications
    }

    /// Returns the memory of this rank's data.
    pub fn memory(&self) -> &SegmentMemory {
        &self.inner.local.memory
    }

    /// Returns the addresses and keys of a rank's part, as plain data.
    ///
    /// # Errors
    /// [`NotifyError::Rank`] if there is no such rank; [`NotifyError::PeerDead`] for a rank that had been dropped when
    /// the segment was created.
    pub fn remote(&self, rank: u32) -> Result<RemoteSegment, NotifyError> {
        self.inner.shared.remote(rank)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.inner.local.rank
    }

    /// Declares that `rank` sets these notifications; initially any rank may. Waits for them by the CPU, streams and
    /// kernels then end when that rank is dead, not when another is, and [`gdsync::Stream::oldest_wait`] names it.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] and [`NotifyError::Rank`] if there is no such notification or rank.
    pub fn expect_from(&self, ids: Range<u32>, rank: u32) -> Result<(), NotifyError> {
        self.check_ids(&ids)?;
        let size = self.inner.shared.remotes().len() as u32;
        if rank >= size {
            return Err(NotifyError::Rank { rank, size });
        }
        self.set_sender(ids, rank)
    }

    /// Declares that any rank may set these notifications, as initially.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] if there is no such notification.
    pub fn expect_from_any(&self, ids: Range<u32>) -> Result<(), NotifyError> {
        self.set_sender(ids, ANY)
    }

    /// Declares that these notifications belong to a collective of all ranks.
    pub(crate) fn expect_from_all(&self, ids: Range<u32>) -> Result<(), NotifyError> {
        self.set_sender(ids, ALL)
    }

    fn set_sender(&self, ids: Range<u32>, sender: u32) -> Result<(), NotifyError> {
        self.check_ids(&ids)?;
        self.inner.shared.notifications.set_sender(ids, sender);
        self.inner.shared.notifications.update(&self.inner.shared.liveness);
        Ok(())
    }

    pub(crate) fn is_expected_from_all(&self, id: u32) -> bool {
        self.inner.shared.notifications.is_collective(id)
    }

    /// The rank in the status of one of these notifications that is released.
    pub(crate) fn released_for(&self, ids: Range<u32>) -> Option<u32> {
        ids.into_iter().find_map(|id| self.inner.shared.notifications.status(id)).map(|(rank, _)| rank)
    }

    /// The context of the GPU in whose memory this rank's part is.
    pub(crate) fn context(&self) -> Option<Arc<CudaContext>> {
        self.inner.local.gpu.as_ref().map(|gpu| gpu.kernels.context().clone())
    }

    /// Returns true if the segment belongs to the team with this state.
    pub(crate) fn is_of(&self, liveness: &Arc<Liveness>) -> bool {
        Arc::ptr_eq(&self.inner.shared.liveness, liveness)
    }

    fn check_id(&self, id: u32) -> Result<(), NotifyError> {
        let (rank, count) = (self.rank(), self.notifications());
        if id < count { Ok(()) } else { Err(NotifyError::Notification { rank, id, count }) }
    }

    fn check_ids(&self, ids: &Range<u32>) -> Result<(), NotifyError> {
        let (rank, count) = (self.rank(), self.notifications());
        if ids.end <= count {
            Ok(())
        } else {
            Err(NotifyError::Notification { rank, id: ids.end - 1, count })
        }
    }

    /// Checks whether a wait for a notification was released because the notification cannot come. After a stream has
    /// passed the wait, this tells whether the notification has arrived.
    ///
    /// A release lasts until another rank is expected ([`Self::expect_from`]) or the dead one is replaced; for a
    /// notification that any rank may set, until the team drops the dead rank.
    ///
    /// # Errors
    /// If it was released: [`NotifyError::PeerDead`], [`NotifyError::Failed`] if all of this team's connections with the
    /// rank have failed, or [`NotifyError::Ended`]; [`NotifyError::Notification`] if there is no such notification.
    pub fn check_notification(&self, id: u32) -> Result<(), NotifyError> {
        self.check_id(id)?;
        match self.inner.shared.notifications.status(id) {
            Some((rank, _)) => self.inner.shared.liveness.check_released(rank),
            None => Ok(()),
        }
    }

    /// Returns the status word of a notification, for kernels and for descriptors behind the wait: 0, or, once waits
    /// for it are released, bit 31, the number of the dead rank, and bit 30 if the team has dropped the rank. The rank
    /// may also be one to which all connections have failed, or this one, whose team has ended. Programs only read the
    /// word.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] if there is no such notification.
    pub fn notification_status(&self, id: u32) -> Result<Word32, NotifyError> {
        self.check_id(id)?;
        self.inner.shared.notifications.status_word(id)
    }

    /// Returns a slice of this rank's data as a source of writes: `segment.slice(..)`, `segment.slice(16..32)`.
    ///
    /// # Errors
    /// [`NotifyError::LocalQueue`] if the range leaves the data.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Slice, NotifyError> {
        // The region may hold the notifications, too, so the range is checked against the data alone.
        let part = RemoteMemory { addr: 0, len: self.len() as u64, rkey: 0 }.slice(range)?;
        let range = part.addr as usize..(part.addr + part.len) as usize;
        Ok(match self.memory() {
            SegmentMemory::Host(region) => region.slice(range)?,
            SegmentMemory::Gpu(region) => region.slice(range)?,
        })
    }

    /// Copies this rank's data from a byte offset on, not in the order of any stream.
    ///
    /// # Errors
    /// [`NotifyError::OutOfSegment`] if the range leaves the data, [`NotifyError::Cuda`] if the driver fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), NotifyError> {
        self.check_own(offset, into.len())?;
        match self.memory() {
            SegmentMemory::Host(region) => _ = region.read(offset, into),
            SegmentMemory::Gpu(region) => region.memory().read(offset, into)?,
        }
        Ok(())
    }

    /// Copies bytes into this rank's data from a byte offset on, not in the order of any stream.
    ///
    /// # Errors
    /// [`NotifyError::OutOfSegment`] if the range leaves the data, [`NotifyError::Cuda`] if the driver fails.
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

    /// Returns a notification of this rank for a stream to wait for
    /// ([`WaitNotification::wait_notification`](crate::WaitNotification::wait_notification)).
    ///
    /// In host memory, the word and the stream's work that names it are handles of the segment. They are no handles of
    /// the team: when the team ends, waits are released ([`Self::check_notification`]).
    ///
    /// # Errors
    /// [`NotifyError::Notification`] if there is no such notification; [`NotifyError::Ended`].
    pub fn notification(&self, id: u32) -> Result<NotificationWord, NotifyError> {
        let word = self.word(id)?.written_by(Arc::new(Unset::of(&self.inner.shared, id..id + 1)));
        let waiter = self.inner.shared.waiter()?;
        Ok(match word {
            NotificationWord::Host(word) => {
                NotificationWord::Host(word.owned_by(Arc::new((waiter, self.inner.clone()))))
            }
            // A stream drops its work while others may be blocked, and the driver waits for these to unload kernels.
            NotificationWord::Gpu(word) => NotificationWord::Gpu(word.owned_by(waiter)),
        })
    }

    fn word(&self, id: u32) -> Result<NotificationWord, NotifyError> {
        self.check_id(id)?;
        let rank = self.rank();
        let name = match self.inner.shared.notifications.sender(id) {
            Some(sender) => format!("notification {id} of rank {sender}"),
            None => format!("notification {id} of rank {rank}'s segment, from any rank"),
        };
        let offset = (self.inner.local.first + id as usize) * WORD;
        Ok(match &self.inner.local.words {
            SegmentMemory::Host(region) => NotificationWord::Host(Word32::new(region, offset)?.named(name)),
            SegmentMemory::Gpu(region) => {
                NotificationWord::Gpu(GpuWord32::new(region.memory(), offset)?.named(name))
            }
        })
    }

    /// Waits until a notification of the range is set, and returns the lowest such number; `None` after `timeout`
    /// ([`Self::explain_wait`] then says why). A timeout of 0 checks once. A caller that gets a number sees data written before that notification, which stays
    /// set until [`Self::notify_reset`].
    ///
    /// In GPU memory each check is a copy by the driver, which takes some microseconds.
    ///
    /// A dead rank ends the wait if it might set one of them: if any rank may (as initially), or that one
    /// ([`Self::expect_from`]). Notifications of ranks that the team has dropped end it only if the range has no others.
    /// It also ends if no notification can arrive, as for a stream ([`Self::check_notification`]).
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`], [`NotifyError::Failed`] or [`NotifyError::Ended`] if that ends the wait; [`NotifyError::Notification`] for a range beyond the
    /// notifications, [`NotifyError::Cuda`] if the driver fails, [`NotifyError::Consistency`] if data may be visible
    /// later.
    pub fn notify_waitsome(&self, ids: Range<u32>, timeout: Duration) -> Result<Option<u32>, NotifyError> {
        self.check_ids(&ids)?;
        let mut pause = Pause::new();
        loop {
            // Before the look: notifications that arrived before the end are found.
            let is_open = self.inner.shared.liveness.check_not_ended();
            match self.look(ids.clone())? {
                Lookup::Set(id) => return Ok(Some(id)),
                Lookup::Released(rank) => self.inner.shared.liveness.check_released(rank)?,
                Lookup::None => is_open?,
            }
            if ids.is_empty() || pause.elapsed() >= timeout {
                return Ok(None);
            }
            pause.pause();
        }
    }

    /// Says why no notification of a range is set, as [`gdsync::Stream::explain_wait`] does: which rank has not set it, and
    /// what the processes of this host know about that rank's. It asks them, which takes up to 250 ms if one of them does not
    /// answer.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] if there is no such notification.
    pub fn explain_wait(&self, ids: Range<u32>) -> Result<Option<String>, NotifyError> {
        self.check_ids(&ids)?;
        Ok(explain(&Unset::of(&self.inner.shared, ids)))
    }

    /// Refuses a reader that could see a notification without its data. `is_ordered` returns whether the segment's GPU
    /// shows that reader a real card's writes in order.
    pub(crate) fn check_order(
        &self,
        is_ordered: impl Fn(GpuCapabilities) -> bool,
    ) -> Result<(), NotifyError> {
        let LocalPart { gpu, is_real, .. } = &self.inner.local;
        match gpu {
            // The software card finishes each copy before the next begins.
            Some(gpu) if *is_real && !is_ordered(gpu.capabilities) => {
                Err(NotifyError::Consistency { gpu: gpu.number })
            }
            _ => Ok(()),
        }
    }

    fn look(&self, ids: Range<u32>) -> Result<Lookup, NotifyError> {
        let (LocalPart { first, words, .. }, notifications) =
            (&self.inner.local, &self.inner.shared.notifications);
        match words {
            SegmentMemory::Host(region) => {
                let words = &region.words32()[*first..];
                // Acquire: pairs with the card's write of the word, which follows its writes of the data.
                Ok(notifications.lookup(ids, |id| words[id as usize].load(Ordering::Acquire)))
            }
            SegmentMemory::Gpu(region) => {
                self.check_order(|gpu| gpu.consistency() == Consistency::Ordered)?;
                let mut bytes = vec![0; ids.len() * WORD];
                region.memory().read((first + ids.start as usize) * WORD, &mut bytes)?;
                let (words, _) = bytes.as_chunks::<WORD>();
                let start = ids.start;
                Ok(notifications.lookup(ids, |id| {
                    words.get((id - start) as usize).map_or(0, |word| u32::from_ne_bytes(*word))
                }))
            }
        }
    }

    /// Clears a notification and returns its old value; 0 if it was not set or is released. This is atomic: of two
    /// callers one gets the value, and a notification that arrives meanwhile is either returned or stays set.
    ///
    /// In GPU memory this launches a kernel on a separate stream and waits for it.
    ///
    /// # Errors
    /// [`NotifyError::Notification`] if there is no such notification, [`NotifyError::Cuda`] if the driver fails.
    pub fn notify_reset(&self, id: u32) -> Result<u32, NotifyError> {
        let value = match (self.word(id)?, &self.inner.local.gpu) {
            (NotificationWord::Gpu(word), Some(gpu)) => gpu.kernels.take(&word)?,
            (NotificationWord::Gpu(word), None) => word.load()?,
            (NotificationWord::Host(word), _) => word.swap(0),
        };
        // The monitor notifications it again.
        Ok(if self.inner.shared.notifications.is_release(id, value) { 0 } else { value })
    }
}

//! Memory of segments: this rank's part, and the descriptions of the other ranks' parts.

use crate::error::{NotifyError, Result};
use crate::liveness::Liveness;
use crate::notifications::Notifications;
use crate::word::{NotificationKernels, NotificationWords};
use gdsync::cuda::{self, GpuCapabilities, GpuMemory};
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::{Error, GpuMemoryRegion, ParseError, Provider, RegistrationCache};
use gdsync::{Access, MemoryRegion, PinnedMemory, ProtectionDomain, RemoteMemory};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Alignment of the notifications behind the data, so that no cache line holds both.
const ALIGNMENT: usize = 64;
pub(crate) const WORD: usize = size_of::<u32>();

/// The addresses and keys of a rank's part of a segment, for code that writes to it without this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSegment {
    /// The data.
    pub data: RemoteMemory,
    /// The notifications: 32-bit words in the byte order of the rank's host.
    pub notifications: RemoteMemory,
}

pub(crate) fn words_at(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

pub(crate) fn words_bytes(notifications: u32) -> usize {
    notifications as usize * WORD
}

pub(crate) fn total(len: usize, notifications: u32) -> Result<usize> {
    let data = len.checked_next_multiple_of(ALIGNMENT);
    data.and_then(|data| data.checked_add(words_bytes(notifications))).ok_or_else(|| {
        let source = std::io::ErrorKind::OutOfMemory.into();
        Error::Memory { len, source }.into()
    })
}

impl RemoteSegment {
    /// Formats the description for the other ranks.
    pub(crate) fn describe(&self) -> String {
        format!("{} {}", self.data, self.notifications)
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = || {
            let reason = format!("{text:?} is not the addr:len:rkey of data and that of notifications");
            Error::Parse(ParseError { what: "segment", reason })
        };
        let (data, notifications) = text.split_once(' ').ok_or_else(bad)?;
        let (data, notifications): (RemoteMemory, RemoteMemory) = (data.parse()?, notifications.parse()?);
        let is_words = |number: u64| number.is_multiple_of(WORD as u64);
        let count = notifications.len / WORD as u64;
        if !is_words(notifications.addr) || !is_words(notifications.len) || count > u64::from(u32::MAX) {
            return Err(bad().into());
        }
        Ok(RemoteSegment { data, notifications })
    }

    pub(crate) fn count(&self) -> u32 {
        (self.notifications.len / WORD as u64) as u32
    }

    pub(crate) fn has_two_keys(&self) -> bool {
        self.notifications.len > 0 && self.notifications.rkey != self.data.rkey
    }
}

/// Returns the remote access to segments. Not every card has atomics.
pub(crate) fn access(pd: &ProtectionDomain) -> Result<Access> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Ok(if pd.device().attributes()?.atomics { access | Access::REMOTE_ATOMIC } else { access })
}

/// A team's resources for segments: registrations of the program's memory, and kernels of GPUs.
#[derive(Debug)]
pub(crate) struct SegmentResources {
    pub(crate) registrations: RegistrationCache,
    /// One for each context with a segment in its memory.
    kernels: Mutex<Vec<Arc<NotificationKernels>>>,
}

impl SegmentResources {
    pub(crate) fn new(pd: &ProtectionDomain) -> Self {
        SegmentResources { registrations: RegistrationCache::new(pd), kernels: Mutex::default() }
    }

    /// Returns a context's kernels, which the first call for it loads.
    pub(crate) fn kernels(&self, context: &Arc<CudaContext>) -> Result<Arc<NotificationKernels>> {
        let mut kernels = self.kernels.lock();
        if let Some(known) = kernels.iter().find(|one| one.context().cu_ctx() == context.cu_ctx()) {
            return Ok(known.clone());
        }
        let made = Arc::new(NotificationKernels::new(context)?);
        kernels.push(made.clone());
        Ok(made)
    }
}

#[derive(Debug)]
pub(crate) struct LocalPart {
    pub(crate) rank: u32,
    pub(crate) memory: SegmentMemory,
    /// The notifications' memory: the data's, unless the program has provided the latter.
    pub(crate) words: SegmentMemory,
    /// The index of the first notification in words of that memory.
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) notifications: u32,
    /// True if the card is no software card: real cards order their writes to GPU memory for the GPU's streams only.
    pub(crate) is_real: bool,
    pub(crate) gpu: Option<Gpu>,
}

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) number: i32,
    pub(crate) capabilities: GpuCapabilities,
    pub(crate) kernels: Arc<NotificationKernels>,
}

/// The memory of a new process's part of a segment ([`Team::join_as_replacement`](crate::Team::join_as_replacement)).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SegmentSpec<'a> {
    /// As from [`Team::allocate`](crate::Team::allocate).
    Host {
        /// Bytes.
        len: usize,
        /// Notifications.
        notifications: u32,
    },
    /// As from [`Team::allocate_gpu`](crate::Team::allocate_gpu).
    Gpu {
        /// The GPU.
        context: &'a Arc<CudaContext>,
        /// Bytes.
        len: usize,
        /// Notifications.
        notifications: u32,
    },
    /// As from [`Team::register`](crate::Team::register).
    Registered {
        /// The data.
        memory: &'a PinnedMemory,
        /// Notifications.
        notifications: u32,
    },
    /// As from [`Team::register_gpu`](crate::Team::register_gpu).
    RegisteredGpu {
        /// The context that the memory was created with.
        context: &'a Arc<CudaContext>,
        /// The data.
        memory: &'a GpuMemory,
        /// Notifications.
        notifications: u32,
    },
}

impl SegmentSpec<'_> {
    pub(crate) fn make(&self, resources: &SegmentResources, rank: u32) -> Result<LocalPart> {
        let registrations = &resources.registrations;
        let pd = registrations.domain();
        let access = access(pd)?;
        let (context, notifications) = match *self {
            SegmentSpec::Host { notifications, .. } | SegmentSpec::Registered { notifications, .. } => {
                (None, notifications)
            }
            SegmentSpec::Gpu { context, notifications, .. }
            | SegmentSpec::RegisteredGpu { context, notifications, .. } => (Some(context), notifications),
        };
        let allocate = |bytes: usize| -> Result<SegmentMemory> {
            let Some(context) = context else {
                return Ok(SegmentMemory::Host(MemoryRegion::allocate(pd, bytes, access)?));
            };
            Ok(SegmentMemory::Gpu(GpuMemoryRegion::allocate(pd, context, bytes, access)?))
        };
        let (memory, len) = match *self {
            SegmentSpec::Host { len, .. } | SegmentSpec::Gpu { len, .. } => {
                (allocate(total(len, notifications)?)?, len)
            }
            SegmentSpec::Registered { memory, .. } if !memory.is_empty() => {
                (SegmentMemory::Host(registrations.host_region(memory, access)?), memory.len())
            }
            SegmentSpec::RegisteredGpu { context, memory, .. } if !memory.is_empty() => {
                if !memory.is_of(context)? {
                    return Err(NotifyError::OtherGpu { gpu: context.cu_device() });
                }
                (SegmentMemory::Gpu(registrations.gpu_region(memory, access)?), memory.len())
            }
            SegmentSpec::Registered { .. } | SegmentSpec::RegisteredGpu { .. } => {
                return Err(NotifyError::NothingToRegister);
            }
        };
        let gpu = context.map(|context| Gpu::new(resources, context)).transpose()?;
        let (words, first) = match self {
            SegmentSpec::Host { .. } | SegmentSpec::Gpu { .. } => (memory.clone(), words_at(len) / WORD),
            _ => (allocate(words_bytes(notifications))?, 0),
        };
        let is_real = pd.device().provider() != Provider::Software;
        Ok(LocalPart { rank, memory, words, first, len, notifications, is_real, gpu })
    }
}

/// This rank's memory of a [`Segment`](crate::Segment): the data, and, unless the program has provided it
/// ([`Team::register`](crate::Team::register)), the notifications after it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SegmentMemory {
    /// In host memory.
    Host(MemoryRegion),
    /// In GPU memory.
    Gpu(GpuMemoryRegion),
}

impl SegmentMemory {
    pub(crate) fn remote(&self) -> RemoteMemory {
        match self {
            SegmentMemory::Host(region) => region.remote(),
            SegmentMemory::Gpu(region) => region.remote(),
        }
    }
}

impl Gpu {
    fn new(resources: &SegmentResources, context: &Arc<CudaContext>) -> Result<Self> {
        let (number, capabilities) = (context.cu_device(), cuda::capabilities(context)?);
        Ok(Gpu { number, capabilities, kernels: resources.kernels(context)? })
    }
}

impl LocalPart {
    pub(crate) fn describe(&self) -> Result<String> {
        let words = self.first * WORD..self.first * WORD + words_bytes(self.notifications);
        let data = self.memory.remote().slice(..self.len)?;
        let segment = RemoteSegment { data, notifications: self.words.remote().slice(words)? };
        Ok(segment.describe())
    }

    pub(crate) fn words(&self) -> NotificationWords {
        let first = self.first;
        match &self.words {
            SegmentMemory::Gpu(region) => {
                let kernels = self.gpu.as_ref().map(|gpu| gpu.kernels.clone());
                NotificationWords::Gpu { memory: region.memory().clone(), first, kernels }
            }
            SegmentMemory::Host(region) => NotificationWords::Host { memory: region.memory().clone(), first },
        }
    }
}

/// A segment as its team keeps it: the parts of all ranks, and this rank's notifications.
#[derive(Debug)]
pub(crate) struct SharedSegment {
    /// This rank's part, as a line for the others.
    pub(crate) description: String,
    /// `None` for ranks that had been dropped when the segment was created.
    remotes: RwLock<Vec<Option<RemoteSegment>>>,
    pub(crate) notifications: Notifications,
    pub(crate) liveness: Arc<Liveness>,
    /// Held by what may wait for the notifications without a handle of the team: words, streams' work, kernels.
    waiters: Arc<()>,
}

impl SharedSegment {
    pub(crate) fn new(
        description: String,
        texts: &[Option<String>],
        words: NotificationWords,
        notifications: u32,
        liveness: Arc<Liveness>,
    ) -> Result<Self> {
        let remote = |text: &Option<String>| text.as_deref().map(RemoteSegment::parse).transpose();
        let remotes = RwLock::new(texts.iter().map(remote).collect::<Result<Vec<_>, _>>()?);
        let notifications = Notifications::new(words, notifications)?;
        Ok(SharedSegment { description, remotes, notifications, liveness, waiters: Arc::default() })
    }

    /// Returns a handle for a waiter, which is released when its notification cannot come ([`Self::has_waiters`]).
    pub(crate) fn waiter(&self) -> Result<Arc<()>> {
        let waiter = self.waiters.clone();
        // With that of `has_waiters`: either this sees the team's end, or the monitor sees the waiter.
        fence(Ordering::SeqCst);
        self.liveness.check_not_ended()?;
        Ok(waiter)
    }

    pub(crate) fn has_waiters(&self) -> bool {
        fence(Ordering::SeqCst);
        Arc::strong_count(&self.waiters) > 1
    }

    pub(crate) fn remote(&self, rank: u32) -> Result<RemoteSegment> {
        let remotes = self.remotes.read();
        let size = remotes.len() as u32;
        match remotes.get(rank as usize) {
            Some(Some(remote)) => Ok(*remote),
            Some(None) => self.liveness.check_alive(rank).and(Err(NotifyError::Rank { rank, size })),
            None => Err(NotifyError::Rank { rank, size }),
        }
    }

    pub(crate) fn remotes(&self) -> Vec<Option<RemoteSegment>> {
        self.remotes.read().clone()
    }

    /// Replaces a part's description by a new process's.
    pub(crate) fn renew(&self, rank: u32, text: &str) -> Result<()> {
        self.remotes.write()[rank as usize] = Some(RemoteSegment::parse(text)?);
        Ok(())
    }

    /// Returns the remote memory of a range of a rank's data.
    pub(crate) fn data_at(&self, rank: u32, offset: u64, len: u64) -> Result<RemoteMemory> {
        let RemoteSegment { data, .. } = self.remote(rank)?;
        check_part(rank, offset, len, data.len)?;
        Ok(RemoteMemory { addr: data.addr.wrapping_add(offset), len, rkey: data.rkey })
    }

    /// Returns the remote memory of a rank's notification.
    pub(crate) fn notification_at(&self, rank: u32, id: u32, value: u32) -> Result<RemoteMemory> {
        let remote = self.remote(rank)?;
        let (notifications, count) = (remote.notifications, remote.count());
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

pub(crate) fn check_part(rank: u32, offset: u64, len: u64, size: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(NotifyError::OutOfSegment { rank, offset, len, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_ranks_tell_is_read_back(addr in 0u64..1 << 48, len in 0u64..1 << 40, words in 0u64..1 << 46, count: u32, rkeys: (u32, u32)) {
            let data = RemoteMemory { addr, len, rkey: rkeys.0 };
            let notifications = RemoteMemory { addr: words * 4, len: u64::from(count) * 4, rkey: rkeys.1 };
            let segment = RemoteSegment { data, notifications };
            prop_assert_eq!(RemoteSegment::parse(&segment.describe()).unwrap(), segment);
            prop_assert_eq!(segment.count(), count);
            prop_assert_eq!(segment.has_two_keys(), count > 0 && rkeys.0 != rkeys.1);
        }

        #[test]
        fn notifications_behind_data_are_not_in_its_cache_lines(len in 0usize..1 << 20, count in 0u32..5000) {
            prop_assert!(words_at(len) >= len && words_at(len).is_multiple_of(64));
            prop_assert_eq!(total(len, count).unwrap(), words_at(len) + count as usize * 4);
        }

        #[test]
        fn what_makes_no_sense_is_refused(text: String, odd in 1u64..4) {
            prop_assert!(RemoteSegment::parse(&text).is_err());
            for (addr, len) in [(odd, 8), (8, 8 + odd), (8, 1 << 34)] {
                let (data, notifications) = (RemoteMemory { addr: 0, len: 8, rkey: 1 }, RemoteMemory { addr, len, rkey: 1 });
                let segment = RemoteSegment { data, notifications };
                prop_assert!(RemoteSegment::parse(&segment.describe()).is_err());
            }
        }
    }
}

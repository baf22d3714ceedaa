//! For programs of other languages, which bring what a Rust program has gdsync make: queue pairs that they move through their
//! states themselves, memory that they registered, addresses of streams, and kernels that ring and wait.
//!
//! The C library `libgdsync` is made on this. Nothing here keeps what it is told of alive: that is the program's part, hence
//! `unsafe`.

use crate::memop::{Condition, Named, Place, StreamMemory, StreamWord, WordError};
use crate::memory::HostAddr;
use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::qp::config::QueuePairConfig;
use crate::qp::cq::CompletionQueue;
use crate::qp::prepared::PreparedSend;
use crate::qp::wait::PreparedWait;
use crate::qp::{QpState, QueuePair};
use crate::queue::doorbell::{Doorbell, PeerOp};
use crate::queue::error::{OrderError, QueueError, QueueFull};
use crate::util::pause::Pause;
use crate::verbs::ah::AddressHandle;
use crate::verbs::error::Error;
use crate::verbs::mr::{MemoryRegionInner, Slice};
use crate::verbs::pd::ProtectionDomain;
use gdsync_sys::verbs::{self, ibv_ah, ibv_cq, ibv_qp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl QueuePair {
    /// Makes a queue pair that the program moves through its states by its own calls of `ibv_modify_qp` on [`Self::as_raw`]:
    /// it is in RESET. [`Self::adopt_state`] tells gdsync of them. Of the configuration, `access`, `qkey` and `pkey_index` are
    /// not used.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn unmanaged(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        Self::in_reset(pd, config)
    }

    /// Looks at the state into which the program has moved the queue pair: sends may be prepared once it is RTS.
    ///
    /// A queue pair that has failed stays so: gdsync does not follow one that goes through RESET by the program's hand.
    pub fn adopt_state(&self) {
        let inner = &self.inner;
        let mut status = inner.status();
        // SAFETY: the queue pair is alive; libibverbs writes the field after each transition, and an aligned word is read whole.
        let state = unsafe { (&raw const (*self.as_raw()).state).read_volatile() };
        if matches!(*status, QpState::Initialised) && state == verbs::IBV_QPS_RTS {
            *status = QpState::Connected;
            inner.connected.store(true, Ordering::Release);
        }
    }

    /// Drops the queue pair, and waits until it is destroyed: work that is in flight is aborted, and streams have to pass it. `look` is
    /// called meanwhile, for a look at streams that nobody else looks at. Its completion queues are nobody else's: they go with it, and
    /// so does what GPUs know of it, so that its protection domain is free. False where that took longer than `timeout`: it
    /// goes later then.
    pub fn drop_within(self, timeout: Duration, mut look: impl FnMut()) -> bool {
        let inner = Arc::downgrade(&self.inner);
        let queues = [&self.inner.send_cq, &self.inner.recv_cq];
        let own: Arc<dyn Debug + Send + Sync> = self.inner.domain.clone();
        let domains = [&own, &queues[0].domain, &queues[1].domain].map(Arc::downgrade);
        drop(own);
        drop(self);
        let mut pause = Pause::new();
        loop {
            look();
            if inner.strong_count() == 0 {
                // GPUs that know its doorbell register keep that, and with it the domain.
                crate::cuda::collect_all();
                if domains.iter().all(|domain| domain.strong_count() == 0) {
                    return true;
                }
            }
            if pause.elapsed() >= timeout {
                return false;
            }
            pause.pause();
        }
    }

    /// The provider's object, valid as long as the queue pair. Only its state may be changed through it. Null for one that was made by
    /// commands of the device.
    pub fn as_raw(&self) -> *mut ibv_qp {
        self.inner.object.verbs().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Memory that the program has registered in the queue pair's protection domain.
    pub fn registered(&self) -> RegisteredMemory {
        let pd = self.inner.domain.pd.clone();
        RegisteredMemory { region: Arc::new(MemoryRegionInner::foreign(pd)) }
    }
}

impl CompletionQueue {
    /// The provider's object, valid as long as the queue. Its entries are polled by [`CompletionQueue::poll`] only. Null for one that was
    /// made by commands of the device.
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.verbs().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }
}

/// Memory that a program has registered in a protection domain by its own calls: [`Slice`]s of it, by address and key.
#[derive(Clone, Debug)]
pub struct RegisteredMemory {
    region: Arc<MemoryRegionInner>,
}

impl RegisteredMemory {
    /// `len` bytes from `addr` on, which `lkey` opens. What the region allows is not known here: the card tells.
    ///
    /// # Safety
    /// The memory stays registered, and mapped, until every work request that names it has completed.
    #[inline]
    pub unsafe fn slice(&self, addr: u64, len: usize, lkey: u32) -> Slice {
        Slice::foreign(self.region.clone(), addr, len, lkey)
    }
}

/// A slice as [`RegisteredMemory::slice`] makes it, for less: it is borrowed, so that nothing counts it.
#[derive(Debug)]
pub struct BorrowedSlice<'a> {
    slice: ManuallyDrop<Slice>,
    owner: PhantomData<&'a RegisteredMemory>,
}

impl BorrowedSlice<'_> {
    /// The slice, as requests take it.
    #[inline(always)]
    pub fn slices(&self) -> &[Slice] {
        std::slice::from_ref(&*self.slice)
    }
}

impl RegisteredMemory {
    /// Lends a slice.
    ///
    /// # Safety
    /// As [`Self::slice`].
    #[inline(always)]
    pub unsafe fn borrow(&self, addr: u64, len: usize, lkey: u32) -> BorrowedSlice<'_> {
        // SAFETY: a second owner of the region that is never dropped, nor moved out of, and gone before `self` is: others only see
        // it by reference, of which they may make clones.
        let slice = Slice::foreign(unsafe { std::ptr::read(&self.region) }, addr, len, lkey);
        BorrowedSlice { slice: ManuallyDrop::new(slice), owner: PhantomData }
    }
}

impl AddressHandle {
    /// Uses an address handle that the program has made itself, for datagrams of `queue_pair`. It is not destroyed with the last
    /// clone.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider cannot describe it.
    ///
    /// # Safety
    /// It is valid, of the protection domain and the port of `queue_pair`.
    pub unsafe fn from_raw(queue_pair: &QueuePair, raw: NonNull<ibv_ah>) -> Result<Self, Error> {
        let inner = &queue_pair.inner;
        Self::borrowed(raw, inner.config.port, inner.domain.pd.clone())
    }
}

/// Memory at an address of a stream's own: of a GPU, or of the host as a GPU knows it. For a stream of the CPU, host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    address: u64,
    len: usize,
}

/// A 32-bit word of a [`DeviceRange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWord32(u64);

impl DeviceRange {
    /// `len` bytes from `address` on.
    ///
    /// # Safety
    /// Every stream that a batch with it is posted on reaches the range by these addresses, until it has passed the batch.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        DeviceRange { address, len }
    }
}

impl DeviceWord32 {
    /// The word at `address`.
    ///
    /// # Errors
    /// [`WordError::Outside`](crate::memop::WordError::Outside) where that is not aligned to 4 bytes.
    ///
    /// # Safety
    /// As [`DeviceRange::new`].
    pub unsafe fn new(address: u64) -> Result<Self, QueueError> {
        if !address.is_multiple_of(4) {
            return Err(QueueError::Word(WordError::Outside {
                offset: address as usize,
                size: 4,
                len: usize::MAX,
            }));
        }
        Ok(DeviceWord32(address))
    }
}

impl Named for DeviceRange {
    fn place(&self) -> Place {
        Place::stream(self.address, self.len)
    }
}

impl StreamMemory for DeviceRange {}

impl Named for DeviceWord32 {
    fn place(&self) -> Place {
        Place::stream(self.0, size_of::<u32>())
    }
}

impl StreamWord<u32> for DeviceWord32 {}

/// What a kernel stores to hand a send to the card: the record, a fence for the system, then the doorbell in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSend {
    /// The doorbell record.
    pub record_at: HostAddr,
    /// What goes there, as it stands in memory.
    pub record: u32,
    /// The doorbell register.
    pub register: HostAddr,
    /// What goes there, as it stands in memory.
    pub doorbell: u64,
}

/// What a kernel waits for, and how it says that it has: it stores `flag` once it has seen the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWait {
    /// The word of the entry that the kernel looks at.
    pub word_at: HostAddr,
    /// When that word says that the entry is there.
    pub condition: Condition,
    /// The value compared with.
    pub value: u32,
    /// Where the kernel says that it needs the entry no more. The word stays for the life of the process.
    pub flag_at: HostAddr,
    /// What it stores there.
    pub flag: u32,
}

/// Timelines of kernels' waits, oldest first, with the last point of each. They are never given back: nobody knows when a kernel
/// that was told of one is over.
static TIMELINES: Mutex<VecDeque<(Arc<Timeline>, TimelinePoint)>> = Mutex::new(VecDeque::new());
/// The timeline of kernels' sends, which has passed everything.
static PASSED: Mutex<Option<Arc<Timeline>>> = Mutex::new(None);

fn new_timeline() -> Result<Arc<Timeline>, QueueError> {
    Timeline::new(0).map_err(|source| QueueError::Full(QueueFull::NoMemory { reason: source.to_string() }))
}

/// A timeline that nobody waits on, and its next point.
fn kernel_timeline() -> Result<(Arc<Timeline>, TimelinePoint), QueueError> {
    let mut timelines = TIMELINES.lock();
    let (timeline, point) = match timelines.pop_front() {
        Some((timeline, last)) if timeline.has_passed(last) => (timeline, last.next()),
        busy => {
            timelines.extend(busy);
            (new_timeline()?, TimelinePoint::default().next())
        }
    };
    timelines.push_back((timeline.clone(), point));
    Ok((timeline, point))
}

fn passed_timeline() -> Result<Arc<Timeline>, QueueError> {
    let mut passed = PASSED.lock();
    match &*passed {
        Some(timeline) => Ok(timeline.clone()),
        None => Ok(passed.insert(new_timeline()?).clone()),
    }
}

impl PreparedSend {
    /// Gives the send to a kernel, which rings the card for it. gdsync takes it for posted from now on, and as nothing tells when
    /// the kernel has rung, lets later sends of the queue pair be posted elsewhere at once: their order is the program's part.
    ///
    /// # Errors
    /// [`QueueError`]: not its turn, or its queue pair has failed. The send is dropped then, which takes it back.
    pub fn give_to_kernel(mut self) -> Result<KernelSend, QueueError> {
        let timeline = passed_timeline()?;
        let Doorbell { record_at, record, register, value } = self.place().1;
        self.commit(&timeline, timeline.progress())?;
        drop(self.into_queue_pair());
        Ok(KernelSend { record_at, record, register, doorbell: value })
    }
}

impl PreparedWait {
    /// Gives the wait to a kernel. Until that has stored its flag, the entry is not polled by
    /// [`CompletionQueue::poll_unawaited`], and not given back to the card.
    ///
    /// # Errors
    /// [`QueueFull::NoMemory`](crate::queue::QueueFull::NoMemory); [`OrderError::NothingToWaitFor`](crate::queue::OrderError::NothingToWaitFor) where the completion has been polled and its entry is the card's
    /// again. The wait is dropped then, which gives it back.
    pub fn give_to_kernel(mut self) -> Result<KernelWait, QueueError> {
        let (timeline, point) = kernel_timeline()?;
        let (word_at, condition, value) = match self.commit(&timeline, point) {
            Some(PeerOp::PollAnd { addr, value }) => (addr, Condition::And, value),
            Some(PeerOp::PollNor { addr, value }) => (addr, Condition::Nor, value),
            _ => {
                timeline.declare_passed(point);
                return Err(QueueError::Order(OrderError::NothingToWaitFor { waits: 0 }));
            }
        };
        Ok(KernelWait { word_at, condition, value, flag_at: timeline.word(), flag: point.get() })
    }

    /// Gives the wait up, and leaves its completion to the CPU. Unlike dropping it, which has the next wait prepared for the same
    /// completion, the next wait is for the one after.
    pub fn leave_to_cpu(self) {
        self.give_up();
    }
}

#[cfg(all(test, feature = "software-card"))]
#[path = "raw_tests.rs"]
mod tests;

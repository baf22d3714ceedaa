//! The program's raw objects, for bindings of other languages: queue pairs that the program moves through their
//! states, memory that it has registered, addresses of its streams, and its kernels that ring and wait.
//!
//! The C library `libgdsync` uses this. The program keeps its objects alive, and nothing here does, hence `unsafe`.

use crate::memop::{Condition, Location, Named, StreamMemory, StreamWord, WordError};
use crate::memory::{HostAddr, Timeline, TimelinePoint};
use crate::qp::life::{connect, create};
use crate::qp::{CompletionQueue, PreparedSend, PreparedWait, QpState, QueuePair, QueuePairConfig};
use crate::queue::{Doorbell, OrderError, PeerOp, QueueError, QueueFull, Release, StateError};
use crate::verbs::{AddressHandle, Error, MemoryRegionInner, ProtectionDomain, Slice};
use gdsync_sys::pause::Pause;
use gdsync_sys::verbs::{self, ibv_ah, ibv_cq, ibv_qp};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

impl QueuePair {
    /// Creates a queue pair in RESET, which the program moves through its states by calls of `ibv_modify_qp` on
    /// [`Self::as_raw`]. After them, it calls [`Self::adopt_state`]. Or it calls [`QueuePair::connect`], which moves it from
    /// RESET on; otherwise, `access`, `qkey` and `pkey_index` of the configuration are not used.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub fn unmanaged(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        create::in_reset(pd, config)
    }

    /// Reads the state into which the program has moved the queue pair: sends may be prepared once it is RTS.
    ///
    /// A queue pair that has failed stays failed, even if the program moves it through RESET. Verbs have no state of
    /// a queue pair that DEVX commands created: nothing is read.
    pub fn adopt_state(&self) {
        let inner = &self.inner;
        let mut status = inner.life.lock();
        if matches!(*status, QpState::Initialised) && connect::state(inner) == Some(verbs::IBV_QPS_RTS) {
            inner.life.connected(&mut status);
        }
    }

    /// Drops the queue pair, and waits until it is destroyed: aborts the work in flight, which streams must pass.
    /// Meanwhile, calls `look` repeatedly, which can retire the work of streams. No other queue pair may use its
    /// completion queues: they are destroyed too, and unregistered from GPUs, so that the protection domain can be
    /// deallocated afterwards. Returns false if that takes longer than `timeout`: the queue pair is then destroyed
    /// later.
    pub fn destroy_and_wait(self, timeout: Duration, mut look: impl FnMut()) -> bool {
        let inner = Arc::downgrade(&self.inner);
        let queues = [&self.inner.send_cq, &self.inner.recv_cq];
        let domains = [&self.inner.domain, &queues[0].domain, &queues[1].domain].map(Arc::downgrade);
        drop(self);
        let mut pause = Pause::new();
        loop {
            look();
            if inner.strong_count() == 0 {
                // A GPU that has the doorbell register mapped keeps it, and with it the domain.
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

    /// Returns the provider's object, valid as long as the queue pair, or null if DEVX commands created it. The
    /// program may change only the state through it.
    pub fn as_raw(&self) -> *mut ibv_qp {
        self.inner.object.verbs().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Returns the memory that the program has registered in the queue pair's protection domain.
    pub fn registered(&self) -> RegisteredMemory {
        let pd = self.inner.domain.pd.clone();
        RegisteredMemory { region: Arc::new(MemoryRegionInner::foreign(pd)) }
    }
}

impl CompletionQueue {
    /// Returns the provider's object, valid as long as the queue, or null if DEVX commands created the queue. The
    /// program may poll only by [`CompletionQueue::poll`].
    pub fn as_raw(&self) -> *mut ibv_cq {
        self.inner.verbs().map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }
}

/// Memory that the program has registered in a protection domain. It makes [`Slice`]s by address and key.
#[derive(Clone, Debug)]
pub struct RegisteredMemory {
    region: Arc<MemoryRegionInner>,
}

impl RegisteredMemory {
    /// `len` bytes from `addr` on, with the region's `lkey`. Only the card knows the region's access rights, and
    /// checks them.
    ///
    /// # Safety
    /// The memory stays registered and mapped until every work request that names it has completed.
    #[inline]
    pub unsafe fn slice(&self, addr: u64, len: usize, lkey: u32) -> Slice {
        Slice::foreign(self.region.clone(), addr, len, lkey)
    }

    /// Borrows a slice.
    ///
    /// # Safety
    /// As [`Self::slice`].
    #[inline(always)]
    pub unsafe fn borrow(&self, addr: u64, len: usize, lkey: u32) -> BorrowedSlice<'_> {
        // SAFETY: the copy of the `Arc` is never dropped or moved out of, and the borrow prevents its use after
        // `self`. Callers only get a reference to it, which they may clone.
        let slice = Slice::foreign(unsafe { std::ptr::read(&self.region) }, addr, len, lkey);
        BorrowedSlice { slice: ManuallyDrop::new(slice), owner: PhantomData }
    }
}

/// A slice as of [`RegisteredMemory::slice`], which borrows the memory instead of counting a reference.
#[derive(Debug)]
pub struct BorrowedSlice<'a> {
    slice: ManuallyDrop<Slice>,
    owner: PhantomData<&'a RegisteredMemory>,
}

impl BorrowedSlice<'_> {
    /// The slice, as work requests take it.
    #[inline(always)]
    pub fn slices(&self) -> &[Slice] {
        std::slice::from_ref(&*self.slice)
    }
}

impl AddressHandle {
    /// Wraps an address handle of the program, for datagrams of `queue_pair`. Dropping the last clone does not
    /// destroy it.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider cannot describe it.
    ///
    /// # Safety
    /// The handle is of the protection domain and the port of `queue_pair`, and valid until the last clone is dropped.
    pub unsafe fn from_raw(queue_pair: &QueuePair, raw: NonNull<ibv_ah>) -> Result<Self, Error> {
        let inner = &queue_pair.inner;
        Self::borrowed(raw, inner.config.port, inner.domain.pd.clone())
    }
}

/// Memory at a stream address: GPU memory, or host memory as the GPU addresses it; for the CPU, host memory.
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
    /// Every stream that a batch with the range is posted on reaches it at these addresses, until the stream has
    /// passed the batch.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        DeviceRange { address, len }
    }
}

impl DeviceWord32 {
    /// The word at `address`.
    ///
    /// # Errors
    /// [`WordError::Outside`] if the address is not aligned to 4 bytes.
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
    fn location(&self) -> Location {
        Location::stream(self.address, self.len)
    }
}

impl StreamMemory for DeviceRange {}

impl Named for DeviceWord32 {
    fn location(&self) -> Location {
        Location::stream(self.0, size_of::<u32>())
    }
}

impl StreamWord<u32> for DeviceWord32 {}

/// The stores by which a kernel rings the card: the record, then, after a system-wide fence, the doorbell at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSend {
    /// The doorbell record.
    pub record_at: HostAddr,
    /// The record's value, in memory byte order.
    pub record: u32,
    /// The doorbell register.
    pub register: HostAddr,
    /// The register's value, in memory byte order.
    pub doorbell: u64,
}

/// A wait that a kernel performs. When it has seen the completion, it stores `flag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelWait {
    /// The word of the CQE that the kernel polls.
    pub word_at: HostAddr,
    /// The condition under which the CQE is complete.
    pub condition: Condition,
    /// The condition's value.
    pub value: u32,
    /// The word into which the kernel stores that it no longer needs the CQE. It stays for the life of the process.
    pub flag_at: HostAddr,
    /// The value to store there.
    pub flag: u32,
}

/// Timelines of kernels' waits, oldest first, with their last points. Never freed, as a kernel's end is unknown.
static TIMELINES: Mutex<VecDeque<(Arc<Timeline>, TimelinePoint)>> = Mutex::new(VecDeque::new());
/// The timeline of kernels' sends, which counts as having passed everything.
static PASSED: Mutex<Option<Arc<Timeline>>> = Mutex::new(None);

fn new_timeline() -> Result<Arc<Timeline>, QueueError> {
    Timeline::new(0).map_err(|source| QueueError::Full(QueueFull::NoMemory { reason: source.to_string() }))
}

/// A timeline on which no kernel waits, and its next point.
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
    /// Gives the send to a kernel, which rings the card for it. gdsync treats it as posted from now on. It cannot see
    /// when the kernel rings, so it lets later sends of the queue pair be posted elsewhere at once: the program keeps
    /// their order.
    ///
    /// # Errors
    /// [`QueueError`] if an earlier send is not posted, or the queue pair has failed. The send is dropped then.
    pub fn give_to_kernel(mut self) -> Result<KernelSend, QueueError> {
        let Release::Ring(Doorbell { record_at, record, register, value }) = self.place().1 else {
            return Err(QueueError::State(StateError::Triggered { qpn: self.qp_num() }));
        };
        let timeline = passed_timeline()?;
        self.commit(&timeline, timeline.progress())?;
        drop(self.into_queue_pair());
        Ok(KernelSend { record_at, record, register, doorbell: value })
    }
}

impl PreparedWait {
    /// Gives the wait to a kernel. Until the kernel has stored its flag, [`CompletionQueue::poll_unawaited`] does not
    /// return the completion, and its CQE is not returned to the card.
    ///
    /// # Errors
    /// [`QueueFull::NoMemory`] if there is none for the flag; [`OrderError::NothingToWaitFor`] if the completion has
    /// been polled and the card owns the CQE again. The wait is dropped then.
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

    /// Abandons the wait, and leaves its completion to the CPU: the next wait is for the completion after it. (If the
    /// wait is dropped instead, the next one is prepared for the same completion.)
    pub fn leave_completion_to_cpu(self) {
        self.give_up();
    }
}

#[cfg(all(test, feature = "software-card"))]
mod tests;

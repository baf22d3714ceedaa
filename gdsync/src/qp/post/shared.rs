//! Shared receive queues: making, posting, and counting their receives in completion queues.

use crate::qp::CompletionQueueInner;
use crate::queue::request::data_segments;
use crate::queue::shared::{Credits, SharedRecvState};
use crate::queue::{QueueError, RequestError, Ring, StateError};
use crate::util::options::options;
use crate::verbs::events::{Element, EventSink};
use crate::verbs::{
    AsyncEventKind, DeviceInner, Error, Owned, ProtectionDomain, ProtectionDomainInner, QueuePairError,
    Slice, call,
};
use gdsync_sys::mlx5dv::{self, mlx5dv_obj, mlx5dv_srq};
use gdsync_sys::verbs::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use parking_lot::Mutex;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue of receives that several queue pairs take, in the order in which messages arrive: a program posts as many as
/// it has memory for, instead of as many for each peer.
///
/// It is a cheap handle. The queue lives as long as a handle or one of its queue pairs.
///
/// # Completions
/// A receive completes in the receive completion queue of the queue pair that has taken it
/// ([`Completion::qp_num`](crate::Completion::qp_num)). It may be any of them, so each has room for all: a receive
/// is refused while it may overrun one of them, and a queue pair is refused if its completion queue has no room for
/// the posted receives. Queue pairs that share one completion queue need that room once.
///
/// A stream may wait for receives of a shared queue. A completion queue's entries are for any receive, so as many
/// waits can be prepared as receives are posted. With several completion queues, a receive may complete in any of
/// them, and a wait lasts until enough have completed in its own.
///
/// # Failure
/// A failed queue pair leaves receives that it has not taken to the others, and a partly filled one completes with
/// an error. So no flush ends a wait for a message that never comes, as it does with a queue pair's own receives.
/// When all queue pairs that complete in a queue have failed, the library ends the waits there, once the program
/// has seen the failures (by polling, by an abort, or by reading a fatal event).
///
/// ```
/// use gdsync::qp::SharedReceiveQueue;
/// use gdsync::{Access, CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// let device = Device::software()?;
/// let pd = ProtectionDomain::new(&device)?;
/// let receives = SharedReceiveQueue::new(&pd, 64)?;
/// let queue = CompletionQueue::new(&device, 256)?;
/// let config = QueuePairConfig::default().completion_queues(&queue, &queue).shared_receive_queue(&receives);
/// let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
/// for slot in 0..2 {
///     receives.post_recv(&[region.slice(slot * 8..slot * 8 + 8)?], slot as u64)?;
/// }
/// let mut senders = Vec::new();
/// for text in [b"one", b"two"] {
///     let (ours, theirs) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, Default::default())?);
///     ours.connect(&theirs.endpoint()?, Default::default())?;
///     theirs.connect(&ours.endpoint()?, Default::default())?;
///     theirs.post_send(WorkRequest::send_inline(text))?;
///     let arrived = loop {
///         if let Some(completion) = queue.poll()? {
///             break completion;
///         }
///     };
///     let mut bytes = [0; 3];
///     region.read(arrived.wr_id as usize * 8, &mut bytes);
///     assert_eq!((&bytes, arrived.qp_num), (text, ours.number()));
///     senders.push((ours, theirs));
/// }
/// assert_eq!(receives.posted(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(crate) inner: Arc<SharedReceives>,
}

options! {
    /// Configuration of a [`SharedReceiveQueue`]. A number stands for that many receives. The provider may grant
    /// larger sizes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct SharedReceiveQueueConfig
    /// 128 receives of up to 4 slices.
    default {
        /// Receives posted at a time.
        depth: u32 = 128,
        /// Slices of one receive.
        segments: u32 = 4,
    }
}

impl From<u32> for SharedReceiveQueueConfig {
    fn from(depth: u32) -> Self {
        SharedReceiveQueueConfig::default().depth(depth)
    }
}

#[derive(Debug)]
pub(crate) struct SharedReceives {
    /// Its queue pairs hold this, so they were destroyed before.
    raw: Owned<ibv_srq>,
    number: u32,
    segments: u32,
    credits: Arc<Credits>,
    state: Mutex<SharedRecvState>,
    /// Completion queues of its receives, each with the number of its queue pairs.
    queues: Mutex<Vec<(Arc<CompletionQueueInner>, u32)>>,
    /// True once the card takes no more receives from it.
    has_failed: AtomicBool,
    pd: Arc<ProtectionDomainInner>,
}

impl SharedReceiveQueue {
    /// Makes a shared receive queue. A number stands for that many receives.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses, for example because the device has no queues of that size.
    pub fn new(pd: &ProtectionDomain, config: impl Into<SharedReceiveQueueConfig>) -> Result<Self, Error> {
        let config = config.into();
        let device = &pd.inner.device;
        let attr =
            ibv_srq_attr { max_wr: config.depth.max(1), max_sge: config.segments.max(1), srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is allocated as long as `pd` lives, and the struct is valid.
        let raw = unsafe { (device.api.create_srq)(pd.inner.raw(), &mut init) };
        let raw = call::pointer("ibv_create_srq", raw, || format!("{config:?}"))?;
        // SAFETY: queue pairs hold the queue, so none takes from it any more. After this, the card accesses neither
        // the ring nor the receives' memory.
        let raw = unsafe { Owned::new(raw, device.api.destroy_srq, "ibv_destroy_srq") };
        let (state, number) = describe(&raw, device)?;
        let inner = Arc::new(SharedReceives {
            raw,
            number,
            segments: init.attr.max_sge,
            credits: Arc::new(Credits::new(state.capacity())),
            state: Mutex::new(state),
            queues: Mutex::default(),
            has_failed: AtomicBool::new(false),
            pd: pd.inner.clone(),
        });
        // The list holds it weakly.
        let sink: Arc<dyn EventSink> = inner.clone();
        device.queue_pairs.add(Arc::downgrade(&sink));
        Ok(SharedReceiveQueue { inner })
    }

    /// Posts a receive: the next message for any of the queue pairs fills the slices in order.
    ///
    /// # Errors
    /// [`QueueError`] if there is no room here or in a completion queue, a limit is exceeded, a slice is of another
    /// domain or not writable, or the queue has failed. Nothing is posted then.
    pub fn post_recv(&self, slices: &[Slice], wr_id: u64) -> Result<(), QueueError> {
        let inner = &*self.inner;
        if inner.has_failed.load(Ordering::Acquire) {
            return Err(QueueError::State(StateError::SharedReceivesFailed { srqn: inner.number }));
        }
        slices.iter().try_for_each(|slice| inner.check(slice))?;
        let segments = data_segments(slices, inner.segments)?;
        let regions = slices.iter().map(|slice| slice.region().clone()).collect();
        // Counted first: of this receive and other work of a completion queue, the later one sees the other.
        inner.credits.take()?;
        // No lock is held while completion queues are locked, and one of them at a time.
        let queues = inner.queues.lock().clone();
        if let Err(full) = queues.iter().try_for_each(|(queue, _)| queue.lock().check_not_overbooked()) {
            inner.credits.give_back();
            return Err(full);
        }
        inner.state.lock().post(&segments, wr_id, regions);
        Ok(())
    }

    /// Returns the receives that are posted and whose completions were not polled.
    pub fn posted(&self) -> u32 {
        self.inner.credits.posted()
    }

    /// Returns the most receives that it holds: at least those asked for.
    pub fn depth(&self) -> u32 {
        self.inner.credits.capacity()
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        self.inner.number
    }
}

fn describe(raw: &Owned<ibv_srq>, device: &DeviceInner) -> Result<(SharedRecvState, u32), Error> {
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut out: mlx5dv_srq = unsafe { std::mem::zeroed() };
    out.comp_mask = mlx5dv::MLX5DV_SRQ_MASK_SRQN;
    let mut obj = mlx5dv_obj::default();
    obj.srq.r#in = raw.as_ptr();
    obj.srq.out = &mut out;
    // SAFETY: the queue is alive, and `out` is a valid place.
    let rc = unsafe { (device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_SRQ) };
    call::status("mlx5dv_init_obj", rc, || "shared receive queue".to_owned())?;
    // libmlx5 names the first and the last entry of the list, which covers the ring.
    let entries = out.tail.wrapping_add(1);
    if out.head != 0 || !entries.is_power_of_two() || entries > 1 << 16 {
        return Err(QueuePairError::layout("shared receive queue entries", entries));
    }
    if out.stride < 32 || !out.stride.is_power_of_two() {
        return Err(QueuePairError::layout("shared receive queue stride", out.stride));
    }
    if out.comp_mask & mlx5dv::MLX5DV_SRQ_MASK_SRQN == 0 {
        return Err(QueuePairError::layout("shared receive queue number", out.srqn));
    }
    // SAFETY: the provider describes ring and record of the queue, valid until it is destroyed, which
    // `raw` does when it is dropped.
    let ring = unsafe { Ring::new(out.buf.cast(), entries, out.stride as usize, out.dbrec) };
    Ok((SharedRecvState::new(ring, 0, out.tail as u16), out.srqn))
}

impl SharedReceives {
    pub(crate) fn raw(&self) -> NonNull<ibv_srq> {
        self.raw.raw()
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomainInner> {
        &self.pd
    }

    pub(crate) fn credits(&self) -> &Arc<Credits> {
        &self.credits
    }

    fn check(&self, slice: &Slice) -> Result<(), QueueError> {
        let (region, lkey) = (slice.region(), slice.lkey());
        if !region.pd.is(&self.pd) {
            return Err(QueueError::Request(RequestError::OtherDomain { lkey, srqn: self.number }));
        }
        if !region.is_writable() {
            return Err(QueueError::Request(RequestError::NotWritable { lkey }));
        }
        Ok(())
    }

    /// Matches a completion with its receive, which becomes free. The completion queue's state is locked.
    pub(crate) fn retire(&self, index: u16) -> Option<u64> {
        let wr_id = self.state.lock().retire(index)?;
        self.credits.give_back();
        Some(wr_id)
    }
}

impl EventSink for SharedReceives {
    fn number(&self) -> u32 {
        self.number
    }

    fn is_queue_pair(&self) -> bool {
        false
    }

    fn is_concerned(&self, element: Element) -> bool {
        match element {
            Element::Srq(raw) => self.raw.as_ptr() as usize == raw,
            Element::Device => true,
            Element::Cq(_) | Element::Qp(_) | Element::Port(_) => false,
        }
    }

    fn fail_by_event(&self, _: AsyncEventKind, _: Element) {
        self.has_failed.store(true, Ordering::Release);
    }
}

/// A queue pair's use of a shared receive queue, whose receives count in the queue pair's completion queue.
#[derive(Debug)]
pub(crate) struct SrqAttachment {
    pub(crate) receives: Arc<SharedReceives>,
    queue: Arc<CompletionQueueInner>,
}

impl SrqAttachment {
    pub(crate) fn new(
        receives: &Arc<SharedReceives>,
        queue: &Arc<CompletionQueueInner>,
    ) -> Result<Self, QueuePairError> {
        // Before checking the queue: a receive posted meanwhile is counted here, or sees the queue.
        let mut queues = receives.queues.lock();
        match queues.iter_mut().find(|(known, _)| Arc::ptr_eq(known, queue)) {
            Some((_, queue_pairs)) => *queue_pairs += 1,
            None => queues.push((queue.clone(), 1)),
        }
        drop(queues);
        let has_room = queue.lock().add_credits(&receives.credits);
        // From here on, dropping it undoes both.
        let made = SrqAttachment { receives: receives.clone(), queue: queue.clone() };
        if has_room {
            return Ok(made);
        }
        let posted = receives.credits.posted();
        Err(QueuePairError::NoRoomForReceives { cqn: queue.number(), posted })
    }
}

impl Drop for SrqAttachment {
    fn drop(&mut self) {
        self.queue.lock().remove_credits(&self.receives.credits);
        let mut queues = self.receives.queues.lock();
        let place = queues.iter().position(|(queue, _)| Arc::ptr_eq(queue, &self.queue));
        if let Some(place) = place {
            queues[place].1 -= 1;
            if queues[place].1 == 0 {
                // Not the last handle of the queue: `self` has another.
                queues.swap_remove(place);
            }
        }
    }
}

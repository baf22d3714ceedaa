//! Completion queues.

use crate::qp::config::CompletionQueueConfig;
use crate::qp::domain::{Maker, ParentDomain, QueueDomain};
use crate::qp::wait::PreparedWait;
use crate::qp::{QueuePairInner, devx};
use crate::queue::Ring;
use crate::queue::completion::{Completion, CompletionState};
use crate::queue::error::{PollError, QueueError};
use crate::verbs::call;
use crate::verbs::device::{Device, DeviceInner};
use crate::verbs::error::{Error, QueuePairError};
use crate::verbs::pd::ProtectionDomain;
use gdsync_sys::mlx5dv::{self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::verbs::{self, ibv_cq, ibv_cq_init_attr_ex};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// A completion queue, of one [`crate::QueuePair`] or shared by several: polled by the CPU, waited for by streams, or both.
///
/// A cheap handle, which keeps the queue's memory but not its queue pairs.
///
/// # Sharing
/// Queue pairs share what [`CompletionQueue::new`] makes ([`crate::QueuePairConfig::completion_queues`]), for one direction or both.
/// Entries come in the order in which the card writes them, each with the number of its queue pair. A queue pair posts only what
/// the ring has room for, whoever has booked the rest.
///
/// A wait is for an entry, not for a queue pair's: the n-th wait is over when the card has written n entries, of whichever queue
/// pairs. A stream that must know *which* message has come shares no queue for it, or waits for all that it has posted. The error
/// of one queue pair ends waits, too, also those that counted on another's; polling tells. A batch keeps every queue pair that
/// completed here when its waits were prepared; and where its stream fails, all of them fail.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CompletionQueueInner>,
}

#[derive(Debug)]
pub(crate) struct CompletionQueueInner {
    object: Object,
    state: parking_lot::Mutex<CompletionState>,
    /// Queue pairs that complete here, by number.
    queue_pairs: Mutex<Vec<(u32, Weak<QueuePairInner>)>>,
    /// The domain whose allocator supplied the ring.
    pub(crate) domain: Arc<QueueDomain>,
}

/// The queue as who made it knows it. Destroyed when dropped: the queue pairs that complete there hold the queue, so they are gone.
#[derive(Debug)]
enum Object {
    Verbs(VerbsCq),
    Devx(devx::Cq),
}

#[derive(Debug)]
struct VerbsCq {
    raw: NonNull<ibv_cq>,
    number: u32,
    device: Arc<DeviceInner>,
}

// SAFETY: libibverbs allows a completion queue to be destroyed from any thread; nothing else is done with it.
unsafe impl Send for VerbsCq {}
// SAFETY: as above.
unsafe impl Sync for VerbsCq {}

impl CompletionQueue {
    /// Makes a completion queue that queue pairs can share. A number stands for the configuration of a queue with so many entries.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses, for example because the device has no queues of that length;
    /// [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`] for those made by commands; [`PlacementError`](crate::cuda::PlacementError).
    pub fn new(device: &Device, config: impl Into<CompletionQueueConfig>) -> Result<Self, Error> {
        let CompletionQueueConfig { entries, queues, placement } = config.into();
        // A ring's memory comes by way of a domain. This one has no other use.
        let pd = ProtectionDomain::new(device)?;
        let domain = QueueDomain::of_completions(&pd.inner, queues, placement)?;
        Ok(CompletionQueue { inner: CompletionQueueInner::new(&domain, entries)? })
    }

    /// Takes the next completion, if there is one. Completions come in the order in which the card wrote them.
    ///
    /// # Errors
    /// [`PollError::BadCompletion`](crate::queue::PollError::BadCompletion) where the card wrote something that makes no sense; the entry is skipped.
    /// [`PollError::DeviceAttached`](crate::queue::PollError::DeviceAttached) where kernels read the queue.
    pub fn poll(&self) -> Result<Option<Completion>, PollError> {
        self.inner.poll()
    }

    /// As [`Self::poll`], but leaves alone what a stream has still to look at, and what a wait is prepared for: libgdsync's
    /// polling, on which programs rely that start to poll before they decide who waits.
    ///
    /// A wait that is never posted is in the way until it is dropped, or given up ([`PreparedWait::leave_to_cpu`]).
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_unawaited(&self) -> Result<Option<Completion>, PollError> {
        self.inner.take(Take::Unawaited).transpose()
    }

    /// Prepares a wait for the next completion that nobody waits for yet.
    ///
    /// What follows the wait on a stream sees what the card wrote before the completion; for messages in GPU memory, see
    /// [`crate::cuda`].
    ///
    /// The work that completes must be prepared or posted already. The same completion can still be polled by the CPU,
    /// and has to be: polling is what frees its place in the queues.
    ///
    /// # Errors
    /// [`OrderError::NothingToWaitFor`](crate::queue::OrderError::NothingToWaitFor).
    pub fn prepare_wait(&self) -> Result<PreparedWait, QueueError> {
        PreparedWait::new(self.inner.clone())
    }

    /// Entries of the ring.
    pub fn entries(&self) -> u32 {
        self.inner.lock().entries()
    }
}

impl CompletionQueueInner {
    pub(crate) fn new(domain: &Arc<QueueDomain>, entries: u32) -> Result<Arc<Self>, Error> {
        let (object, ring) = match &domain.maker {
            Maker::Verbs(parent) => {
                let (cq, ring) = VerbsCq::new(domain, parent, entries)?;
                (Object::Verbs(cq), ring)
            }
            Maker::Devx(devx) => {
                let (cq, ring) = devx::Cq::new(devx, entries)?;
                (Object::Devx(cq), ring)
            }
        };
        let ring = ring.write_combined(domain.placement.completions_are_combined());
        Ok(Arc::new(CompletionQueueInner {
            object,
            state: parking_lot::Mutex::new(CompletionState::new(ring)),
            queue_pairs: Mutex::default(),
            domain: domain.clone(),
        }))
    }

    pub(crate) fn number(&self) -> u32 {
        match &self.object {
            Object::Verbs(cq) => cq.number,
            Object::Devx(cq) => cq.number(),
        }
    }

    /// The queue as verbs know it, if they do.
    pub(crate) fn verbs(&self) -> Option<NonNull<ibv_cq>> {
        match &self.object {
            Object::Verbs(cq) => Some(cq.raw),
            Object::Devx(_) => None,
        }
    }

    /// The queue's state. Lock order: completion queue, then send or receive queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> parking_lot::MutexGuard<'_, CompletionState> {
        self.state.lock()
    }

    pub(crate) fn attach(&self, queue_pair: &Arc<QueuePairInner>) {
        let mut known = self.queue_pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Both of its queues may complete here.
        if !known.iter().any(|(_, weak)| ptr::eq(weak.as_ptr(), Arc::as_ptr(queue_pair))) {
            known.push((queue_pair.number(), Arc::downgrade(queue_pair)));
        }
    }

    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.domain.pd.device
    }

    /// A queue pair is gone. Its state's lock is held, so that none of its number takes its place meanwhile.
    pub(crate) fn detach(&self, state: &mut CompletionState, qpn: u32) {
        let mut known = self.queue_pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|(number, weak)| *number != qpn || weak.strong_count() > 0);
        state.forget(qpn);
    }

    /// The queue pairs that complete here; none, where one of them is going.
    pub(crate) fn attached(&self) -> Option<Vec<Arc<QueuePairInner>>> {
        let known = self.queue_pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if known.iter().any(|(_, weak)| weak.strong_count() == 0) {
            return None;
        }
        known.iter().map(|(_, weak)| weak.upgrade()).collect()
    }

    fn owner_of(&self, qpn: u32) -> Owner {
        let known = self.queue_pairs.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match known.iter().find(|(number, _)| *number == qpn) {
            Some((_, weak)) => weak.upgrade().map_or(Owner::Going, Owner::Here),
            None => Owner::Unknown,
        }
    }

    pub(crate) fn poll(&self) -> Result<Option<Completion>, PollError> {
        self.take(Take::Next).transpose()
    }

    /// Takes what has completed, for persistent requests that have claimed it. Other completions are set aside for whoever polls.
    pub(crate) fn progress(&self) {
        self.take(Take::Aside);
    }

    /// Takes the next completion; or, to set them aside, all of them.
    fn take(&self, what: Take) -> Option<Result<Completion, PollError>> {
        let aside = what == Take::Aside;
        loop {
            let mut state = self.lock();
            if !aside && let Some(taken) = state.set_aside.pop_front() {
                return Some(taken);
            }
            if let Some(qpn) = state.attached_to() {
                return if aside { None } else { Some(Err(PollError::DeviceAttached { qpn })) };
            }
            if what == Take::Unawaited && state.is_awaited() {
                return None;
            }
            let raw = state.peek()?;
            let bad = |reason| PollError::BadCompletion { index: raw.index, reason };
            let qpn = raw.cqe.qpn();
            if state.take_left_behind(raw.index) {
                state.advance();
                continue;
            }
            let owner = self.owner_of(qpn);
            if let Owner::Here(queue_pair) = &owner
                && let Some(flush) = queue_pair.flush_of_unknown_cause(&raw.cqe)
            {
                // The cause may be in its other queue, whose lock is not taken under this one. Then from the beginning.
                let psn = queue_pair.psn.load(Ordering::Relaxed);
                drop(state);
                queue_pair.fail_with_work(psn, flush);
                continue;
            }
            state.advance();
            let queue_pair = match owner {
                Owner::Here(queue_pair) => queue_pair,
                // Nobody is there to hear of it; what is booked for it goes with the queue pair.
                Owner::Going => continue,
                Owner::Unknown => {
                    let taken = Err(bad(format!("queue pair {qpn:#x} does not complete here")));
                    if !aside {
                        return Some(taken);
                    }
                    state.set_aside.push_back(taken);
                    continue;
                }
            };
            let mut taken = queue_pair.complete(&mut state, &raw).map_err(bad).transpose();
            if aside {
                // Under the same lock, so that completions stay in their order.
                state.set_aside.extend(taken.take());
            }
            drop(state);
            if queue_pair.failure().is_some() {
                queue_pair.flush_unposted();
            }
            // The queue pair may be the last handle: it must not be dropped under the lock that its drop takes.
            drop(queue_pair);
            if taken.is_some() {
                return taken;
            }
        }
    }
}

/// What is taken from a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    /// The next completion.
    Next,
    /// The same, unless a stream has still to look at it.
    Unawaited,
    /// All of them, to set them aside.
    Aside,
}

/// Whose an entry is.
enum Owner {
    Here(Arc<QueuePairInner>),
    /// A queue pair's that is being destroyed.
    Going,
    Unknown,
}

impl VerbsCq {
    /// The queue, and its ring, which must not be used longer.
    fn new(domain: &QueueDomain, parent: &ParentDomain, entries: u32) -> Result<(Self, Ring), Error> {
        let device = &domain.pd.device;
        let mut attr = ibv_cq_init_attr_ex {
            cqe: entries.saturating_sub(1).max(1),
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: verbs::IBV_CQ_INIT_ATTR_MASK_PD,
            flags: 0,
            parent_domain: parent.raw(),
        };
        let mut mlx5_attr = mlx5dv_cq_init_attr::default();
        // SAFETY: the context is open and the parent domain allocated as long as `domain` lives; both structs are valid.
        let raw = unsafe { (device.api.mlx5dv_create_cq)(device.context(), &mut attr, &mut mlx5_attr) };
        let raw = call::pointer("mlx5dv_create_cq", raw, || format!("{entries} entries"))?;
        let mut made = VerbsCq { raw, number: 0, device: device.clone() };
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut out: mlx5dv_cq = unsafe { std::mem::zeroed() };
        let mut obj = mlx5dv_obj::default();
        obj.cq.r#in = raw.as_ptr();
        obj.cq.out = &mut out;
        // SAFETY: the queue was just created, and `out` is a valid place.
        let rc = unsafe { (device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_CQ) };
        call::status("mlx5dv_init_obj", rc, || "completion queue".to_owned())?;
        if out.cqe_size as usize != CQE_SIZE {
            return Err(Error::QueuePair(QueuePairError::Layout {
                what: "completion entry size",
                value: out.cqe_size.into(),
            }));
        }
        if !out.cqe_cnt.is_power_of_two() {
            return Err(Error::QueuePair(QueuePairError::Layout {
                what: "completion queue entries",
                value: out.cqe_cnt.into(),
            }));
        }
        // SAFETY: libmlx5 describes the ring and record of the queue, valid until it is destroyed, which `Drop` does.
        let ring = unsafe { Ring::new(out.buf.cast(), out.cqe_cnt, CQE_SIZE, out.dbrec) };
        made.number = out.cqn;
        Ok((made, ring))
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        // SAFETY: created by us; nothing completes there any more, as `Object` says.
        call::on_drop("ibv_destroy_cq", unsafe { (self.device.api.destroy_cq)(self.raw.as_ptr()) });
    }
}

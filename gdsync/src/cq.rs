//! Completion queues.

use crate::device::{Device, DeviceInner};
use crate::error::{Error, QueueError};
use crate::memory::arena::Arena;
use crate::pd::{ProtectionDomain, ProtectionDomainInner};
use crate::qp::QueuePairInner;
use crate::queue::Ring;
use crate::queue::completion::{Completion, CompletionState};
use crate::queue::wait::PreparedWait;
use crate::verbs_call;
use gdsync_sys::mlx5dv::{self, mlx5dv_cq, mlx5dv_cq_init_attr, mlx5dv_obj};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::verbs::{self, ibv_cq, ibv_cq_init_attr_ex, ibv_pd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// A completion queue, of one [`crate::QueuePair`] or shared by several: polled by the CPU, waited for by streams, or both.
///
/// A cheap handle, which keeps the queue's memory but not its queue pairs.
///
/// # Sharing
/// Queue pairs share what [`CompletionQueue::new`] makes ([`crate::QueuePair::with_completion_queues`]), for one direction or both.
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
    raw: NonNull<ibv_cq>,
    number: u32,
    state: parking_lot::Mutex<CompletionState>,
    /// Queue pairs that complete here, by number.
    queue_pairs: Mutex<Vec<(u32, Weak<QueuePairInner>)>>,
    /// The domain whose allocator supplied the ring.
    domain: Arc<QueueDomain>,
}

// SAFETY: libibverbs allows a completion queue to be destroyed from any thread; everything else is behind the locks.
unsafe impl Send for CompletionQueueInner {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueueInner {}

impl CompletionQueue {
    /// Makes a completion queue that queue pairs can share, of at least so many entries: at best as many as their work requests
    /// that are outstanding at a time, twice. With fewer, posting says [`QueueError::CompletionQueueFull`] early.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses, for example because the device has no queues of that length.
    pub fn new(device: &Device, entries: u32) -> Result<Self, Error> {
        // A ring's memory comes by way of a domain. This one has no other use.
        let pd = ProtectionDomain::new(device)?;
        let domain = QueueDomain::without_register(&pd.inner)?;
        Ok(CompletionQueue { inner: CompletionQueueInner::new(&domain, entries)? })
    }

    /// Takes the next completion, if there is one. Completions come in the order in which the card wrote them.
    ///
    /// # Errors
    /// [`QueueError::BadCompletion`] where the card wrote something that makes no sense; the entry is skipped.
    pub fn poll(&self) -> Result<Option<Completion>, QueueError> {
        self.inner.poll()
    }

    /// As [`Self::poll`], but leaves alone what a stream has still to look at, and what a wait is prepared for: libgdsync's
    /// polling, on which programs rely that start to poll before they decide who waits.
    ///
    /// A wait that is never posted is in the way until it is dropped, or given up ([`PreparedWait::leave_to_cpu`]).
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_behind_streams(&self) -> Result<Option<Completion>, QueueError> {
        self.inner.take(Take::BehindStreams).transpose()
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
    /// [`QueueError::NothingToWaitFor`].
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
        let device = &domain.pd.device;
        let mut attr = ibv_cq_init_attr_ex {
            cqe: entries.saturating_sub(1).max(1),
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: verbs::IBV_CQ_INIT_ATTR_MASK_PD,
            flags: 0,
            parent_domain: domain.raw(),
        };
        let mut mlx5_attr = mlx5dv_cq_init_attr::default();
        // SAFETY: the context is open and the parent domain allocated as long as `domain` lives; both structs are valid.
        let raw = unsafe { (device.api.mlx5dv_create_cq)(device.context(), &mut attr, &mut mlx5_attr) };
        let raw = verbs_call::pointer("mlx5dv_create_cq", raw, || format!("{entries} entries"))?;
        let guard = DestroyCq { raw, domain };
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut out: mlx5dv_cq = unsafe { std::mem::zeroed() };
        let mut obj = mlx5dv_obj::default();
        obj.cq.r#in = raw.as_ptr();
        obj.cq.out = &mut out;
        // SAFETY: the queue was just created, and `out` is a valid place.
        let rc = unsafe { (device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_CQ) };
        verbs_call::status("mlx5dv_init_obj", rc, || "completion queue".to_owned())?;
        if out.cqe_size as usize != CQE_SIZE {
            return Err(Error::Layout { what: "completion entry size", value: out.cqe_size.into() });
        }
        if !out.cqe_cnt.is_power_of_two() {
            return Err(Error::Layout { what: "completion queue entries", value: out.cqe_cnt.into() });
        }
        // SAFETY: libmlx5 describes the ring and record of the queue, valid until it is destroyed, which `Drop` does.
        let ring = unsafe { Ring::new(out.buf.cast(), out.cqe_cnt, CQE_SIZE, out.dbrec) };
        std::mem::forget(guard);
        Ok(Arc::new(CompletionQueueInner {
            raw,
            number: out.cqn,
            state: parking_lot::Mutex::new(CompletionState::new(ring)),
            queue_pairs: Mutex::default(),
            domain: domain.clone(),
        }))
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
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

    pub(crate) fn poll(&self) -> Result<Option<Completion>, QueueError> {
        self.take(Take::Next).transpose()
    }

    /// Takes what has completed, for persistent requests that have claimed it. Other completions are set aside for whoever polls.
    pub(crate) fn progress(&self) {
        self.take(Take::Aside);
    }

    /// Takes the next completion; or, to set them aside, all of them.
    fn take(&self, what: Take) -> Option<Result<Completion, QueueError>> {
        let aside = what == Take::Aside;
        loop {
            let mut state = self.lock();
            if !aside && let Some(taken) = state.set_aside.pop_front() {
                return Some(taken);
            }
            if what == Take::BehindStreams && state.is_awaited() {
                return None;
            }
            let raw = state.peek()?;
            let bad = |reason| QueueError::BadCompletion { index: raw.index, reason };
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
    BehindStreams,
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

impl Drop for CompletionQueueInner {
    fn drop(&mut self) {
        // SAFETY: created by us; the queue pairs that complete here hold an `Arc` of this, so they are gone.
        verbs_call::on_drop("ibv_destroy_cq", unsafe { (self.domain.pd.device.api.destroy_cq)(self.raw()) });
    }
}

/// Destroys a queue whose construction did not get to its end.
struct DestroyCq<'a> {
    raw: NonNull<ibv_cq>,
    domain: &'a QueueDomain,
}

impl Drop for DestroyCq<'_> {
    fn drop(&mut self) {
        // SAFETY: created by us and not handed to anybody.
        verbs_call::on_drop("ibv_destroy_cq", unsafe {
            (self.domain.pd.device.api.destroy_cq)(self.raw.as_ptr())
        });
    }
}

/// A thread domain and a parent domain: what gives a queue pair a doorbell register of its own, which a GPU can be given
/// without a CPU sharing it, and its rings a place in the pinned arena. A shared completion queue needs the latter only.
#[derive(Debug)]
pub(crate) struct QueueDomain {
    raw: NonNull<ibv_pd>,
    td: Option<NonNull<verbs::ibv_td>>,
    pub(crate) pd: Arc<ProtectionDomainInner>,
}

// SAFETY: libibverbs allows these objects to be used from any thread; the thread domain's promise (one thread at a time
// posts) is kept because gdsync posts under the queue's lock.
unsafe impl Send for QueueDomain {}
// SAFETY: as above.
unsafe impl Sync for QueueDomain {}

impl QueueDomain {
    pub(crate) fn new(pd: &Arc<ProtectionDomainInner>) -> Result<Arc<Self>, Error> {
        let (api, context) = (pd.device.api, pd.device.context());
        let mut td_attr = verbs::ibv_td_init_attr::default();
        // SAFETY: the context is open as long as `pd` lives.
        let td = unsafe { (api.alloc_td)(context, &mut td_attr) };
        let td = verbs_call::pointer("ibv_alloc_td", td, String::new)?;
        Self::with_register(pd, Some(td)).inspect_err(|_| {
            // SAFETY: allocated above, used by nobody.
            verbs_call::on_drop("ibv_dealloc_td", unsafe { (api.dealloc_td)(td.as_ptr()) });
        })
    }

    fn without_register(pd: &Arc<ProtectionDomainInner>) -> Result<Arc<Self>, Error> {
        Self::with_register(pd, None)
    }

    fn with_register(
        pd: &Arc<ProtectionDomainInner>,
        td: Option<NonNull<verbs::ibv_td>>,
    ) -> Result<Arc<Self>, Error> {
        let (api, context) = (pd.device.api, pd.device.context());
        let mut attr = verbs::ibv_parent_domain_init_attr {
            pd: pd.raw(),
            td: td.map_or(ptr::null_mut(), NonNull::as_ptr),
            comp_mask: verbs::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | verbs::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(allocate_queue_memory),
            free: Some(free_queue_memory),
            pd_context: (&raw const pd.device.arena).cast_mut().cast(),
        };
        // SAFETY: as above; the arena lives in the device, which `pd` keeps, and so does everything that may still free.
        let raw = unsafe { (api.alloc_parent_domain)(context, &mut attr) };
        let raw = verbs_call::pointer("ibv_alloc_parent_domain", raw, String::new)?;
        Ok(Arc::new(QueueDomain { raw, td, pd: pd.clone() }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for QueueDomain {
    fn drop(&mut self) {
        let api = self.pd.device.api;
        // SAFETY: allocated by us; queues made in it hold an `Arc` of this, so they are gone.
        verbs_call::on_drop("ibv_dealloc_pd (parent domain)", unsafe { (api.dealloc_pd)(self.raw()) });
        if let Some(td) = self.td {
            // SAFETY: as above; the parent domain that named it is gone.
            verbs_call::on_drop("ibv_dealloc_td", unsafe { (api.dealloc_td)(td.as_ptr()) });
        }
    }
}

/// Called by the verbs provider for the memory of queues: the arena of the device, given as `pd_context`.
unsafe extern "C" fn allocate_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    size: libc::size_t,
    alignment: libc::size_t,
    _resource_type: u64,
) -> *mut libc::c_void {
    // SAFETY: `QueueDomain::new` gave the address of the device's arena, which outlives the domain.
    let arena = unsafe { &*pd_context.cast::<Arena>() };
    arena.allocate(size, alignment.max(1).next_power_of_two()).map_or(ptr::null_mut(), |block| block.cast())
}

/// Counterpart of [`allocate_queue_memory`].
unsafe extern "C" fn free_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    block: *mut libc::c_void,
    _resource_type: u64,
) {
    // SAFETY: as in `allocate_queue_memory`.
    let arena = unsafe { &*pd_context.cast::<Arena>() };
    if !arena.release(block.cast()) {
        tracing::error!(?block, "the verbs provider freed queue memory that it was not given");
    }
}

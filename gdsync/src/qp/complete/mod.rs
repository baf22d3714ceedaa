//! Completion queues: polling, waits by streams, and events.

pub(crate) mod channel;
#[deny(unsafe_code)]
mod poll;
#[deny(unsafe_code)]
mod status;
#[cfg(feature = "tokio")]
pub(super) mod tokio;
#[deny(unsafe_code)]
pub(crate) mod wait;

use self::channel::{ArmFor, ChannelInner, CompletionChannel, CqEvents};
pub use self::poll::WaitError;
use self::wait::PreparedWait;
use crate::cuda::QueuePlacement;
use crate::memop::explain;
use crate::qp::make::{self, CqHandle, CqObject, NewCq, QueueDomain};
use crate::qp::{Completing, QueuePairInner};
use crate::queue::completion::CompletionState;
use crate::queue::{Completion, PollError, QueueError, StateError};
use crate::util::options::options;
use crate::verbs::{Device, DeviceInner, Error, ProtectionDomain, QueueApi, QueuePairError, Transport};
use gdsync_status::Published;
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::verbs::ibv_cq;
use parking_lot::Mutex;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

/// A queue to which the card reports completed work, of one [`crate::QueuePair`] or of several that share it. The CPU
/// polls it, streams wait for its entries, or both.
///
/// It is a cheap handle, which keeps the queue's memory but not its queue pairs.
///
/// # Sharing
/// Queue pairs share a queue made by [`CompletionQueue::new`] ([`crate::QueuePairConfig::completion_queues`]), for
/// one direction or both. Entries are in the order in which the card writes them, each with the number of its queue
/// pair. A queue pair posts only what the ring has room for beside the others' reserved entries.
///
/// A wait is for an entry, not for a queue pair: the n-th wait ends when the card has written n entries, of any
/// queue pair. A stream that must know *which* message arrived needs a queue that is not shared, or waits for all
/// posted work. One queue pair's error also ends waits meant for another's work; polling returns the error. A batch
/// keeps every queue pair that completed here when its waits were prepared. If its stream fails, all of them fail.
///
/// ```
/// use gdsync::{Access, CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let shared = CompletionQueue::new(&device, 256)?;
/// let config = QueuePairConfig::default().completion_queues(&shared, &shared);
/// let queue_pair = QueuePair::new(&pd, config)?;
/// queue_pair.connect(&queue_pair.endpoint()?, Default::default())?; // to itself
/// queue_pair.post_recv(&[region.slice(..32)?], 1)?;
/// queue_pair.post_send(WorkRequest::send(&[region.slice(32..)?]).wr_id(2))?;
/// let mut seen = Vec::new();
/// while seen.len() < 2 {
///     seen.extend(shared.poll()?.map(|completion| completion.wr_id));
/// }
/// seen.sort();
/// assert_eq!(seen, [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CompletionQueueInner>,
}

options! {
    /// Configuration of a [`CompletionQueue`]. A number stands for that many entries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct CompletionQueueConfig<'a>
    /// 256 entries in host memory, made by verbs, without a channel.
    default {
        /// Least number of entries. Twice the work requests outstanding at a time is best; with fewer, posting is
        /// refused early.
        entries: u32 = 256,
        /// Interface that makes it. A queue made by commands serves only queue pairs made by commands, which may
        /// also complete in one made by verbs.
        queues: QueueApi = QueueApi::Verbs,
        /// Memory of its ring and its record. With GPU memory on the system's provider, commands always make it.
        placement: QueuePlacement = QueuePlacement::HOST,
    }
    no setters {
        /// Channel that reports its entries. None for a queue that is only polled, or waited for by streams.
        channel: Option<&'a CompletionChannel> = None,
    }
}

impl<'a> CompletionQueueConfig<'a> {
    /// Makes a channel report the queue's entries ([`CompletionQueue::wait`], [`CompletionQueue::arm`]). Several
    /// queues may share one. Verbs make such a queue.
    #[must_use]
    pub fn channel(self, channel: &'a CompletionChannel) -> Self {
        CompletionQueueConfig { channel: Some(channel), ..self }
    }
}

impl From<u32> for CompletionQueueConfig<'_> {
    fn from(entries: u32) -> Self {
        CompletionQueueConfig::default().entries(entries)
    }
}

#[derive(Debug)]
pub(crate) struct CompletionQueueInner {
    object: CqObject,
    number: u32,
    /// None without a channel. Dropped after the object, which uses the channel.
    pub(crate) events: Option<CqEvents>,
    state: SpinMutex<CompletionState, Yield>,
    pub(crate) sharing: CqSharing,
    queue_pairs: Mutex<Vec<(u32, Weak<QueuePairInner>)>>,
    pub(crate) device: Arc<DeviceInner>,
    /// Publishes the waits of streams here, as part of the process's status.
    _published: Published,
    /// The domain whose allocator supplied the ring.
    pub(crate) domain: Arc<QueueDomain>,
}

impl CompletionQueue {
    /// Makes a completion queue that queue pairs can share. A number stands for that many entries.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses, for example because the device has no queues of that length;
    /// [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`] for those made by commands;
    /// [`PlacementError`](crate::cuda::PlacementError) for memory that it cannot have;
    /// [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a channel of another device,
    /// [`DevxError::NoChannel`](crate::advanced::DevxError) if commands would make a queue with a channel.
    pub fn new<'a>(device: &Device, config: impl Into<CompletionQueueConfig<'a>>) -> Result<Self, Error> {
        let CompletionQueueConfig { entries, queues, placement, channel } = config.into();
        let channel = channel.map(|channel| &channel.inner);
        if channel.is_some_and(|channel| !channel.is_of(&device.inner)) {
            return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name().to_owned() }));
        }
        // The domain only supplies the ring's memory.
        let pd = ProtectionDomain::new(device)?;
        let domain = QueueDomain::new(&pd.inner, queues, placement, false)?;
        Ok(CompletionQueue { inner: CompletionQueueInner::make(&domain, entries, channel)? })
    }

    /// Takes the next completion, if there is one, in the order in which the card wrote them.
    ///
    /// # Errors
    /// [`PollError::BadCompletion`](crate::queue::PollError::BadCompletion) for an entry that makes no sense, which is
    /// skipped. [`PollError::DeviceAttached`](crate::queue::PollError::DeviceAttached) if kernels read the queue.
    pub fn poll(&self) -> Result<Option<Completion>, PollError> {
        self.inner.poll()
    }

    /// Polls as [`Self::poll`] does, but stops at an entry that a stream has not read yet, or that a wait is
    /// prepared for. This is libgdsync's polling. Programs rely on it if they start to poll before they decide
    /// whether a stream or the CPU waits.
    ///
    /// A wait that is never posted blocks polling until it is dropped or given up ([`PreparedWait::leave_completion_to_cpu`]).
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_unawaited(&self) -> Result<Option<Completion>, PollError> {
        self.inner.poll_unawaited()
    }

    /// Prepares a wait for the next completion that no other wait is for.
    ///
    /// Operations after the wait on a stream see everything that the card wrote before the completion; for messages
    /// in GPU memory, see [`crate::cuda`].
    ///
    /// The work that completes must be prepared or posted already. The CPU still has to poll the same completion,
    /// which frees its place in the queues.
    ///
    /// # Errors
    /// [`OrderError::NothingToWaitFor`](crate::queue::OrderError::NothingToWaitFor) if no such work is outstanding.
    pub fn prepare_wait(&self) -> Result<PreparedWait, QueueError> {
        PreparedWait::new(self.inner.clone())
    }

    /// Returns the bytes of the entry with this index, counted as [`Completion::index`] counts. A lap of the ring later the
    /// card overwrites them with the next entry. For tools that compare cards.
    #[doc(hidden)]
    pub fn entry_bytes(&self, index: u32) -> [u8; CQE_SIZE] {
        self.inner.lock().bytes(index)
    }

    /// Returns the number of entries of the ring.
    pub fn entries(&self) -> u32 {
        self.inner.lock().entries()
    }

    /// Returns whether both are the same queue.
    pub fn is_same(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the channel that it was made with.
    pub fn channel(&self) -> Option<CompletionChannel> {
        self.inner.events.as_ref().map(|events| CompletionChannel { inner: events.channel.clone() })
    }

    /// Arms the queue: the channel gets one event when the card writes an entry, whether a stream waits for it or not.
    ///
    /// An entry that is already written may or may not raise the event, and one that persistent requests read does
    /// not: arm first, then poll until there is nothing, then sleep. Arming again before the event has no effect,
    /// except that a queue armed for solicited entries can be armed for all.
    ///
    /// # Errors
    /// [`StateError::NoChannel`] without a channel, [`StateError::CompletionQueueLost`] after an overrun,
    /// [`StateError::DeviceAttached`] if kernels read the queue.
    pub fn arm(&self, what: ArmFor) -> Result<(), StateError> {
        self.inner.arm(what)
    }

    /// Says why no completion comes, with what is known of the queue pairs that complete here and of their peers, as
    /// [`crate::Stream::explain_wait`] does; `None` if nothing is known.
    pub fn explain_wait(&self) -> Option<String> {
        let (Ok(queue_pairs) | Err(queue_pairs)) = self.inner.attached();
        explain(&Completing::of(&queue_pairs))
    }
}

pub(crate) type CompletionGuard<'a> = SpinMutexGuard<'a, CompletionState, Yield>;

impl CompletionQueueInner {
    pub(crate) fn make(
        domain: &Arc<QueueDomain>,
        entries: u32,
        channel: Option<&Arc<ChannelInner>>,
    ) -> Result<Arc<Self>, Error> {
        let raw_channel = channel.map(|channel| channel.raw());
        // SAFETY: the queue keeps its channel, which is of this device, and drops it last.
        let NewCq { object, number, ring, arm } =
            unsafe { make::completion_queue(domain, entries, raw_channel) }?;
        let events = channel.zip(arm).map(|(channel, arm)| CqEvents::new(channel.clone(), arm, number));
        let inner = Arc::new_cyclic(|inner| CompletionQueueInner {
            _published: status::publish(inner.clone()),
            object,
            number,
            events,
            state: SpinMutex::new(CompletionState::new(ring)),
            sharing: CqSharing::default(),
            queue_pairs: Mutex::default(),
            device: domain.pd.device.clone(),
            domain: domain.clone(),
        });
        if let (Some(events), Some(raw)) = (&inner.events, inner.verbs()) {
            events.channel.add(raw, &inner);
        }
        Ok(inner)
    }

    /// Admits a queue pair that has not made the queue.
    ///
    /// # Errors
    /// [`QueuePairError::PrivateCompletionQueue`].
    pub(crate) fn share(&self) -> Result<(), Error> {
        let refused = Error::QueuePair(QueuePairError::PrivateCompletionQueue { cqn: self.number() });
        if self.sharing.share() { Ok(()) } else { Err(refused) }
    }

    /// Returns the event state, and the number of events so far.
    pub(crate) fn events(&self) -> Result<(&CqEvents, u32), StateError> {
        let events = self.events.as_ref().ok_or(StateError::NoChannel { cqn: self.number() })?;
        Ok((events, events.count()))
    }

    pub(crate) fn arm(&self, what: ArmFor) -> Result<(), StateError> {
        let (events, _) = self.events()?;
        let state = self.lock();
        if state.is_lost() {
            return Err(StateError::CompletionQueueLost { cqn: self.number() });
        }
        events.arm(what, state.next_to_poll()?);
        Ok(())
    }

    pub(crate) fn lose(&self) {
        self.lock().lose();
        if let Some(events) = &self.events {
            events.wake();
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the verbs object; none for a queue made by commands.
    pub(crate) fn verbs(&self) -> Option<NonNull<ibv_cq>> {
        match &self.object {
            CqObject::Verbs(raw) => Some(raw.raw()),
            CqObject::Devx(_) => None,
        }
    }

    /// Returns the queue as the maker of a queue pair names it.
    pub(super) fn handle(&self) -> CqHandle {
        CqHandle { number: self.number, verbs: self.verbs() }
    }

    /// Locks the queue's state. Lock order: completion queue, then send or receive queue.
    ///
    /// As with a send queue, a store releases the lock. Making, resetting and destroying queue pairs hold it for
    /// long, and so does a poll that drops the last use of a region. A thread that finds it taken yields: one with
    /// a real-time policy must not share a core with other users of the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> CompletionGuard<'_> {
        self.state.lock()
    }

    /// Locks this queue and, if it is another, the other one, in the order of their addresses: two queue pairs may
    /// use them the other way round.
    pub(crate) fn lock_both<'a>(
        &'a self,
        other: &'a Self,
    ) -> (CompletionGuard<'a>, Option<CompletionGuard<'a>>) {
        let (at, other_at) = (ptr::from_ref(self), ptr::from_ref(other));
        if other_at < at {
            let first = other.lock();
            return (self.lock(), Some(first));
        }
        let first = self.lock();
        (first, (other_at != at).then(|| other.lock()))
    }

    /// Locks the state, unless another thread holds the lock.
    pub(crate) fn try_lock(&self) -> Option<CompletionGuard<'_>> {
        self.state.try_lock()
    }

    pub(crate) fn attach(&self, queue_pair: &Arc<QueuePairInner>) {
        let mut known = self.queue_pairs.lock();
        // Both of its queues may complete here.
        if !known.iter().any(|(_, weak)| ptr::eq(weak.as_ptr(), Arc::as_ptr(queue_pair))) {
            known.push((queue_pair.number, Arc::downgrade(queue_pair)));
        }
    }

    /// Removes a destroyed queue pair. The state's lock is held, so that no queue pair with the same number is
    /// attached meanwhile. Returns the counters of its receives that were not polled.
    pub(crate) fn detach(&self, state: &mut CompletionState, qpn: u32) -> Vec<u16> {
        self.unlist(qpn);
        state.forget(qpn)
    }

    /// Removes a queue pair that has no entries here.
    pub(crate) fn unlist(&self, qpn: u32) {
        let mut known = self.queue_pairs.lock();
        known.retain(|(number, weak)| *number != qpn || weak.strong_count() > 0);
    }

    /// Returns the queue pairs that complete here.
    ///
    /// # Errors
    /// The others, if one is being destroyed. They may be the last handles by now, whose drop takes the queues' locks.
    pub(crate) fn attached(&self) -> Result<Vec<Arc<QueuePairInner>>, Vec<Arc<QueuePairInner>>> {
        let known = self.queue_pairs.lock();
        let living: Vec<_> = known.iter().filter_map(|(_, weak)| weak.upgrade()).collect();
        if living.len() == known.len() { Ok(living) } else { Err(living) }
    }

    /// Returns whether nothing but that queue pair's sends completes here.
    pub(crate) fn is_of_sends_of(&self, queue_pair: &QueuePairInner) -> bool {
        let known = self.queue_pairs.lock();
        let alone = matches!(&known[..], [(_, weak)] if ptr::eq(weak.as_ptr(), queue_pair));
        // An initiator has no receives.
        alone && (queue_pair.config.transport == Transport::Dc || !ptr::eq(self, &*queue_pair.recv_cq))
    }
}

#[derive(Debug, Default)]
pub(crate) struct CqSharing(AtomicU8);

impl CqSharing {
    /// Any number of queue pairs may complete there.
    const SHARED: u8 = 0;
    /// A queue pair has made it for one of its queues.
    const OWN: u8 = 1;
    /// Waits rely on its exclusive use.
    const ALONE: u8 = 2;

    pub(crate) fn own(&self) {
        self.0.store(Self::OWN, Ordering::Release);
    }

    /// Claims exclusive use. Returns whether only the work of one of its maker's queues completes there, from now on.
    pub(crate) fn is_alone(&self) -> bool {
        let taken = self.0.compare_exchange(Self::OWN, Self::ALONE, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(Self::ALONE)
    }

    fn share(&self) -> bool {
        let shared = self.0.compare_exchange(Self::OWN, Self::SHARED, Ordering::AcqRel, Ordering::Acquire);
        shared != Err(Self::ALONE)
    }
}

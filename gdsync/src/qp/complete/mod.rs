//! Completion queues: polling, waiting by streams, events, and what they share.

pub(crate) mod channel;
#[deny(unsafe_code)]
mod poll;
#[deny(unsafe_code)]
mod status;
#[cfg(feature = "tokio")]
pub(super) mod tokio;
#[deny(unsafe_code)]
pub(crate) mod wait;

use self::channel::{ArmFor, ChannelInner, CompletionChannel, CqEvents, deadline};
use self::wait::PreparedWait;
use crate::cuda::QueuePlacement;
use crate::qp::QueuePairInner;
use crate::qp::make::{self, CqHandle, CqObject, NewCq, QueueDomain};
use crate::queue::completion::CompletionState;
use crate::queue::{Completion, PollError, QueueError, StateError};
use crate::util::options::options;
use crate::verbs::{Device, DeviceInner, Error, ProtectionDomain, QueueApi, QueuePairError, Transport};
use gdsync_status::Published;
use gdsync_sys::verbs::ibv_cq;
use parking_lot::Mutex;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A completion queue, of one [`crate::QueuePair`] or shared by several: polled by the CPU, waited
/// for by streams, or both.
///
/// A cheap handle, which keeps the queue's memory but not its queue pairs.
///
/// # Sharing
/// Queue pairs share what [`CompletionQueue::new`] makes
/// ([`crate::QueuePairConfig::completion_queues`]), for one direction or both. Entries come in the
/// order in which the card writes them, each with the number of its queue pair. A queue pair posts
/// only what the ring has room for, beside what the others have booked.
///
/// A wait is for an entry, not for a queue pair's: the n-th wait is over when the card has written
/// n entries, of whichever queue pairs. A stream that must know *which* message arrived shares no
/// queue for it, or waits for all that it has posted. The error of one queue pair ends waits, too,
/// also those that counted on another's; polling returns the error. A batch keeps every queue pair
/// that completed here when its waits were prepared; and where its stream fails, all of them fail.
///
/// ```
/// use gdsync::{Access, CompletionQueue, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
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
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CompletionQueueInner>,
}

options! {
    /// How a [`CompletionQueue`] is made. A number is the configuration of a queue with so many
    /// entries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct CompletionQueueConfig<'a>
    /// 256 entries in the host's memory, made by verbs, without a channel.
    default {
        /// Entries, at least: at best twice as many as the work requests that may be outstanding at
        /// a time. With fewer, posting is refused early.
        entries: u32 = 256,
        /// The interface that makes it. In a queue made by commands of the device complete only
        /// queue pairs that are made so, too; these may also complete in one made by verbs.
        queues: QueueApi = QueueApi::Verbs,
        /// Whose memory its ring and its record lie in. With a GPU's memory on the system's
        /// provider, commands make it in any case.
        placement: QueuePlacement = QueuePlacement::HOST,
    }
    no setters {
        /// What tells that it has entries; none of a queue that is only polled, or waited for by
        /// streams.
        channel: Option<&'a CompletionChannel> = None,
    }
}

impl<'a> CompletionQueueConfig<'a> {
    /// Has a channel tell that the queue has entries ([`CompletionQueue::wait`],
    /// [`CompletionQueue::arm`]). Several queues may share one. The queue is made by verbs.
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
    /// Of a queue with a channel. Dropped after the object, which uses the channel.
    pub(crate) events: Option<CqEvents>,
    state: SpinMutex<CompletionState, Yield>,
    pub(crate) sharing: CqSharing,
    /// Queue pairs that complete here, by number.
    queue_pairs: Mutex<Vec<(u32, Weak<QueuePairInner>)>>,
    pub(crate) device: Arc<DeviceInner>,
    /// It is asked what streams wait for here.
    _published: Published,
    /// The domain whose allocator supplied the ring.
    pub(crate) domain: Arc<QueueDomain>,
}

impl CompletionQueue {
    /// Makes a completion queue that queue pairs can share. A number stands for the configuration
    /// of a queue with so many entries.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses, for example because the device has no queues of
    /// that length; [`OutOfRange`](crate::verbs::OutOfRange) and [`Error::Devx`] for those made by
    /// commands; [`PlacementError`](crate::cuda::PlacementError);
    /// [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a channel of another device,
    /// [`DevxError::NoChannel`](crate::verbs::DevxError) where commands would make a queue with one.
    pub fn new<'a>(device: &Device, config: impl Into<CompletionQueueConfig<'a>>) -> Result<Self, Error> {
        let CompletionQueueConfig { entries, queues, placement, channel } = config.into();
        let channel = channel.map(|channel| &channel.inner);
        if channel.is_some_and(|channel| !channel.is_of(&device.inner)) {
            return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name().to_owned() }));
        }
        // A ring's memory comes by way of a domain. This one has no other use.
        let pd = ProtectionDomain::new(device)?;
        let domain = QueueDomain::new(&pd.inner, queues, placement, false)?;
        Ok(CompletionQueue { inner: CompletionQueueInner::make(&domain, entries, channel)? })
    }

    /// Takes the next completion, if there is one. Completions come in the order in which the card
    /// wrote them.
    ///
    /// # Errors
    /// [`PollError::BadCompletion`](crate::queue::PollError::BadCompletion) where the card wrote
    /// something that makes no sense; the entry is skipped.
    /// [`PollError::DeviceAttached`](crate::queue::PollError::DeviceAttached) where kernels read
    /// the queue.
    pub fn poll(&self) -> Result<Option<Completion>, PollError> {
        self.inner.poll()
    }

    /// As [`Self::poll`], but leaves alone what a stream has still to look at, and what a wait is
    /// prepared for: libgdsync's polling. Programs rely on it that start to poll before they decide
    /// whether a stream or the CPU waits.
    ///
    /// A wait that is never posted is in the way until it is dropped, or given up
    /// ([`PreparedWait::leave_to_cpu`]).
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_unawaited(&self) -> Result<Option<Completion>, PollError> {
        self.inner.poll_unawaited()
    }

    /// Prepares a wait for the next completion that no other wait is for.
    ///
    /// What follows the wait on a stream sees what the card wrote before the completion; for
    /// messages in GPU memory, see [`crate::cuda`].
    ///
    /// The work that completes must be prepared or posted already. The same completion can still be
    /// polled by the CPU, and has to be: polling is what frees its place in the queues.
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

    /// Whether both are the same queue.
    pub fn is_same(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The channel that it was made with.
    pub fn channel(&self) -> Option<CompletionChannel> {
        self.inner.events.as_ref().map(|events| CompletionChannel { inner: events.channel.clone() })
    }

    /// Has the channel tell once when the card writes an entry, whether a stream waits for it or not.
    ///
    /// An entry that is there already may tell or may not, and one that persistent requests read does
    /// not: arm first, then poll until there is nothing, then sleep. Arming again before the channel has
    /// told changes nothing, but that a queue that was armed for solicited entries only may be armed for
    /// all.
    ///
    /// # Errors
    /// [`StateError::NoChannel`], [`StateError::CompletionQueueLost`], and
    /// [`StateError::DeviceAttached`] where kernels read the queue.
    pub fn arm(&self, what: ArmFor) -> Result<(), StateError> {
        self.inner.arm(what)
    }

    /// Takes the next completion, and sleeps until there is one, but not longer than `timeout`. The
    /// queue needs a channel. Any number of threads may wait, for one queue or for several of a channel;
    /// each completion is returned once.
    ///
    /// Completions of persistent requests are theirs, and end no wait.
    ///
    /// ```
    /// use gdsync::qp::CompletionChannel;
    /// use gdsync::{CompletionQueue, CompletionQueueConfig, Device, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
    /// use std::time::Duration;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = Device::software()?;
    /// # let pd = ProtectionDomain::new(&device)?;
    /// let channel = CompletionChannel::new(&device)?;
    /// let queue = CompletionQueue::new(&device, CompletionQueueConfig::from(64).channel(&channel))?;
    /// let queue_pair = QueuePair::new(&pd, QueuePairConfig::default().completion_queues(&queue, &queue))?;
    /// queue_pair.connect(&queue_pair.endpoint()?, Default::default())?; // to itself
    /// assert_eq!(queue.wait(Duration::from_millis(1))?, None);
    /// queue_pair.post_send(WorkRequest::nop().wr_id(5))?;
    /// let done = queue.wait(Duration::from_secs(30))?;
    /// assert_eq!(done.map(|done| done.wr_id), Some(5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`WaitError`]: those of [`Self::poll`] and [`Self::arm`], and those of the channel.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, WaitError> {
        let deadline = deadline(timeout);
        loop {
            // Before it is armed: an event that comes after that ends the sleep.
            let (events, seen) = self.inner.events()?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            self.inner.arm(ArmFor::Next)?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if !events.sleep(seen, deadline)? {
                return Ok(None);
            }
        }
    }
}

/// Why [`CompletionQueue::wait`] returns no completion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue cannot be armed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// The channel cannot be read.
    #[error(transparent)]
    Verbs(#[from] Error),
}

impl CompletionQueueInner {
    /// Makes a completion queue in a domain.
    pub(crate) fn make(
        domain: &Arc<QueueDomain>,
        entries: u32,
        channel: Option<&Arc<ChannelInner>>,
    ) -> Result<Arc<Self>, Error> {
        let raw_channel = channel.map(|channel| channel.raw());
        let NewCq { object, number, ring, arm } = make::completion_queue(domain, entries, raw_channel)?;
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

    /// A queue pair that has not made it is to complete here, too.
    ///
    /// # Errors
    /// [`QueuePairError::AwaitedAlone`].
    pub(crate) fn share(&self) -> Result<(), Error> {
        let refused = Error::QueuePair(QueuePairError::AwaitedAlone { cqn: self.number() });
        if self.sharing.share() { Ok(()) } else { Err(refused) }
    }

    /// What tells that it has entries, and how often it has.
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

    /// The card writes nothing here any more.
    pub(crate) fn lose(&self) {
        self.lock().lose();
        if let Some(events) = &self.events {
            events.wake();
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The queue as verbs know it, if they do.
    pub(crate) fn verbs(&self) -> Option<NonNull<ibv_cq>> {
        match &self.object {
            CqObject::Verbs(raw) => Some(raw.raw()),
            CqObject::Devx(_) => None,
        }
    }

    /// How the maker of a queue pair names it.
    pub(super) fn handle(&self) -> CqHandle {
        CqHandle { number: self.number, verbs: self.verbs() }
    }

    /// The queue's state. Lock order: completion queue, then send or receive queue.
    ///
    /// A lock that is released by a store, as that of a send queue is. Making, resetting and destroying queue pairs
    /// hold it for long, and so does a poll that lets go of the last of a region. A thread that finds it taken
    /// yields: one of a real-time policy must not share a core with others that use the queue.
    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinMutexGuard<'_, CompletionState, Yield> {
        self.state.lock()
    }

    /// As [`Self::lock`], unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<SpinMutexGuard<'_, CompletionState, Yield>> {
        self.state.try_lock()
    }

    pub(crate) fn attach(&self, queue_pair: &Arc<QueuePairInner>) {
        let mut known = self.queue_pairs.lock();
        // Both of its queues may complete here.
        if !known.iter().any(|(_, weak)| ptr::eq(weak.as_ptr(), Arc::as_ptr(queue_pair))) {
            known.push((queue_pair.number, Arc::downgrade(queue_pair)));
        }
    }

    /// A queue pair was destroyed. The state's lock is held, so that no queue pair with the same
    /// number is attached meanwhile.
    ///
    /// Returns the counters of its receives that were not polled.
    pub(crate) fn detach(&self, state: &mut CompletionState, qpn: u32) -> Vec<u16> {
        self.unlist(qpn);
        state.forget(qpn)
    }

    /// The same, where no entry is the queue pair's.
    pub(crate) fn unlist(&self, qpn: u32) {
        let mut known = self.queue_pairs.lock();
        known.retain(|(number, weak)| *number != qpn || weak.strong_count() > 0);
    }

    /// The queue pairs that complete here.
    ///
    /// # Errors
    /// One of them is being destroyed. These are the others: they may be the last handles by now, whose drop takes the
    /// locks of their queues.
    pub(crate) fn attached(&self) -> Result<Vec<Arc<QueuePairInner>>, Vec<Arc<QueuePairInner>>> {
        let known = self.queue_pairs.lock();
        let living: Vec<_> = known.iter().filter_map(|(_, weak)| weak.upgrade()).collect();
        if living.len() == known.len() { Ok(living) } else { Err(living) }
    }

    /// True where nothing completes here but the sends of that queue pair.
    pub(crate) fn is_of_sends_of(&self, queue_pair: &QueuePairInner) -> bool {
        let known = self.queue_pairs.lock();
        let alone = matches!(&known[..], [(_, weak)] if ptr::eq(weak.as_ptr(), queue_pair));
        // An initiator has no receives.
        alone && (queue_pair.config.transport == Transport::Dc || !ptr::eq(self, &*queue_pair.recv_cq))
    }
}

/// Whether queue pairs may share a completion queue.
#[derive(Debug, Default)]
pub(crate) struct CqSharing(AtomicU8);

impl CqSharing {
    /// Any number of queue pairs may complete there.
    const SHARED: u8 = 0;
    /// A queue pair has made it for one of its own queues.
    const OWN: u8 = 1;
    /// Waits there count on it that nothing else completes there.
    const ALONE: u8 = 2;

    pub(crate) fn own(&self) {
        self.0.store(Self::OWN, Ordering::Release);
    }

    /// Whether nothing but the work of one of its maker's queues completes there, for ever.
    pub(crate) fn is_alone(&self) -> bool {
        let taken = self.0.compare_exchange(Self::OWN, Self::ALONE, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(Self::ALONE)
    }

    fn share(&self) -> bool {
        let shared = self.0.compare_exchange(Self::OWN, Self::SHARED, Ordering::AcqRel, Ordering::Acquire);
        shared != Err(Self::ALONE)
    }
}

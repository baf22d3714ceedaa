//! Completion queues.

use crate::qp::channel::{Told, deadline};
use crate::qp::create::CqObject;
use crate::qp::domain::QueueDomain;
use crate::qp::{ArmFor, CompletionChannel, PreparedWait, QueuePairInner, status};
use crate::queue::completion::CompletionState;
use crate::queue::{Completion, PollError, QueueError, StateError};
use crate::verbs::{DeviceInner, Error, QueuePairError, Transport};
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

#[derive(Debug)]
pub(crate) struct CompletionQueueInner {
    pub(super) object: CqObject,
    pub(super) number: u32,
    /// Of a queue with a channel. Dropped after the object, which uses the channel.
    pub(crate) told: Option<Told>,
    pub(super) state: SpinMutex<CompletionState, Yield>,
    pub(crate) company: Company,
    /// Queue pairs that complete here, by number.
    pub(super) queue_pairs: Mutex<Vec<(u32, Weak<QueuePairInner>)>>,
    pub(crate) device: Arc<DeviceInner>,
    /// It is asked what streams wait for here.
    pub(super) _published: Published,
    /// The domain whose allocator supplied the ring.
    pub(crate) domain: Arc<QueueDomain>,
}

impl CompletionQueue {
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
        status::polled(self.inner.take(Take::Unawaited))
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
        self.inner.told.as_ref().map(|told| CompletionChannel { inner: told.channel.clone() })
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
            let (told, seen) = self.inner.told()?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            self.inner.arm(ArmFor::Next)?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if !told.sleep(seen, deadline)? {
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
    /// A queue pair that has not made it is to complete here, too.
    ///
    /// # Errors
    /// [`QueuePairError::AwaitedAlone`].
    pub(crate) fn share(&self) -> Result<(), Error> {
        let refused = Error::QueuePair(QueuePairError::AwaitedAlone { cqn: self.number() });
        if self.company.share() { Ok(()) } else { Err(refused) }
    }

    /// What tells that it has entries, and how often it has.
    pub(crate) fn told(&self) -> Result<(&Told, u32), StateError> {
        let told = self.told.as_ref().ok_or(StateError::NoChannel { cqn: self.number() })?;
        Ok((told, told.events()))
    }

    pub(crate) fn arm(&self, what: ArmFor) -> Result<(), StateError> {
        let (told, _) = self.told()?;
        let state = self.lock();
        if state.is_lost() {
            return Err(StateError::CompletionQueueLost { cqn: self.number() });
        }
        told.arm(what, state.next_to_poll()?);
        Ok(())
    }

    /// The card writes nothing here any more.
    pub(crate) fn lose(&self) {
        self.lock().lose();
        if let Some(told) = &self.told {
            told.wake();
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

    fn owner_of(&self, qpn: u32) -> Owner {
        let known = self.queue_pairs.lock();
        // The newest: it may have the number of a target that was closed, whose handle is still held.
        match known.iter().rev().find(|(number, _)| *number == qpn) {
            Some((_, weak)) => weak.upgrade().map_or(Owner::Going, Owner::Here),
            None => Owner::Unknown,
        }
    }

    pub(crate) fn poll(&self) -> Result<Option<Completion>, PollError> {
        status::polled(self.take(Take::Next))
    }

    /// Reads what has completed, for persistent requests that have claimed it. Other completions
    /// are set aside for the next poll.
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
            if let Some(qpn) = state.attached {
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
                // The cause may be in its other queue, whose lock is not taken under this one. The
                // loop then starts again.
                let psn = queue_pair.psn.load(Ordering::Relaxed);
                drop(state);
                queue_pair.fail_with_work(psn, flush);
                continue;
            }
            state.advance();
            let queue_pair = match owner {
                Owner::Here(queue_pair) => queue_pair,
                // Not returned; the destruction of the queue pair unbooks its entries.
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
            let completed = queue_pair.complete(&mut state, &raw).map_err(bad);
            let is_hidden = queue_pair.is_dropped.load(Ordering::Relaxed);
            let mut taken = completed.map(|completion| completion.filter(|_| !is_hidden)).transpose();
            if aside {
                // Under the same lock, so that completions stay in their order.
                state.set_aside.extend(taken.take());
            }
            drop(state);
            if queue_pair.failure().is_some() {
                queue_pair.flush_unposted();
            }
            // The queue pair may be the last handle: it must not be dropped under the lock that its
            // drop takes.
            drop(queue_pair);
            if taken.is_some() {
                return taken;
            }
        }
    }
}

/// Whether queue pairs may share a completion queue.
#[derive(Debug, Default)]
pub(crate) struct Company(AtomicU8);

impl Company {
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

/// The queue pair of an entry.
enum Owner {
    Here(Arc<QueuePairInner>),
    /// A queue pair's that is being destroyed.
    Going,
    Unknown,
}

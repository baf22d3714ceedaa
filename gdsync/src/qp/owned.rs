//! Queue pairs with one owner.

use super::complete::Keeping;
use super::monitor::QueuePairMonitor;
use super::reset::ResetError;
use super::{CompletionQueue, QpState, QueuePair, QueuePairInner};
use crate::queue::send::OwnedSends;
use crate::queue::{FailureCause, QueueError, ResetBlocker, StateError, WorkRequest};
use crate::verbs::{AddressHandle, ConnectOptions, DcAddress, Endpoint, Error, Slice, Transport};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

/// A [`QueuePair`] that one thread at a time uses, as the compiler sees to: its posts need no lock, and
/// take no locked instruction. ([`QueuePair::into_owned`] makes one of a queue pair,
/// [`Self::into_shared`] undoes that.)
///
/// Sends, writes and reads of a reliable connection are posted so; others, atomics and changes of memory
/// windows among them, are posted as a [`QueuePair`] posts. So is a request now and then, to book places
/// in the completion queue for those after it: up to half of the free ones, but no more than the send
/// queue has blocks. Queue pairs that share the completion queue find these taken.
///
/// Only posting by the owner is different. Any thread polls the completion queues, and streams wait for
/// completions there. What other threads have to do with the queue pair itself, they do through a
/// [`QueuePairMonitor`]. Nothing can be prepared: a [`PreparedSend`](crate::PreparedSend) may be dropped
/// on any thread, which changes the queue; so streams post nothing here, and persistent requests that
/// were made before are refused ([`StateError::Owned`]).
///
/// ```
/// use gdsync::qp::OwnedQueuePair;
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let mut left: OwnedQueuePair = left.into_owned()?;
/// let target = region.remote();
/// // It may go to another thread, but is of one thread at a time.
/// std::thread::spawn(move || left.post_send(WorkRequest::write_inline(b"hello", target)).map(|()| left))
///     .join()
///     .unwrap()?;
/// # Ok(())
/// # }
/// ```
///
/// Threads cannot share it:
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<gdsync::qp::OwnedQueuePair>();
/// ```
/// They can share a [`QueuePair`], and can hand this one over:
/// ```
/// fn shared<T: Sync>() {}
/// fn handed_over<T: Send>() {}
/// shared::<gdsync::QueuePair>();
/// handed_over::<gdsync::qp::OwnedQueuePair>();
/// ```
#[derive(Debug)]
pub struct OwnedQueuePair {
    // Dropped before the queue pair.
    poster: Poster,
    queue_pair: QueuePair,
}

/// What posts.
#[derive(Debug)]
struct Poster {
    sends: OwnedSends,
    inner: Arc<QueuePairInner>,
    /// One thread at a time.
    _not_sync: PhantomData<Cell<()>>,
}

/// Why a queue pair cannot have one owner, and the queue pair.
#[derive(Debug, thiserror::Error)]
#[error("queue pair {:#x} cannot have one owner: {source}", queue_pair.number())]
pub struct NotOwned {
    /// The queue pair, unchanged.
    pub queue_pair: QueuePair,
    /// Why.
    pub source: OwnerBlocker,
}

/// What keeps a queue pair from having one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnerBlocker {
    /// A trigger releases its sends, which are always prepared.
    #[error("a trigger releases its sends: make it without one")]
    Triggered,
    /// Sends are prepared or outstanding, or kernels drive it.
    #[error(transparent)]
    Outstanding(ResetBlocker),
}

impl QueuePair {
    /// Gives the queue pair to one owner, connected or not, for posts that take no lock. It keeps its
    /// number, its connection and its receives.
    ///
    /// # Errors
    /// [`NotOwned`], with the queue pair: of a trigger, or with sends that are prepared or whose
    /// completions were not polled.
    pub fn into_owned(self) -> Result<OwnedQueuePair, NotOwned> {
        match Poster::new(&self.inner) {
            Ok(poster) => Ok(OwnedQueuePair { poster, queue_pair: self }),
            Err(source) => Err(NotOwned { queue_pair: self, source }),
        }
    }
}

impl OwnedQueuePair {
    /// The queue pair, for any number of threads. What is outstanding stays so.
    pub fn into_shared(self) -> QueuePair {
        let OwnedQueuePair { poster, queue_pair } = self;
        drop(poster);
        queue_pair
    }

    /// As [`QueuePair::post_send`].
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    // Inlined as that is.
    #[inline(always)]
    pub fn post_send(&mut self, request: WorkRequest<'_>) -> Result<(), QueueError> {
        self.poster.post(&request)
    }

    /// As [`QueuePair::post_recv`].
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn post_recv(&self, slices: &[Slice], wr_id: u64) -> Result<(), QueueError> {
        self.queue_pair.post_recv(slices, wr_id)
    }

    /// What other threads may ask and do.
    pub fn monitor(&self) -> QueuePairMonitor {
        QueuePairMonitor::new(&self.queue_pair.inner)
    }

    /// As [`QueuePair::transport`].
    pub fn transport(&self) -> Transport {
        self.queue_pair.transport()
    }

    /// As [`QueuePair::max_inline`].
    pub fn max_inline(&self) -> u32 {
        self.queue_pair.max_inline()
    }

    /// As [`QueuePair::max_message`].
    pub fn max_message(&self) -> u64 {
        self.queue_pair.max_message()
    }

    /// As [`QueuePair::number`].
    pub fn number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// As [`QueuePair::endpoint`].
    ///
    /// # Errors
    /// As [`QueuePair::endpoint`].
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.queue_pair.endpoint()
    }

    /// As [`QueuePair::address_handle`].
    ///
    /// # Errors
    /// As [`QueuePair::address_handle`].
    pub fn address_handle(&self, remote: &Endpoint, options: ConnectOptions) -> Result<AddressHandle, Error> {
        self.queue_pair.address_handle(remote, options)
    }

    /// As [`QueuePair::dc_address`].
    ///
    /// # Errors
    /// As [`QueuePair::dc_address`].
    pub fn dc_address(
        &self,
        target: &Endpoint,
        key: u64,
        options: ConnectOptions,
    ) -> Result<DcAddress, Error> {
        self.queue_pair.dc_address(target, key, options)
    }

    /// As [`QueuePair::connect`].
    ///
    /// # Errors
    /// As [`QueuePair::connect`].
    pub fn connect(&mut self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        self.queue_pair.connect(remote, options)
    }

    /// As [`QueuePair::reset`].
    ///
    /// # Errors
    /// As [`QueuePair::reset`].
    pub fn reset(&mut self) -> Result<(), ResetError> {
        let result = self.queue_pair.reset();
        self.poster.follow();
        result
    }

    /// As [`QueuePair::reconnect`].
    ///
    /// # Errors
    /// As [`QueuePair::reconnect`].
    pub fn reconnect(&mut self, remote: &Endpoint, options: ConnectOptions) -> Result<(), ResetError> {
        let result = self.queue_pair.reconnect(remote, options);
        self.poster.follow();
        result
    }

    /// As [`QueuePair::abort`].
    ///
    /// # Errors
    /// As [`QueuePair::abort`].
    pub fn abort(&self) -> Result<(), Error> {
        self.queue_pair.abort()
    }

    /// As [`QueuePair::failure`].
    pub fn failure(&self) -> Option<FailureCause> {
        self.queue_pair.failure()
    }

    /// As [`QueuePair::send_cq`].
    pub fn send_cq(&self) -> CompletionQueue {
        self.queue_pair.send_cq()
    }

    /// As [`QueuePair::recv_cq`].
    pub fn recv_cq(&self) -> CompletionQueue {
        self.queue_pair.recv_cq()
    }
}

impl Poster {
    fn new(inner: &Arc<QueuePairInner>) -> Result<Self, OwnerBlocker> {
        if inner.trigger.is_some() {
            return Err(OwnerBlocker::Triggered);
        }
        let mut completions = inner.send_cq.lock();
        let mut send = inner.send();
        if let Some(blocker) = send.blocker(false, false) {
            return Err(OwnerBlocker::Outstanding(blocker));
        }
        let status = inner.status();
        inner.ready.own(true);
        drop(status);
        // SAFETY: whatever prepares or posts looks under the lock of the queue whether it is ready for
        // all; the owner is dropped before its handle of the queue pair.
        let sends = unsafe { send.own() };
        completions.add_owner(sends.inbox());
        drop((completions, send));
        Ok(Poster { sends, inner: inner.clone(), _not_sync: PhantomData })
    }

    #[inline(always)]
    fn post(&mut self, request: &WorkRequest<'_>) -> Result<(), QueueError> {
        let inner = &*self.inner;
        let is_plain = request.is_plain(inner.config.transport) && request.window().is_none();
        // Where the queue pair fails from now on, the card flushes what is posted.
        if !(is_plain && inner.ready.for_owner() && self.sends.is_ready()) {
            return self.post_in_full(request);
        }
        // SAFETY: the register belongs to this queue pair, which is alive; a place is booked.
        unsafe { self.sends.post(request, &Keeping(inner)) }
    }

    /// Posts as a queue pair without an owner does, and books places ahead.
    #[cold]
    #[inline(never)]
    fn post_in_full(&mut self, request: &WorkRequest<'_>) -> Result<(), QueueError> {
        let inner = &*self.inner;
        let mut completions = inner.send_cq.lock();
        let mut send = inner.send();
        if !inner.ready.for_owner() {
            return Err(inner.why_not_owners());
        }
        let mut ahead = self.sends.take_ahead();
        let book = |signaled| match ahead.checked_sub(1) {
            Some(left) => {
                ahead = left;
                completions.expect(signaled);
                Ok(())
            }
            None => completions.reserve(signaled),
        };
        // SAFETY: the register belongs to this queue pair, which is alive.
        let posted = unsafe { send.post_now(request, &Keeping(inner), book) };
        if ahead == 0 && posted.is_ok() {
            ahead = completions.book_ahead(send.unused());
        }
        self.sends.follow(&send, ahead);
        posted
    }

    /// Goes on where the queue pair is after it was perhaps reset.
    fn follow(&mut self) {
        let send = self.inner.send();
        let ahead = self.sends.take_ahead();
        self.sends.follow(&send, ahead);
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        let mut completions = self.inner.send_cq.lock();
        // With all that was posted.
        let send = self.inner.send();
        completions.return_booked(self.sends.take_ahead());
        completions.remove_owner(self.sends.inbox());
        let status = self.inner.status();
        self.inner.ready.own(false);
        drop((status, send, completions));
    }
}

impl QueuePairInner {
    /// Why the owner cannot post.
    fn why_not_owners(&self) -> QueueError {
        let qpn = self.number;
        match *self.status() {
            QpState::Connected | QpState::Initialised => QueueError::State(StateError::NotConnected { qpn }),
            QpState::Failed(cause) => QueueError::State(StateError::Failed { qpn, cause }),
        }
    }
}

#[cfg(test)]
mod tests;

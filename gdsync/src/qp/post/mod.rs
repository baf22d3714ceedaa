//! Sends of a queue pair: preparing, posting, and the checks of requests. Receives are in `receives` and, for
//! shared queues, in `shared`.

#[deny(unsafe_code)]
pub(crate) mod receives;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

use self::receives::PreparedReceives;
use crate::memory::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::qp::card::trigger::TriggerInner;
use crate::queue::completion::CompletionState;
use crate::queue::request::{Limits, Rules};
use crate::queue::send::{PostMode, PreviousPost, SendState, WaitRequest};
use crate::queue::{OrderError, QueueError, Release, RequestError, StateError, WorkRequest};
use crate::verbs::{AddressHandle, Slice};
use gdsync_trace::{EventKind, event};
use std::iter;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A send, write or read that is ready in the send queue. Posting it on a stream rings the card.
///
/// Add it to a [`crate::Batch`] and post that. Sends of one queue pair must be posted in the order of their
/// preparation. Dropping a prepared send removes it from the queue if it is the newest; otherwise it becomes a NOP.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let stream = Stream::new(SoftStream::new()?)?;
/// let slices = [region.slice(..8)?];
/// let first = left.prepare(WorkRequest::write(&slices, region.remote().slice(8..16)?))?;
/// let second = left.prepare(WorkRequest::write(&slices, region.remote().slice(16..24)?))?;
/// // The card knows nothing of either yet. The newest can be taken back; the other is rung by the stream.
/// drop(second);
/// stream.post_send(first)?;
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a prepared send does nothing until it is posted in a batch; dropping it takes it back"]
pub struct PreparedSend {
    pub(crate) queue_pair: Arc<QueuePairInner>,
    serial: u64,
    release: Release,
    posted: Option<Posted>,
    /// Receives of its queue pair that are posted with it.
    pub(crate) receives: Option<PreparedReceives>,
}

#[derive(Debug)]
struct Posted {
    sends: PreviousPost,
    tickets: Option<PreviousPost>,
}

impl PreparedSend {
    #[inline]
    pub(crate) fn new(
        queue_pair: Arc<QueuePairInner>,
        request: &WorkRequest<'_>,
        mode: PostMode<impl IntoIterator<Item = WaitRequest>>,
    ) -> Result<Self, QueueError> {
        let enqueued = queue_pair.enqueue(request, mode)?;
        Ok(Self::of(queue_pair, enqueued))
    }

    /// Makes a prepared send of a request that [`QueuePairInner::enqueue`] has left for later.
    #[inline]
    pub(crate) fn of(queue_pair: Arc<QueuePairInner>, (serial, release): (u64, Release)) -> Self {
        PreparedSend { queue_pair, serial, release, posted: None, receives: None }
    }

    /// Returns the queue pair's number.
    pub fn qp_num(&self) -> u32 {
        self.queue_pair.number
    }

    /// Hands the ticket to the program, which releases the send: a kernel, a graph node, a card's RDMA write or the CPU
    /// stores [`Trigger::word_of`](crate::Trigger::word_of) the ticket to the trigger's word. gdsync treats the send as
    /// posted from now on. It cannot see the release, so the program keeps the queue pair until the send has completed.
    ///
    /// # Errors
    /// [`StateError::NoTrigger`](crate::queue::StateError::NoTrigger) without a trigger;
    /// [`OrderError::TicketOutOfOrder`](crate::queue::OrderError::TicketOutOfOrder) if a lower ticket is not posted;
    /// [`OrderError::Stale`](crate::queue::OrderError::Stale) after a reset; [`StateError::Failed`] after a failure.
    /// The send is dropped then.
    pub fn into_ticket(self) -> Result<u64, QueueError> {
        let Release::Ticket(ticket) = self.release else {
            return Err(QueueError::State(StateError::NoTrigger { qpn: self.queue_pair.number }));
        };
        self.queue_pair.life.check_connected()?;
        self.queue_pair.send().check_not_stale(self.serial)?;
        self.trigger().map_or(Ok(()), |trigger| trigger.hand_out(ticket))?;
        self.queue_pair.send().mark_posted(self.serial);
        // Nothing takes it back any more.
        drop(self.into_queue_pair());
        Ok(ticket)
    }

    /// Returns the ticket that releases it; `None` without a trigger.
    pub fn ticket(&self) -> Option<u64> {
        match self.release {
            Release::Ring(_) => None,
            Release::Ticket(ticket) => Some(ticket),
        }
    }

    pub(crate) fn trigger(&self) -> Option<&TriggerInner> {
        self.queue_pair.trigger.as_deref()
    }

    /// Marks it as posted. Returns what hands it to the card; `None` if the card has it already, as its queue pair
    /// failed meanwhile. The caller serializes the posts of that timeline.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<Option<Release>, QueueError> {
        self.queue_pair.life.check_connected()?;
        let mut send = self.queue_pair.send();
        if send.guarded {
            drop(send);
            self.queue_pair.check_not_after_own_wait(self.serial, timeline)?;
            send = self.queue_pair.send();
        }
        let sends = send.post(self.serial, timeline, point)?;
        // A ticket is written in any case: other streams wait until the word has reached it.
        let is_due = !send.is_flushed() || self.queue_pair.trigger.is_some();
        let tickets = match (self.release, &self.queue_pair.trigger) {
            (Release::Ticket(ticket), Some(trigger)) => match trigger.post(ticket, timeline, point) {
                Ok(before) => Some(before),
                Err(error) => {
                    send.undo_post(self.serial, sends);
                    return Err(error);
                }
            },
            _ => None,
        };
        self.posted = Some(Posted { sends, tickets });
        Ok(is_due.then_some(self.release))
    }

    /// Rings the card now, by the CPU, for a send behind a WAIT.
    ///
    /// # Errors
    /// The order errors of [`crate::QueuePair::post_send`]; the queue pair has failed. The send is dropped then.
    pub(crate) fn ring(self) -> Result<(), QueueError> {
        let mut send = self.queue_pair.send();
        // Under the lock: a later failure finds it.
        self.queue_pair.life.check_connected()?;
        // SAFETY: the register belongs to its queue pair, which is alive.
        unsafe { send.ring_prepared(self.serial) }?;
        drop(send);
        drop(self.into_queue_pair());
        Ok(())
    }

    /// Returns its serial number, and what hands it to the card.
    #[inline]
    pub(crate) fn place(&self) -> (u64, Release) {
        (self.serial, self.release)
    }

    /// Returns what must live until the stream has passed the posted send.
    #[inline]
    pub(crate) fn into_queue_pair(self) -> Arc<QueuePairInner> {
        let mut send = ManuallyDrop::new(self);
        if send.posted.is_some() || send.receives.is_some() {
            drop((send.posted.take(), send.receives.take()));
        }
        // SAFETY: read once, as `send` is not dropped; no other field needs dropping.
        unsafe { std::ptr::read(&send.queue_pair) }
    }

    pub(crate) fn undo(&mut self) {
        self.receives.iter_mut().for_each(PreparedReceives::undo);
        let Some(Posted { sends, tickets }) = self.posted.take() else { return };
        self.queue_pair.send().undo_post(self.serial, sends);
        if let (Release::Ticket(ticket), Some(trigger), Some(before)) =
            (self.release, self.trigger(), tickets)
        {
            trigger.undo_post(ticket, before);
        }
    }
}

impl Drop for PreparedSend {
    fn drop(&mut self) {
        if self.posted.is_some() {
            return;
        }
        let ticket = self.queue_pair.trigger.as_ref().zip(self.ticket());
        if self.queue_pair.life.failure().is_some() {
            // The card flushes the send; later tickets may be released.
            if let Some((trigger, ticket)) = ticket {
                trigger.cancel(ticket);
            }
            // A wait for its completion may be posted already: lets the card flush it.
            self.queue_pair.flush_unposted();
            return;
        }
        let mut completions = self.queue_pair.send_cq.lock();
        let removed =
            self.queue_pair.send().cancel(self.serial, |removed| completions.newest_is_awaited(removed));
        for i in 0..removed.entries {
            completions.unreserve(i < removed.signaled);
        }
        drop(completions);
        // After it has become a NOP, as this may release it.
        if let Some((trigger, ticket)) = ticket {
            trigger.cancel(ticket);
        }
    }
}

impl QueuePairInner {
    /// Writes a request into the send queue, and rings the card or leaves that for later, as `mode` says. Returns
    /// the serial number, and what hands the request to the card. A request left for later needs a
    /// [`PreparedSend`], which takes it back when dropped.
    #[inline(always)]
    pub(crate) fn enqueue(
        &self,
        request: &WorkRequest<'_>,
        mode: PostMode<impl IntoIterator<Item = WaitRequest>>,
    ) -> Result<(u64, Release), QueueError> {
        let mut completions = self.send_cq.lock();
        let mut send = self.send();
        // Under the locks: a queue pair is marked before its queues are flushed or attached to kernels.
        self.life.check_connected()?;
        match mode {
            PostMode::Now => {
                let book = |signaled| completions.reserve(signaled);
                // SAFETY: the register belongs to this queue pair, which is alive.
                let (serial, doorbell) = unsafe { send.post_now(request, &Keeping(self), book) }?;
                Ok((serial, Release::Ring(doorbell)))
            }
            PostMode::Behind(waits) => {
                // Collectors post so, on queue pairs of their own, and `post_send_after`: no stream would write the ticket of a
                // trigger.
                debug_assert!(self.trigger.is_none(), "queue pair {:#x} has a trigger", self.number);
                send.check_turn_of_cpu()?;
                let (serial, release) = self.prepare(&mut send, &mut completions, (request, waits))?;
                // SAFETY: as above.
                unsafe { send.ring_prepared(serial) }?;
                Ok((serial, release))
            }
            PostMode::Later { claim, waits } => {
                let (serial, release) = self.prepare(&mut send, &mut completions, (request, waits))?;
                if let Some(claim) = claim {
                    let _ = claim.entry.set(completions.newest_booked());
                    send.claims.add(serial, claim);
                }
                Ok((serial, release))
            }
        }
    }

    #[inline]
    fn prepare(
        &self,
        send: &mut SendState,
        completions: &mut CompletionState,
        (request, waits): (&WorkRequest<'_>, impl IntoIterator<Item = WaitRequest>),
    ) -> Result<(u64, Release), QueueError> {
        let Some(trigger) = &self.trigger else {
            let (serial, doorbell) = send.prepare(waits, request, self, completions)?;
            event(EventKind::PreparedSend, || [doorbell.register.get(), doorbell.value, 0]);
            return Ok((serial, Release::Ring(doorbell)));
        };
        self.prepare_triggered(send, completions, (request, waits), trigger)
    }

    /// Writes a request behind a WAIT for the trigger's next ticket, and rings the card; or leaves the WAIT to the
    /// trigger's master.
    #[cold]
    fn prepare_triggered(
        &self,
        send: &mut SendState,
        completions: &mut CompletionState,
        (request, waits): (&WorkRequest<'_>, impl IntoIterator<Item = WaitRequest>),
        trigger: &Arc<TriggerInner>,
    ) -> Result<(u64, Release), QueueError> {
        if let Some(master) = &trigger.master {
            // `PersistentSend::card_wait` refuses its queue pairs.
            debug_assert!(waits.into_iter().next().is_none());
            let (serial, ticket) = master.prepare(trigger, self, send, completions, request)?;
            return Ok((serial, Release::Ticket(ticket)));
        }
        let (ticket, wait) = trigger.take_ticket();
        let waits = iter::once(WaitRequest { wait, region: None }).chain(waits);
        let prepared = send.prepare(waits, request, self, completions);
        let (serial, doorbell) = prepared.inspect_err(|_| trigger.cancel(ticket))?;
        // SAFETY: record and register belong to this queue pair, which is alive, and whose lock is held.
        unsafe { doorbell.ring() };
        Ok((serial, Release::Ticket(ticket)))
    }

    /// Refuses the next send if its stream has not passed a wait that only this send, or a later one, ends. If
    /// other work completes in the queue, that may end the wait.
    #[cold]
    fn check_not_after_own_wait(&self, serial: u64, timeline: &Arc<Timeline>) -> Result<(), QueueError> {
        let completions = self.send_cq.lock();
        let mut send = self.send();
        let unposted = if self.send_cq.is_of_sends_of(self) { send.unposted() } else { 0 };
        if let Some(index) = completions.awaited_of_unposted(unposted, Some(timeline)) {
            let (qpn, cqn) = (self.number, self.send_cq.number());
            return Err(QueueError::Order(OrderError::SendAfterOwnWait { qpn, serial, cqn, index }));
        }
        send.guard(completions.awaited_of_unposted(unposted, None).is_some());
        Ok(())
    }

    /// Rings the card instead of a stream, for the proxy.
    pub(crate) fn ring_proxied(&self, record: u32, value: u64) {
        let send = self.send();
        if let Some(doorbell) = send.proxied(record, value) {
            // SAFETY: as in `flush_unposted`.
            unsafe { doorbell.ring() };
        }
    }
}

impl Rules for QueuePairInner {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError> {
        let region = slice.region();
        let lkey = slice.lkey();
        if !region.pd.is(&self.domain.pd) {
            return Err(QueueError::Request(RequestError::WrongDomain { lkey, qpn: self.number }));
        }
        if card_writes && !region.is_writable() {
            return Err(QueueError::Request(RequestError::NotWritable { lkey }));
        }
        Ok(())
    }

    fn check_address(&self, handle: &AddressHandle) -> Result<(), QueueError> {
        if handle.inner.pd.is(&self.domain.pd) && handle.inner.port == self.config.port {
            Ok(())
        } else {
            Err(QueueError::Request(RequestError::OtherAddress { qpn: self.number }))
        }
    }
}

/// The rules for posts of the CPU, which do not hold their regions: the regions learn of the queue, under its lock.
struct Keeping<'a>(&'a QueuePairInner);

impl Rules for Keeping<'_> {
    const KEEPS: bool = true;

    #[inline(always)]
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    #[inline(always)]
    fn check(&self, slice: &Slice, card_writes: bool) -> Result<(), QueueError> {
        if !self.0.known.is_newest(slice.region()) {
            self.0.check(slice, card_writes)?;
            self.0.known.admit(slice.region());
        } else if card_writes && !slice.region().is_writable() {
            return Err(QueueError::Request(RequestError::NotWritable { lkey: slice.lkey() }));
        }
        Ok(())
    }

    fn check_address(&self, handle: &AddressHandle) -> Result<(), QueueError> {
        self.0.check_address(handle)
    }
}

//! A prepared send: a work request in the send queue for which the card was not rung.

use crate::memory::{Timeline, TimelinePoint};
use crate::qp::trigger::TriggerInner;
use crate::qp::{PreparedReceives, QueuePairInner, status};
use crate::queue::completion::CompletionState;
use crate::queue::send::{Before, Hold, Replaced, SendState};
use crate::queue::{Claim, OrderError, QueueError, Release, StateError, WorkRequest};
use std::iter;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A send, write or read that is ready in the send queue; posting it on a stream rings the card.
///
/// Put it into a [`crate::Batch`] and post that. Sends of one queue pair must be posted in the
/// order in which they were prepared. Dropping one instead takes it back: out of the queue where it
/// is the newest, else it becomes a NOP there.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
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
/// # Ok(())
/// # }
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

/// Where the sends of a queue pair were before one was posted, and the tickets of its trigger.
#[derive(Debug)]
struct Posted {
    sends: Before,
    tickets: Option<Before>,
}

impl PreparedSend {
    /// Its completion is stored in `claim`, if there is one; the card performs the waits in front of it.
    #[inline]
    pub(crate) fn new(
        queue_pair: Arc<QueuePairInner>,
        request: &WorkRequest<'_>,
        claim: Option<Arc<Claim>>,
        holds: impl IntoIterator<Item = Hold>,
    ) -> Result<Self, QueueError> {
        let (serial, release) = queue_pair.prepare_send(request, claim, holds)?;
        Ok(Self::assemble(queue_pair, serial, release))
    }

    /// What [`QueuePairInner::prepare_send`] has prepared.
    #[inline]
    pub(crate) fn assemble(queue_pair: Arc<QueuePairInner>, serial: u64, release: Release) -> Self {
        PreparedSend { queue_pair, serial, release, posted: None, receives: None }
    }

    /// The number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.queue_pair.number
    }

    /// Hands the ticket to the program, which releases the send itself: a kernel, a node of a graph, a
    /// card's RDMA write or the CPU stores [`Trigger::word_of`](crate::Trigger::word_of) the ticket to
    /// the trigger's word. gdsync treats the send as posted from now on: it cannot see when it is
    /// released, and the program keeps the queue pair until it has completed.
    ///
    /// # Errors
    /// [`StateError::NoTrigger`](crate::queue::StateError::NoTrigger);
    /// [`OrderError::TicketOutOfOrder`](crate::queue::OrderError::TicketOutOfOrder);
    /// [`OrderError::Stale`](crate::queue::OrderError::Stale); the queue pair has failed. The send is
    /// dropped then.
    pub fn into_ticket(self) -> Result<u64, QueueError> {
        let Release::Ticket(ticket) = self.release else {
            return Err(QueueError::State(StateError::NoTrigger { qpn: self.queue_pair.number }));
        };
        self.queue_pair.check_connected()?;
        self.queue_pair.send().check_not_stale(self.serial)?;
        self.trigger().map_or(Ok(()), |trigger| trigger.give(ticket))?;
        self.queue_pair.send().give(self.serial);
        // Nothing takes it back any more.
        drop(self.into_queue_pair());
        Ok(ticket)
    }

    /// The ticket that releases it; none where its queue pair has no trigger.
    pub fn ticket(&self) -> Option<u64> {
        match self.release {
            Release::Ring(_) => None,
            Release::Ticket(ticket) => Some(ticket),
        }
    }

    pub(crate) fn trigger(&self) -> Option<&TriggerInner> {
        self.queue_pair.trigger.as_deref()
    }

    /// Marks it as posted. Returns what hands it to the card: none where the card got it already
    /// because its queue pair failed meanwhile. The caller holds what orders the posts of that
    /// timeline.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Result<Option<Release>, QueueError> {
        self.queue_pair.check_connected()?;
        let mut send = self.queue_pair.send();
        if send.guarded {
            drop(send);
            self.queue_pair.check_not_behind(self.serial, timeline)?;
            send = self.queue_pair.send();
        }
        let sends = send.post(self.serial, timeline, point)?;
        // A ticket is written all the same: other streams wait until the word has reached it.
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

    /// Rings the card for it now, by the CPU: for one behind a WAIT.
    ///
    /// # Errors
    /// What [`crate::QueuePair::post_send`] says of the order; the queue pair has failed. It is dropped then.
    pub(crate) fn ring(self) -> Result<(), QueueError> {
        let mut send = self.queue_pair.send();
        // Under the lock: a failure that comes later finds it.
        self.queue_pair.check_connected()?;
        // SAFETY: the register belongs to its queue pair, which is alive.
        unsafe { send.ring_prepared(self.serial) }?;
        drop(send);
        // Nothing takes it back any more.
        drop(self.into_queue_pair());
        Ok(())
    }

    /// Which one of its queue pair's sends it is, and what hands it to the card, unless the card got
    /// it already because the queue pair failed.
    #[inline]
    pub(crate) fn place(&self) -> (u64, Release) {
        (self.serial, self.release)
    }

    /// Once posted: what has to live until the stream has passed it.
    #[inline]
    pub(crate) fn into_queue_pair(self) -> Arc<QueuePairInner> {
        let mut send = ManuallyDrop::new(self);
        drop((send.posted.take(), send.receives.take()));
        // SAFETY: read once, as `send` is not dropped; no other field is left that would have to
        // be.
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

impl QueuePairInner {
    /// Writes a request into the send queue, for [`PreparedSend::assemble`]: without one nothing
    /// takes it back. The rest is as with [`PreparedSend::new`].
    #[inline]
    pub(crate) fn prepare_send(
        &self,
        request: &WorkRequest<'_>,
        claim: Option<Arc<Claim>>,
        holds: impl IntoIterator<Item = Hold>,
    ) -> Result<(u64, Release), QueueError> {
        let mut completions = self.send_cq.lock();
        let mut send = self.send();
        // Under the locks: it may be handed over to kernels meanwhile.
        self.check_connected()?;
        let (serial, release) = match &self.trigger {
            None => {
                let (serial, doorbell) = send.prepare(holds, request, self, &mut completions)?;
                (serial, Release::Ring(doorbell))
            }
            Some(trigger) => {
                self.prepare_triggered(&mut send, &mut completions, (request, holds), trigger)?
            }
        };
        if let Some(claim) = claim {
            let _ = claim.entry.set(completions.newest_booked());
            send.claims.add(serial, claim);
        }
        status::prepared(&release);
        Ok((serial, release))
    }

    /// Writes a request behind a WAIT for the trigger's next ticket, and rings the card; or has the
    /// trigger's master wait.
    #[cold]
    fn prepare_triggered(
        &self,
        send: &mut SendState,
        completions: &mut CompletionState,
        (request, holds): (&WorkRequest<'_>, impl IntoIterator<Item = Hold>),
        trigger: &Arc<TriggerInner>,
    ) -> Result<(u64, Release), QueueError> {
        if let Some(master) = &trigger.master {
            // `PersistentSend::behind` refuses its queue pairs.
            debug_assert!(holds.into_iter().next().is_none());
            let (serial, ticket) = master.prepare(trigger, self, send, completions, request)?;
            return Ok((serial, Release::Ticket(ticket)));
        }
        let (ticket, wait) = trigger.take();
        let holds = iter::once(Hold { wait, region: None }).chain(holds);
        let prepared = send.prepare(holds, request, self, completions);
        let (serial, doorbell) = prepared.inspect_err(|_| trigger.cancel(ticket))?;
        // SAFETY: record and register belong to this queue pair, which is alive, and whose lock is held.
        unsafe { doorbell.ring() };
        Ok((serial, Release::Ticket(ticket)))
    }

    /// Refuses the next send where its stream has still to pass a wait that only this send, or one
    /// after it, ends. Where several kinds of work complete in the queue, other work may end it.
    #[cold]
    fn check_not_behind(&self, serial: u64, timeline: &Arc<Timeline>) -> Result<(), QueueError> {
        let completions = self.send_cq.lock();
        let mut send = self.send();
        let unposted = if self.send_cq.is_of_sends_of(self) { send.unposted() } else { 0 };
        if let Some(index) = completions.awaited_of_unposted(unposted, Some(timeline)) {
            let (qpn, cqn) = (self.number, self.send_cq.number());
            return Err(QueueError::Order(OrderError::BehindOwnWait { qpn, serial, cqn, index }));
        }
        send.guard(completions.awaited_of_unposted(unposted, None).is_some());
        Ok(())
    }

    /// Marks a prepared send as posted, where it is plainly the next one on the stream that has
    /// posted before it. Returns what that has replaced, for [`Self::undo_next`]; none where
    /// [`PreparedSend::commit`] has to look, and nothing has changed.
    // Inlined: its callers are the two ways on which time counts.
    #[inline(always)]
    pub(crate) fn commit_next(
        &self,
        serial: u64,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> Option<Replaced> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        self.send().post_next(serial, timeline, point)
    }

    #[cold]
    pub(crate) fn undo_next(&self, serial: u64, replaced: Replaced) {
        self.send().undo_post(serial, Before::SameLane(replaced));
    }
}

impl Drop for PreparedSend {
    fn drop(&mut self) {
        if self.posted.is_some() {
            return;
        }
        let ticket = self.trigger().zip(self.ticket());
        if self.queue_pair.failure().is_some() {
            // The card flushes the send; the tickets after it may be released.
            if let Some((trigger, ticket)) = ticket {
                trigger.cancel(ticket);
            }
            // A wait for its completion may be posted already: let the card flush it.
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
        // Once it is a NOP: this may release it.
        if let Some((trigger, ticket)) = ticket {
            trigger.cancel(ticket);
        }
    }
}

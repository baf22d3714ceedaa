//! A prepared send: a work request in the send queue for which the card was not rung.

use crate::memory::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::qp::card::trigger::TriggerInner;
use crate::qp::post::receives::PreparedReceives;
use crate::queue::send::{PostMode, PreviousPost, WaitRequest};
use crate::queue::{QueueError, Release, StateError, WorkRequest};
use std::mem::ManuallyDrop;
use std::sync::Arc;

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

    /// A send that [`QueuePairInner::enqueue`] has left for later.
    #[inline]
    pub(crate) fn of(queue_pair: Arc<QueuePairInner>, (serial, release): (u64, Release)) -> Self {
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
        self.trigger().map_or(Ok(()), |trigger| trigger.hand_out(ticket))?;
        self.queue_pair.send().mark_posted(self.serial);
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
            self.queue_pair.check_not_after_own_wait(self.serial, timeline)?;
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

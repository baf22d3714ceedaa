//! Sends and receives of a queue pair: how they are prepared or posted, and what is checked of them.

#[deny(unsafe_code)]
pub(crate) mod receives;
pub(crate) mod send;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

use crate::memory::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::qp::card::trigger::TriggerInner;
use crate::queue::completion::CompletionState;
use crate::queue::request::{Limits, Rules, data_segments};
use crate::queue::send::{Before, Hold, Replaced, SendState};
use crate::queue::{Claim, Doorbell, OrderError, QueueError, Release, RequestError, StateError, WorkRequest};
use crate::verbs::{AddressHandle, Slice, Transport};
use gdsync_sys::prm::wqe::DataSeg;
use gdsync_trace::{Kind, event};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QueuePairInner {
    #[inline(always)]
    pub(crate) fn post_send(&self, request: &WorkRequest<'_>) -> Result<(), QueueError> {
        let mut completions = self.send_cq.lock();
        let mut send = self.send();
        // Under the lock: the queue is flushed only after the queue pair was marked as failed.
        self.check_connected()?;
        // SAFETY: the register belongs to this queue pair, which is alive.
        unsafe { send.post_now(request, &Keeping(self), |signaled| completions.reserve(signaled)) }
    }

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
        trace_prepared(&release);
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

    /// Posts a receive; see [`QueuePair::post_recv`](crate::QueuePair::post_recv).
    pub(super) fn post_recv(&self, slices: &[Slice], wr_id: u64) -> Result<(), QueueError> {
        self.check_not_failed()?;
        let segments = self.recv_segments(slices)?;
        let regions = slices.iter().map(|slice| slice.region().clone()).collect();
        let mut completions = self.recv_cq.lock();
        let mut recv = self.recv();
        recv.check_turn(self.number, None)?;
        recv.check_room()?;
        completions.reserve(true)?;
        recv.post(&segments, wr_id, regions);
        event(Kind::PostedReceive, || [self.number.into(), wr_id, 0]);
        Ok(())
    }

    /// The segments of a receive into the slices, if it could be posted.
    pub(crate) fn recv_segments(&self, slices: &[Slice]) -> Result<Vec<DataSeg>, QueueError> {
        if self.config.transport == Transport::Dc {
            return Err(QueueError::State(StateError::InitiatorOnly { qpn: self.number }));
        }
        if self.shared.is_some() {
            return Err(QueueError::State(StateError::SharedReceives { qpn: self.number }));
        }
        slices.iter().try_for_each(|slice| self.check(slice, true))?;
        data_segments(slices, self.recv_segments)
    }

    /// Rings the card in the place of a stream, for the proxy.
    pub(crate) fn ring_proxied(&self, record: u32, value: u64) {
        let send = self.send();
        if let Some(doorbell) = send.proxied(record, value) {
            // SAFETY: as in `flush_unposted`.
            unsafe { doorbell.ring() };
        }
    }
}

/// A send is in its queue, and the card does not know it.
#[inline(always)]
fn trace_prepared(release: &Release) {
    if let Release::Ring(Doorbell { register, value, .. }) = release {
        event(Kind::PreparedSend, || [register.get(), *value, 0]);
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

/// The queue pair's rules for posts of the CPU, which do not hold their regions: those come to know the
/// queue. Under its lock.
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

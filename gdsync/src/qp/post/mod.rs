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
use crate::queue::send::{PostMode, PreviousPoint, PreviousPost, SendState, WaitRequest};
use crate::queue::{OrderError, QueueError, Release, RequestError, StateError, WorkRequest};
use crate::verbs::{AddressHandle, Slice, Transport};
use gdsync_sys::prm::wqe::DataSeg;
use gdsync_trace::{Kind, event};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl QueuePairInner {
    /// Writes a request into the send queue, and rings for it or leaves that for later, as `mode` says. Returns its
    /// serial number and what hands it to the card. What is left for later needs a
    /// [`PreparedSend`](send::PreparedSend), which takes it back when dropped.
    #[inline(always)]
    pub(crate) fn enqueue(
        &self,
        request: &WorkRequest<'_>,
        mode: PostMode<impl IntoIterator<Item = WaitRequest>>,
    ) -> Result<(u64, Release), QueueError> {
        let mut completions = self.send_cq.lock();
        let mut send = self.send();
        // Under the locks: a queue pair is marked before its queues are flushed or handed over to kernels.
        self.check_connected()?;
        match mode {
            PostMode::Now => {
                let book = |signaled| completions.reserve(signaled);
                // SAFETY: the register belongs to this queue pair, which is alive.
                let (serial, doorbell) = unsafe { send.post_now(request, &Keeping(self), book) }?;
                Ok((serial, Release::Ring(doorbell)))
            }
            PostMode::Behind(waits) => {
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
            event(Kind::PreparedSend, || [doorbell.register.get(), doorbell.value, 0]);
            return Ok((serial, Release::Ring(doorbell)));
        };
        self.prepare_triggered(send, completions, (request, waits), trigger)
    }

    /// Writes a request behind a WAIT for the trigger's next ticket, and rings the card; or has the
    /// trigger's master wait.
    #[cold]
    fn prepare_triggered(
        &self,
        send: &mut SendState,
        completions: &mut CompletionState,
        (request, waits): (&WorkRequest<'_>, impl IntoIterator<Item = WaitRequest>),
        trigger: &Arc<TriggerInner>,
    ) -> Result<(u64, Release), QueueError> {
        if let Some(master) = &trigger.master {
            // `PersistentSend::behind` refuses its queue pairs.
            debug_assert!(waits.into_iter().next().is_none());
            let (serial, ticket) = master.prepare(trigger, self, send, completions, request)?;
            return Ok((serial, Release::Ticket(ticket)));
        }
        let (ticket, wait) = trigger.take();
        let waits = iter::once(WaitRequest { wait, region: None }).chain(waits);
        let prepared = send.prepare(waits, request, self, completions);
        let (serial, doorbell) = prepared.inspect_err(|_| trigger.cancel(ticket))?;
        // SAFETY: record and register belong to this queue pair, which is alive, and whose lock is held.
        unsafe { doorbell.ring() };
        Ok((serial, Release::Ticket(ticket)))
    }

    /// Refuses the next send where its stream has still to pass a wait that only this send, or one
    /// after it, ends. Where several kinds of work complete in the queue, other work may end it.
    #[cold]
    fn check_not_after_own_wait(&self, serial: u64, timeline: &Arc<Timeline>) -> Result<(), QueueError> {
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
    ) -> Option<PreviousPoint> {
        if !self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        self.send().post_next(serial, timeline, point)
    }

    #[cold]
    pub(crate) fn undo_next(&self, serial: u64, replaced: PreviousPoint) {
        self.send().undo_post(serial, PreviousPost::SameTimeline(replaced));
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

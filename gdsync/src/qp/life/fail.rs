//! The end of a connection: recording the first error, from a completion or an asynchronous event, flushing the work,
//! so that no stream waits forever, and resetting the queue pair.

use crate::qp::complete::wait::{CHECKER, start_checker};
use crate::qp::life::connect;
use crate::qp::life::state::next_psn;
use crate::qp::make::QpObject;
use crate::qp::{CompletionQueueInner, QpState, QueuePairInner};
use crate::queue::completion::CompletionState;
use crate::queue::outcome::outcome;
use crate::queue::{FailureCause, ResetBlocker, Syndrome, WorkError, WorkKind};
use crate::util::poller::{Polled, Task};
use crate::verbs::events::{Element, EventSink};
use crate::verbs::{AsyncEventKind, Error, Owned};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::verbs::{self, ibv_qp};
use parking_lot::Mutex;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Why [`QueuePair::reset`](crate::QueuePair::reset) and [`QueuePair::reconnect`](crate::QueuePair::reconnect) did
/// nothing, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResetError {
    /// Work of the last connection is outstanding.
    #[error("queue pair {qpn:#x} cannot be reset: {blocker}")]
    Blocked {
        /// The queue pair's number.
        qpn: u32,
        /// The obstacle.
        blocker: ResetBlocker,
    },
    /// The provider refused a transition, or the new connection is impossible.
    #[error(transparent)]
    Verbs(#[from] Error),
}

impl QueuePairInner {
    /// Records the first error, and moves the queue pair to the error state.
    ///
    /// Under one lock: a thread that sees the error may reset the queue pair at once, and then this would fail the
    /// new connection. A target cannot be reset, and takes the lock of its completion queue, which precedes that of
    /// the status.
    pub(crate) fn stop(&self, cause: FailureCause) -> Result<(), Error> {
        if let QpObject::Target(target) = &self.object {
            self.life.fail(&mut self.life.lock(), cause);
            self.close(target);
            return Ok(());
        }
        self.stop_as(&mut self.life.lock(), cause)
    }

    fn stop_as(&self, status: &mut QpState, cause: FailureCause) -> Result<(), Error> {
        self.life.fail(status, cause);
        connect::to_state(self, verbs::IBV_QPS_ERR, "to ERR")?;
        self.life.is_flushed.store(true, Ordering::Release);
        Ok(())
    }

    /// Records the error of a completion. A flush is replaced by the error before it, which the card may have
    /// written to an unpolled entry. No completion queue's lock is held.
    ///
    /// Does nothing after a reset: `psn` is the queue pair's from when the entry was read.
    pub(crate) fn fail_with_work(&self, psn: u32, error: WorkError) {
        let cause = FailureCause::Work(self.first_cause(error));
        let mut status = self.life.lock();
        if self.life.psn.load(Ordering::Relaxed) == psn {
            self.life.fail(&mut status, cause);
            self.life.is_flushed.store(true, Ordering::Release);
        }
    }

    /// Returns the flush that an entry reports, unless an earlier error is known.
    pub(crate) fn flush_of_unknown_cause(&self, cqe: &Cqe64) -> Option<WorkError> {
        let error = outcome(cqe).err().filter(|error| error.is_flush() && !self.is_target())?;
        self.life.failure().is_none().then_some(error)
    }

    /// Replaces a flush by the error before it, if the card has written that since. No completion queue's lock is held.
    pub(crate) fn look_for_cause(&self) {
        let psn = self.life.psn.load(Ordering::Relaxed);
        if let Some(FailureCause::Work(error)) = self.life.failure().filter(|cause| cause.is_flush()) {
            self.fail_with_work(psn, error);
        }
    }

    fn first_cause(&self, error: WorkError) -> WorkError {
        if !error.is_flush() {
            return error;
        }
        // One lock at a time: others may take them in the other order.
        let queues = [&self.send_cq, &self.recv_cq];
        let cause = queues.into_iter().find_map(|queue| queue.lock().first_failure(self.number));
        cause.and_then(|cqe| outcome(&cqe).err()).unwrap_or(error)
    }

    pub(crate) fn abort(self: &Arc<Self>) -> Result<(), Error> {
        self.abort_for(FailureCause::Aborted)
    }

    /// Aborts as [`Self::abort`] does, for another cause.
    pub(crate) fn abort_for(self: &Arc<Self>, cause: FailureCause) -> Result<(), Error> {
        self.stop(cause)?;
        self.flush_unposted();
        if self.is_announced_later() || self.send().is_rung_later() || self.has_waits_to_end() {
            self.watch();
        }
        Ok(())
    }

    /// Makes a library thread flush it until nothing is left to flush.
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        match start_checker() {
            Ok(()) => CHECKER.add(Arc::new(Flushing(Arc::downgrade(self)))),
            Err(error) => {
                self.is_watched.store(false, Ordering::Release);
                tracing::warn!(%error, qpn = self.number, "no thread flushes what a stream has still to ring for: synchronize the stream")
            }
        }
    }

    /// Rings for prepared work of a failed queue pair, so that the card flushes it and waits end, but only after
    /// streams have performed their posts. So each thread that polls, synchronizes or posts tries this again, and
    /// after an abort a library thread does. Meanwhile, the CPU ends waits for sends that were not rung, as a
    /// stream may be at such a wait in front of its doorbell.
    pub(crate) fn flush_unposted(&self) {
        let mut send = self.send();
        // It may have been reset since its failure was seen: a reset holds this lock.
        if self.life.failure().is_none() {
            return;
        }
        if let Some(doorbell) = send.flush() {
            // SAFETY: record and register belong to this queue pair, which is alive; the lock keeps stores in order.
            unsafe { doorbell.ring() };
            drop(send);
        } else if send.has_unpassed_posts() {
            drop(send);
            self.end_waits(&self.send_cq);
        } else {
            drop(send);
        }
        if self.flush_receives() {
            self.end_waits(&self.recv_cq);
        }
        if self.has_waits_to_end() {
            self.end_waits(&self.recv_cq);
            if self.has_waits_to_end() {
                // The card has not yet written entries that will come first.
                let queue_pairs = self.recv_cq.attached().unwrap_or_default();
                queue_pairs.iter().filter(|one| ptr::eq(&***one, self)).for_each(Self::watch);
            }
        }
    }

    /// As [`Self::flush_unposted`], if a collector waits for its completions. No slot shows that.
    pub(crate) fn flush_collected(&self) {
        self.flush_unposted();
        if self.shared.is_some() {
            self.end_waits(&self.recv_cq);
        }
    }

    /// Returns whether streams wait for receives of its shared queue, and all queue pairs that complete there have
    /// failed.
    fn has_waits_to_end(&self) -> bool {
        if self.shared.is_none() || !self.recv_cq.lock().has_waits_to_end() {
            return false;
        }
        let queue_pairs = self.recv_cq.attached();
        queue_pairs.is_ok_and(|all| all.iter().all(|queue_pair| queue_pair.life.failure().is_some()))
    }

    /// Ends waits that nothing satisfies: for sends that were not rung, receives that were not announced, and
    /// receives of shared queues. All queue pairs that complete in the queue must have failed: otherwise another
    /// one's work could complete successfully at such a wait's entry.
    #[cold]
    fn end_waits(&self, queue: &Arc<CompletionQueueInner>) {
        // Dropped after the locks, as these may be the last references.
        let Ok(queue_pairs) = queue.attached() else { return };
        let completions = queue.lock();
        let (mut rung, mut unrung, mut sharing) = (Vec::new(), 0, Vec::new());
        for queue_pair in &queue_pairs {
            let send = queue_pair.send();
            // As above.
            if queue_pair.life.failure().is_none() || !queue_pair.life.is_flushed.load(Ordering::Acquire) {
                return;
            }
            if queue_pair.shared.is_some() && Arc::ptr_eq(&queue_pair.recv_cq, queue) {
                sharing.push(queue_pair.number);
            }
            if Arc::ptr_eq(&queue_pair.send_cq, queue) {
                let counts = send.rung();
                rung.push((queue_pair.number, counts.0));
                unrung += counts.1;
            }
            drop(send);
            if Arc::ptr_eq(&queue_pair.recv_cq, queue) {
                unrung += queue_pair.recv.lock().unannounced();
            }
        }
        completions.end_waits(&rung, unrung, &sharing);
    }

    /// Returns whether a stream has not announced its receives yet.
    fn is_announced_later(&self) -> bool {
        self.recv.lock().unannounced() > 0
    }

    /// Completes the claims on receives that a stream has not announced, as the card can only flush them, and
    /// announces those of a dead stream. Returns whether there are any.
    fn flush_receives(&self) -> bool {
        let mut recv = self.recv.lock();
        // As in `flush_unposted`: it may have been reset.
        let has_failed = matches!(*self.life.lock(), QpState::Failed(..));
        if !has_failed || recv.unannounced() == 0 {
            return false;
        }
        if self.life.is_flushed.load(Ordering::Acquire) {
            let psn = self.life.psn.load(Ordering::Relaxed);
            let flush = self.life.followed_by(psn, WorkError::new(Syndrome::WrFlush as u8, 0));
            recv.given_claims()
                .for_each(|claim| claim.finish_unposted(self.number, WorkKind::Receive, flush));
        }
        recv.announce_lost();
        true
    }

    /// Destroys a target, so that the card serves it no more. Its unpolled entries are orphaned: by the time they
    /// are polled, another target may have the number.
    fn close(&self, target: &Mutex<Option<Owned<ibv_qp>>>) {
        let mut completions = self.recv_cq.lock();
        // Not under the target's lock, which event delivery takes: destroying the target waits until the event is
        // acknowledged.
        let taken = target.lock().take();
        if let Some(taken) = taken {
            drop(taken);
            self.orphan_entries(&mut completions);
        }
        self.life.is_flushed.store(true, Ordering::Release);
    }

    /// Orphans its unpolled entries, which keep their places, and frees their receives of a shared queue.
    fn orphan_entries(&self, completions: &mut CompletionState) {
        for receive in completions.orphan_entries(self.number) {
            self.shared.as_ref().and_then(|shared| shared.receives.retire(receive));
        }
    }

    /// Implements [`QueuePair::reset`](crate::QueuePair::reset).
    pub(crate) fn reset(&self) -> Result<(), ResetError> {
        if self.life.failure().is_some() {
            // Prepared work completes, too. Waits of the next connection count from the first entry that has not come.
            self.flush_collected();
        }
        let refuse = |blocker| Err(ResetError::Blocked { qpn: self.number, blocker });
        for queue in [&self.send_cq, &self.recv_cq] {
            if queue.lock().is_lost() {
                return refuse(ResetBlocker::CompletionQueueLost(queue.number()));
            }
        }
        // Held to the end: no thread adds work to queues that are being reset.
        let (mut completions, mut arrivals) = match self.shared {
            Some(_) => self.send_cq.lock_both(&self.recv_cq),
            None => (self.send_cq.lock(), None),
        };
        let mut send = self.send();
        let mut recv = self.recv.lock();
        if let Some(blocker) = send.blocker(self.life.failure().is_some(), completions.waits_ahead() > 0) {
            return refuse(blocker);
        }
        if !recv.is_empty() {
            return refuse(ResetBlocker::Receives(recv.len()));
        }
        if self.shared.is_some() {
            let arrivals = arrivals.as_mut().unwrap_or(&mut completions);
            let unpolled = arrivals.unpolled_of(self.number);
            if unpolled > 0 {
                return refuse(ResetBlocker::Receives(unpolled));
            }
            if arrivals.has_ended_waits_to_pass() {
                return refuse(ResetBlocker::ReceiveWaits);
            }
            arrivals.reopen_ended_waits();
        }
        if let Some((trigger, master)) = self.master() {
            // Its blocks are counted from 0 again: no release with an old index may remain.
            master.cancel_releases(trigger, self.number);
        }
        let mut status = self.life.lock();
        self.life.is_ready.store(false, Ordering::Release);
        // Every completion was polled, except perhaps of unsignaled sends; so no old entry appears under the number
        // of the new queues. (libmlx5 would search for old ones, but leaves completion queues alone whose ring it
        // has given away.)
        connect::to_state(self, verbs::IBV_QPS_RESET, "to RESET")?;
        let silent = send.outstanding();
        if silent.entries > 0 {
            self.orphan_entries(&mut completions);
            (0..silent.entries).for_each(|i| completions.unreserve(i < silent.signaled));
        }
        if self.shared.is_some() {
            // A receive that was being filled during the reset.
            self.orphan_entries(arrivals.as_mut().unwrap_or(&mut completions));
        }
        drop((completions, arrivals));
        send.reset();
        recv.reset();
        self.life.psn.store(next_psn(), Ordering::Relaxed);
        connect::to_init(self)?;
        *status = QpState::Initialised;
        self.life.is_flushed.store(false, Ordering::Release);
        drop(status);
        if self.config.transport.is_addressed() {
            connect::to_ready(self)?;
        }
        tracing::debug!(qpn = self.number, "queue pair reset");
        Ok(())
    }

    /// Makes polling return no more completions of this queue pair.
    pub(crate) fn hide_completions(&self) {
        // Before the locks: a poll that takes one of them later sees it.
        self.is_dropped.store(true, Ordering::Relaxed);
        for queue in [&self.send_cq, &self.recv_cq] {
            queue.lock().drop_set_aside(self.number);
        }
    }

    /// Aborts it, which the program has dropped, if work is in flight or something still holds it: that may start work or wait
    /// for some, and nothing would end it.
    pub(crate) fn end_dropped(self: &Arc<Self>) {
        if (Arc::strong_count(self) > 1 || self.in_flight())
            && let Err(error) = self.abort()
        {
            tracing::error!(%error, qpn = self.number, "a dropped queue pair could not be aborted");
        }
    }

    fn in_flight(&self) -> bool {
        // One lock at a time: both may be the same queue's.
        let sends = self.send_cq.lock().has_posted_waits();
        let receives = self.recv_cq.lock().has_posted_waits();
        let shared = self.shared.as_ref().is_some_and(|shared| shared.receives.credits().posted() > 0);
        sends || receives || shared || self.send().in_flight() || !self.recv.lock().is_empty()
    }
}

/// A failed queue pair with sends that a stream has not rung, or receives that a stream has not announced or waits
/// for. A library thread flushes it, as the program may wait for the stream without calling the library.
struct Flushing(Weak<QueuePairInner>);

impl Task for Flushing {
    fn poll(&self) -> Polled {
        let Some(queue_pair) = self.0.upgrade() else { return Polled::Done };
        queue_pair.flush_unposted();
        // After a reset, it has no sends.
        let to_ring = queue_pair.send().is_rung_later() || queue_pair.is_announced_later();
        if queue_pair.life.failure().is_some() && (to_ring || queue_pair.has_waits_to_end()) {
            return Polled::Nothing;
        }
        queue_pair.is_watched.store(false, Ordering::Release);
        Polled::Done
    }
}

/// Returns whether an event names a completion queue. Events never name one made by commands.
fn is_named(queue: &CompletionQueueInner, raw: usize) -> bool {
    queue.verbs().is_some_and(|known| known.as_ptr() as usize == raw)
}

impl EventSink for QueuePairInner {
    fn number(&self) -> u32 {
        self.number
    }

    fn is_concerned(&self, element: Element) -> bool {
        match element {
            Element::Qp(raw) => self.object.verbs().is_some_and(|known| known.as_ptr() as usize == raw),
            Element::Cq(raw) => [&self.send_cq, &self.recv_cq].iter().any(|queue| is_named(queue, raw)),
            Element::Srq(raw) => {
                self.shared.as_ref().is_some_and(|shared| shared.receives.raw().as_ptr() as usize == raw)
            }
            Element::Port(port) => self.config.port == port,
            Element::Device => true,
        }
    }

    fn fail_by_event(&self, kind: AsyncEventKind, element: Element) {
        let cause = FailureCause::Event(kind);
        if self.is_target() && matches!(element, Element::Qp(_)) {
            self.life.fail(&mut self.life.lock(), cause);
            // The card has stopped serving it. Destroying it would wait until this event is acknowledged, and so would
            // a thread that does so under the lock of its completion queue. The next poll there ends the waits.
            return self.life.is_flushed.store(true, Ordering::Release);
        }
        let mut status = self.life.lock();
        if matches!(element, Element::Qp(_)) && connect::works(self) {
            // The program has read the event of a former connection after a reset.
            return;
        }
        if let Err(error) = self.stop_as(&mut status, cause) {
            tracing::warn!(%error, qpn = self.number(), "a queue pair that the card reported cannot be told to fail");
        }
        drop(status);
        self.flush_unposted();
        for queue in [&self.send_cq, &self.recv_cq] {
            // A lost card writes nothing any more, either.
            let is_meant = matches!(element, Element::Cq(raw) if is_named(queue, raw));
            if is_meant || kind == AsyncEventKind::DeviceFatal {
                queue.lose();
            }
        }
    }
}

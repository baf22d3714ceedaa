//! Failure of a queue pair: recording the first cause, from a completion or an asynchronous event, and flushing its
//! work, so that no stream waits forever.

use crate::qp::complete::wait::{CHECKER, start_checker};
use crate::qp::make::QpObject;
use crate::qp::{CompletionQueueInner, QpState, QueuePair, QueuePairInner};
use crate::queue::outcome::outcome;
use crate::queue::{FailureCause, Syndrome, WorkError, WorkKind};
use crate::util::poller::{Polled, Task};
use crate::verbs::events::{Element, EventSink};
use crate::verbs::{AsyncEventKind, Error, Owned};
use gdsync_sys::prm::cqe::Cqe64;
use gdsync_sys::verbs::{self, ibv_qp};
use parking_lot::Mutex;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl QueuePair {
    /// Moves the queue pair to the error state. The card flushes all its work, so that every waiting stream wakes.
    /// Later completions are errors, and preparing and posting are refused. Waits for sends that a stream has not
    /// rung yet end earlier, once all queue pairs that complete there have failed, unless the completion queue or
    /// its doorbell record is in GPU memory.
    ///
    /// May be called from any thread, and more than once.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses.
    pub fn abort(&self) -> Result<(), Error> {
        self.inner.abort()
    }

    /// Returns the first error of the queue pair, if it has failed.
    ///
    /// A flush is returned only while its cause is unknown: neither a completion queue nor an event has reported an
    /// earlier error. Cards write the entries of different queues in any order, so the cause may arrive later; each
    /// call looks for it again.
    pub fn failure(&self) -> Option<FailureCause> {
        self.inner.look_for_cause();
        self.inner.failure()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.inner.hide_completions();
        if self.inner.in_flight()
            && let Err(error) = self.inner.abort()
        {
            tracing::error!(%error, qpn = self.inner.number, "a queue pair in flight could not be aborted");
        }
    }
}

impl QueuePairInner {
    pub(crate) fn failure(&self) -> Option<FailureCause> {
        if self.is_ready.load(Ordering::Acquire) {
            return None;
        }
        match *self.status() {
            QpState::Failed(cause) => Some(cause),
            _ => None,
        }
    }

    /// Records the first error. A later error report of the card replaces a flush.
    pub(crate) fn fail(&self, cause: FailureCause) {
        self.fail_status(&mut self.status(), cause);
    }

    /// Records the first error, and moves the queue pair to the error state.
    ///
    /// Under one lock: a thread that sees the error may reset the queue pair at once, and then this would fail the
    /// new connection. A target cannot be reset, and takes the lock of its completion queue, which precedes that of
    /// the status.
    pub(crate) fn stop(&self, cause: FailureCause) -> Result<(), Error> {
        if let QpObject::Target(target) = &self.object {
            self.fail(cause);
            self.close(target);
            return Ok(());
        }
        let mut status = self.status();
        self.fail_status(&mut status, cause);
        self.to_state(verbs::IBV_QPS_ERR, "to ERR")?;
        self.is_flushed.store(true, Ordering::Release);
        Ok(())
    }

    fn fail_status(&self, status: &mut QpState, cause: FailureCause) {
        let is_news = match *status {
            QpState::Failed(known) => known.is_flush() && !cause.is_flush() && cause != FailureCause::Aborted,
            _ => true,
        };
        if !is_news {
            return;
        }
        match cause {
            FailureCause::Work(_) | FailureCause::Event(_) | FailureCause::Master => {
                tracing::warn!(qpn = self.number, %cause, "queue pair failed")
            }
            FailureCause::Aborted => tracing::debug!(qpn = self.number, "queue pair aborted"),
        }
        *status = QpState::Failed(cause);
        self.is_ready.store(false, Ordering::Release);
    }

    /// Records the error of a completion. A flush is replaced by the error before it, which the card may have
    /// written to an unpolled entry. No completion queue's lock is held.
    ///
    /// Does nothing after a reset: `psn` is the queue pair's from when the entry was read.
    pub(crate) fn fail_with_work(&self, psn: u32, error: WorkError) {
        let cause = FailureCause::Work(self.first_cause(error));
        let mut status = self.status();
        if self.psn.load(Ordering::Relaxed) == psn {
            self.fail_status(&mut status, cause);
            self.is_flushed.store(true, Ordering::Release);
        }
    }

    /// Returns the flush that an entry reports, unless an earlier error is known.
    pub(crate) fn flush_of_unknown_cause(&self, cqe: &Cqe64) -> Option<WorkError> {
        let error = outcome(cqe).err().filter(|error| error.is_flush() && !self.is_target())?;
        self.failure().is_none().then_some(error)
    }

    /// Replaces a flush by the error before it, if the card has written that since. No completion queue's lock is held.
    fn look_for_cause(&self) {
        let psn = self.psn.load(Ordering::Relaxed);
        if let Some(FailureCause::Work(error)) = self.failure().filter(|cause| cause.is_flush()) {
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
        if self.failure().is_none() {
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

    /// Returns whether streams wait for receives of its shared queue, and all queue pairs that complete there have
    /// failed.
    fn has_waits_to_end(&self) -> bool {
        if self.shared.is_none() || !self.recv_cq.lock().has_waits_to_end() {
            return false;
        }
        let queue_pairs = self.recv_cq.attached();
        queue_pairs.is_ok_and(|all| all.iter().all(|queue_pair| queue_pair.failure().is_some()))
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
            if queue_pair.failure().is_none() || !queue_pair.is_flushed.load(Ordering::Acquire) {
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
                unrung += queue_pair.recv().unannounced();
            }
        }
        completions.end_waits(&rung, unrung, &sharing);
    }

    /// Returns whether a stream has not announced its receives yet.
    fn is_announced_later(&self) -> bool {
        self.recv().unannounced() > 0
    }

    /// Completes the claims on receives that a stream has not announced, as the card can only flush them, and
    /// announces those of a dead stream. Returns whether there are any.
    fn flush_receives(&self) -> bool {
        let mut recv = self.recv();
        // As in `flush_unposted`: it may have been reset.
        let has_failed = matches!(*self.status(), QpState::Failed(_));
        if !has_failed || recv.unannounced() == 0 {
            return false;
        }
        if self.is_flushed.load(Ordering::Acquire) {
            let flush = Syndrome::WrFlush as u8;
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
        self.is_flushed.store(true, Ordering::Release);
    }

    /// Makes polling return no more completions of this queue pair.
    fn hide_completions(&self) {
        // Before the locks: a poll that takes one of them later sees it.
        self.is_dropped.store(true, Ordering::Relaxed);
        for queue in [&self.send_cq, &self.recv_cq] {
            queue.lock().drop_set_aside(self.number);
        }
    }

    fn in_flight(&self) -> bool {
        // One lock at a time: both may be the same queue's.
        let sends = self.send_cq.lock().has_posted_waits();
        let receives = self.recv_cq.lock().has_posted_waits();
        let shared = self.shared.as_ref().is_some_and(|shared| shared.receives.credits().posted() > 0);
        sends || receives || shared || self.send().in_flight() || !self.recv().is_empty()
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
        if queue_pair.failure().is_some() && (to_ring || queue_pair.has_waits_to_end()) {
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
            self.fail(cause);
            // The card has stopped serving it. Destroying it would wait until this event is acknowledged, and so would
            // a thread that does so under the lock of its completion queue. The next poll there ends the waits.
            return self.is_flushed.store(true, Ordering::Release);
        }
        if let Err(error) = self.stop(cause) {
            tracing::warn!(%error, qpn = self.number(), "a queue pair that the card reported cannot be told to fail");
        }
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

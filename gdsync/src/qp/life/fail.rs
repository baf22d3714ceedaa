//! Queue-pair failure: the first cause, by a completion or an asynchronous event, and flushing, so that
//! no stream waits without end.

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
    /// Moves the queue pair to the error state: the card flushes all its work, so that every stream
    /// that waits for it wakes. What completes from now on completes with an error; preparing and
    /// posting is refused. Waits for sends for which a stream has still to ring end before it has,
    /// where neither the completion queue nor its doorbell record is in a GPU's memory, and once
    /// all queue pairs that complete there have failed.
    ///
    /// May be called from any thread, and more than once.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses.
    pub fn abort(&self) -> Result<(), Error> {
        self.inner.abort()
    }

    /// The first error of the queue pair, if it has failed.
    ///
    /// A flush is named only while its cause is unknown: work was flushed, and neither of its
    /// completion queues, nor an event, has reported an earlier error. Cards write the entries of
    /// different queues in any order, so the cause may be there a little later: it is looked for again
    /// with every call.
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

    /// Records the first error. A flush is replaced by the error that the card reports later.
    pub(crate) fn fail(&self, cause: FailureCause) {
        self.fail_status(&mut self.status(), cause);
    }

    /// Records the first error, and moves the queue pair to the error state.
    ///
    /// One lock for both: a thread that sees the error may reset the queue pair at once, and then the card
    /// would be told to fail what has started anew. A target cannot be reset, and takes the lock of its
    /// completion queue, which comes before that of the status.
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

    /// Remembers the error of a completion; in the place of a flush, the error before it, which the
    /// card has written perhaps where it was not polled yet. No completion queue's lock is held.
    ///
    /// Does nothing after a reset: `psn` is the one that the queue pair had when the entry was
    /// read.
    pub(crate) fn fail_with_work(&self, psn: u32, error: WorkError) {
        let cause = FailureCause::Work(self.first_cause(error));
        let mut status = self.status();
        if self.psn.load(Ordering::Relaxed) == psn {
            self.fail_status(&mut status, cause);
            self.is_flushed.store(true, Ordering::Release);
        }
    }

    /// The flush that an entry reports, where no earlier error is known.
    pub(crate) fn flush_of_unknown_cause(&self, cqe: &Cqe64) -> Option<WorkError> {
        let error = outcome(cqe).err().filter(|error| error.is_flush() && !self.is_target())?;
        self.failure().is_none().then_some(error)
    }

    /// Replaces a flush by the error before it, if the card has written that since. No completion queue's
    /// lock is held.
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

    /// As [`Self::abort`], for another cause.
    pub(crate) fn abort_for(self: &Arc<Self>, cause: FailureCause) -> Result<(), Error> {
        self.stop(cause)?;
        self.flush_unposted();
        if self.is_announced_later() || self.send().is_rung_later() || self.has_waits_to_end() {
            self.watch();
        }
        Ok(())
    }

    /// Has a thread of the library flush it, until nothing is left to flush.
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

    /// In the error state the card flushes what was rung. What is only prepared must be rung, too,
    /// for the sake of waits; but not before streams have posted what they still have to post. So
    /// this is tried again by each thread that polls, synchronizes or posts, and after an abort by
    /// one of the library's. Meanwhile the CPU ends waits for what was not rung, as a stream may
    /// stand there before it can ring.
    pub(crate) fn flush_unposted(&self) {
        let mut send = self.send();
        // It may have been reset since its failure was seen: resetting holds this lock.
        if self.failure().is_none() {
            return;
        }
        if let Some(doorbell) = send.flush() {
            // SAFETY: record and register belong to this queue pair, which is alive; the lock keeps
            // stores in order.
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
                // The card has still to write what is certain to come before.
                let queue_pairs = self.recv_cq.attached().unwrap_or_default();
                queue_pairs.iter().filter(|one| ptr::eq(&***one, self)).for_each(Self::watch);
            }
        }
    }

    /// Whether streams wait for receives of its shared queue that no queue pair takes any more: all that
    /// complete there have failed.
    fn has_waits_to_end(&self) -> bool {
        if self.shared.is_none() || !self.recv_cq.lock().has_waits_to_end() {
            return false;
        }
        let queue_pairs = self.recv_cq.attached();
        queue_pairs.is_ok_and(|all| all.iter().all(|queue_pair| queue_pair.failure().is_some()))
    }

    /// Ends waits for what never comes, where all queue pairs that complete in the queue have failed:
    /// sends that were not rung, receives that were not announced, and receives of shared queues. The work of another one could complete at
    /// the entry of such a wait, and well.
    #[cold]
    fn end_waits(&self, queue: &Arc<CompletionQueueInner>) {
        // Dropped after the locks: these may be the last references.
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

    /// A stream has still to announce receives.
    fn is_announced_later(&self) -> bool {
        self.recv().unannounced() > 0
    }

    /// After a failure: completes the claims on receives that a stream has still to announce, as the card
    /// can but flush them, and announces those of a stream that never will. Returns whether there are any.
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

    /// Destroys a target, so that the card serves it no more. What has arrived and was not polled is left
    /// behind: by the time it is, another target may have the number.
    fn close(&self, target: &Mutex<Option<Owned<ibv_qp>>>) {
        let mut completions = self.recv_cq.lock();
        // Not under the target's lock, which those take who look for what an event concerns: to destroy it
        // waits until they have acknowledged the event.
        let taken = target.lock().take();
        if let Some(taken) = taken {
            drop(taken);
            self.orphan_entries(&mut completions);
        }
        self.is_flushed.store(true, Ordering::Release);
    }

    /// From now on, polling returns no completion of this queue pair.
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

/// A failed queue pair for whose sends a stream has still to ring, whose receives it has still to
/// announce, or for whose receives it waits:
/// flushed by a thread of the library, as the program may wait for the stream by means of its own.
struct Flushing(Weak<QueuePairInner>);

impl Task for Flushing {
    fn poll(&self) -> Polled {
        let Some(queue_pair) = self.0.upgrade() else { return Polled::Done };
        queue_pair.flush_unposted();
        // Once reset, it has no sends.
        let to_ring = queue_pair.send().is_rung_later() || queue_pair.is_announced_later();
        if queue_pair.failure().is_some() && (to_ring || queue_pair.has_waits_to_end()) {
            return Polled::Nothing;
        }
        queue_pair.is_watched.store(false, Ordering::Release);
        Polled::Done
    }
}

/// Whether an event names a completion queue. It never names one that verbs do not know.
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
            // The card serves it no more. To destroy it would wait until this event is acknowledged, and
            // so would a thread that does, under the lock of its completion queue: who polls that next
            // ends the waits there.
            return self.is_flushed.store(true, Ordering::Release);
        }
        if let Err(error) = self.stop(cause) {
            tracing::warn!(%error, qpn = self.number(), "a queue pair that the card reported cannot be told to fail");
        }
        self.flush_unposted();
        for queue in [&self.send_cq, &self.recv_cq] {
            // A card that is lost writes nothing any more, either.
            let is_meant = matches!(element, Element::Cq(raw) if is_named(queue, raw));
            if is_meant || kind == AsyncEventKind::DeviceFatal {
                queue.lose();
            }
        }
    }
}

//! Polling a completion queue, waiting for its next completion, and matching entries with queue pairs and their work requests.

use crate::qp::complete::channel::{ArmFor, deadline};
use crate::qp::{CompletionQueue, CompletionQueueInner, QueuePairInner};
use crate::queue::completion::{CompletionState, RawCompletion};
use crate::queue::outcome::{bytes_of, requester_kind};
use crate::queue::{Completion, DatagramSource, FailureCause, PollError, StateError, WorkError, WorkKind};
use crate::verbs::{Error, Transport};
use gdsync_sys::pause::Pause;
use gdsync_sys::prm::cqe::CqeOpcode;
use gdsync_trace::{EventKind, event};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl CompletionQueue {
    /// Takes the next completion, and waits up to `timeout` until there is one. The thread sleeps; without a channel, it
    /// polls, ever less often. Any number of threads may wait, for several queues, too. Each gets another completion.
    ///
    /// Completions of persistent requests go to these, and end no wait.
    ///
    /// ```
    /// use gdsync::qp::CompletionChannel;
    /// use gdsync::{CompletionQueue, CompletionQueueConfig, Device, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
    /// use std::time::Duration;
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`WaitError`] if [`Self::poll`] or [`Self::arm`] fails, the channel cannot be read, or the queue has overrun.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>, WaitError> {
        let deadline = deadline(timeout);
        if self.inner.events.is_none() {
            return self.poll_until(deadline);
        }
        loop {
            // Before it is armed: a later event ends the sleep.
            let (events, seen) = self.inner.events()?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            self.inner.arm(ArmFor::Next)?;
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if !events.sleep(seen, deadline)? {
                return Ok(None);
            }
        }
    }

    fn poll_until(&self, deadline: Option<Instant>) -> Result<Option<Completion>, WaitError> {
        let mut pause = Pause::new();
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if self.inner.lock().is_lost() {
                return Err(StateError::CompletionQueueLost { cqn: self.inner.number() }.into());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            pause.pause();
        }
    }
}

impl CompletionQueueInner {
    fn owner_of(&self, qpn: u32) -> Owner {
        let known = self.queue_pairs.lock();
        // The newest: it may have the number of a closed target, whose handle is still held.
        match known.iter().rev().find(|(number, _)| *number == qpn) {
            Some((_, weak)) => weak.upgrade().map_or(Owner::Destroyed, Owner::Here),
            None => Owner::Unknown,
        }
    }

    pub(crate) fn poll(&self) -> Result<Option<Completion>, PollError> {
        polled(self.poll_as(PollMode::Next))
    }

    /// Implements [`CompletionQueue::poll_unawaited`](super::CompletionQueue::poll_unawaited).
    pub(super) fn poll_unawaited(&self) -> Result<Option<Completion>, PollError> {
        polled(self.poll_as(PollMode::Unawaited))
    }

    /// Reads completions for persistent requests that have claimed them, and sets others aside for the next poll.
    pub(crate) fn progress(&self) {
        self.poll_as(PollMode::SetAside);
    }

    /// Takes the next completion, or sets all of them aside.
    fn poll_as(&self, what: PollMode) -> Option<Result<Completion, PollError>> {
        let aside = what == PollMode::SetAside;
        loop {
            let mut state = self.lock();
            if !aside && let Some(taken) = state.set_aside.pop_front() {
                return Some(taken);
            }
            if let Some(qpn) = state.attached {
                return if aside { None } else { Some(Err(PollError::DeviceAttached { qpn })) };
            }
            if what == PollMode::Unawaited && state.is_awaited() {
                return None;
            }
            let raw = state.peek()?;
            let bad = |reason| PollError::BadCompletion { index: raw.index, reason };
            let qpn = raw.cqe.qpn();
            if state.take_orphaned(raw.index) {
                state.advance();
                continue;
            }
            let owner = self.owner_of(qpn);
            if let Owner::Here(queue_pair) = &owner
                && let Some(flush) = queue_pair.flush_of_unknown_cause(&raw.cqe)
            {
                // The cause may be in its other queue, whose lock is not taken under this one. Then the loop starts
                // again.
                let psn = queue_pair.life.psn.load(Ordering::Relaxed);
                drop(state);
                queue_pair.fail_with_work(psn, flush);
                continue;
            }
            state.advance();
            let queue_pair = match owner {
                Owner::Here(queue_pair) => queue_pair,
                // Not returned; destroying the queue pair unreserves its entries.
                Owner::Destroyed => continue,
                Owner::Unknown => {
                    let taken = Err(bad(format!("queue pair {qpn:#x} does not complete here")));
                    if !aside {
                        return Some(taken);
                    }
                    state.set_aside.push_back(taken);
                    continue;
                }
            };
            let completed = complete(&queue_pair, &mut state, &raw).map_err(bad);
            let is_hidden = queue_pair.is_dropped.load(Ordering::Relaxed);
            let mut taken = completed.map(|completion| completion.filter(|_| !is_hidden)).transpose();
            if aside {
                // Under the same lock, so that completions stay in order.
                state.set_aside.extend(taken.take());
            }
            drop(state);
            if queue_pair.life.failure().is_some() {
                queue_pair.flush_unposted();
            }
            // It may be the last handle, whose drop takes this lock.
            drop(queue_pair);
            if taken.is_some() {
                return taken;
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PollMode {
    Next,
    /// The next completion, unless a stream has not read it yet.
    Unawaited,
    SetAside,
}

enum Owner {
    Here(Arc<QueuePairInner>),
    /// A queue pair that is being destroyed.
    Destroyed,
    Unknown,
}

/// Records the poll in the trace.
#[inline(always)]
fn polled(found: Option<Result<Completion, PollError>>) -> Result<Option<Completion>, PollError> {
    if let Some(Ok(Completion { qp_num, wr_id, .. })) = &found {
        event(EventKind::Polled, || [(*qp_num).into(), *wr_id, 0]);
    }
    found.transpose()
}

/// Matches an entry of a completion queue, whose state is locked, with its work request.
///
/// Returns `None` for the completion of a dropped send. An error says why the entry makes no sense.
fn complete(
    queue_pair: &QueuePairInner,
    state: &mut CompletionState,
    raw: &RawCompletion,
) -> Result<Option<Completion>, String> {
    let cqe = &raw.cqe;
    let opcode = cqe.opcode().map_err(|unknown| unknown.to_string())?;
    let status = match opcode {
        CqeOpcode::RequesterError | CqeOpcode::ResponderError => {
            state.has_errors = true;
            let mut error = WorkError::new(cqe.raw_syndrome(), cqe.vendor_syndrome());
            // For a target, the connection of one initiator has ended; it serves the others.
            if !queue_pair.is_target() {
                queue_pair.life.fail(&mut queue_pair.life.lock(), FailureCause::Work(error));
                queue_pair.life.is_flushed.store(true, Ordering::Release);
            }
            if error.is_flush() {
                let psn = queue_pair.life.psn.load(Ordering::Relaxed);
                error = queue_pair.life.followed_by(psn, error);
            }
            Err(error)
        }
        _ => Ok(()),
    };
    let counter = cqe.wqe_counter();
    let unknown =
        || format!("work request {counter} of queue pair {:#x} is not outstanding", queue_pair.number);
    let is_send = matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError);
    let mut was_posted = true;
    let (wr_id, kind, claim) = if is_send {
        let retired = queue_pair.send().retire(counter).ok_or_else(unknown)?;
        (0..retired.entries).for_each(|i| state.unreserve(i < retired.signaled));
        if retired.hidden {
            return Ok(None);
        }
        was_posted = !retired.flushed_unposted;
        (retired.wr_id, requester_kind(cqe)?, retired.claim)
    } else {
        let write = opcode == CqeOpcode::RespWriteImm;
        let kind = if write { WorkKind::ReceiveRdmaWithImmediate } else { WorkKind::Receive };
        if let Some(shared) = &queue_pair.shared {
            (shared.receives.retire(counter).ok_or_else(unknown)?, kind, None)
        } else {
            let mut recv = queue_pair.recv.lock();
            let (wr_id, retired) = recv.retire(counter).ok_or_else(unknown)?;
            (0..retired).for_each(|_| state.unreserve(true));
            (wr_id, kind, recv.take_claim())
        }
    };
    let has_immediate = matches!(opcode, CqeOpcode::RespWriteImm | CqeOpcode::RespSendImm);
    let is_datagram = !is_send && status.is_ok() && queue_pair.config.transport == Transport::Ud;
    let number = u32::from_be_bytes(cqe.imm());
    let completion = Completion {
        wr_id,
        index: Some(raw.index),
        qp_num: queue_pair.number,
        kind,
        byte_len: if status.is_ok() { bytes_of(kind, cqe) } else { 0 },
        immediate: has_immediate.then_some(number),
        invalidated: (opcode == CqeOpcode::RespSendInval).then_some(number),
        source: is_datagram.then(|| DatagramSource::new(cqe, queue_pair.gid.kind.link())),
        was_posted,
        status,
    };
    match claim {
        Some(claim) => {
            claim.finish(completion);
            Ok(None)
        }
        None => Ok(Some(completion)),
    }
}

/// Why [`CompletionQueue::wait`](crate::CompletionQueue::wait) returns no completion.
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
    /// No runtime of tokio with I/O serves the calling thread.
    #[cfg(feature = "tokio")]
    #[error(
        "no tokio runtime with I/O here: make the AsyncCompletionQueue in a task, or under Runtime::enter, of a runtime built with enable_io or enable_all ({reason})"
    )]
    Runtime {
        /// Tokio's reason.
        reason: String,
    },
}

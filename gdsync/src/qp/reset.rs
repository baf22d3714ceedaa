//! From the error state to a new connection, with the same object.

use crate::qp::{QpState, QueuePair, QueuePairInner, next_psn};
use crate::queue::ResetBlocker;
use crate::queue::completion::CompletionState;
use crate::verbs::{ConnectOptions, Endpoint, Error};
use gdsync_sys::verbs;
use spin::mutex::SpinMutexGuard;
use spin::relax::Yield;
use std::cmp::Ordering as Cmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type CompletionGuard<'a> = SpinMutexGuard<'a, CompletionState, Yield>;

/// Why [`QueuePair::reset`] and [`QueuePair::reconnect`] did nothing, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResetError {
    /// Something of the queue pair's last connection is outstanding.
    #[error("queue pair {qpn:#x} cannot be reset: {blocker}")]
    Blocked {
        /// Its number.
        qpn: u32,
        /// What is in the way.
        blocker: ResetBlocker,
    },
    /// The provider refused a change of the queue pair's state, or the new connection cannot be.
    #[error(transparent)]
    Verbs(#[from] Error),
}

impl QueuePair {
    /// Brings the queue pair back to where [`QueuePair::new`] left it: ready to take receives and
    /// to be connected (of UD and DC, ready to send), with no failure, empty queues, and another first sequence number. Its
    /// number, its completion queues and whatever else was made from it stay.
    ///
    /// Nothing of the last connection may be outstanding: after a failure, or [`QueuePair::abort`],
    /// let the streams pass what they were given, and poll both completion queues until every work
    /// request has completed. Those at the end that asked for no completion need none: done before
    /// the failure, they have none. Prepared sends that were kept are refused from then on
    /// ([`OrderError::Stale`](crate::queue::OrderError::Stale)).
    ///
    /// Beside a shared receive queue, a receive whose completion the card writes only during the reset is
    /// lost with its message, and its place in the shared queue is free again. The card has written all
    /// when it reports [`AsyncEventKind::LastReceive`](crate::verbs::AsyncEventKind::LastReceive).
    ///
    /// Give the remote side the new [`QueuePair::endpoint`]; it must reset, too. A target of DC need not:
    /// it stays what it was, and so do the addresses of targets.
    ///
    /// # Errors
    /// [`ResetError::Blocked`], which names what is in the way; nothing has changed then.
    /// [`Error::Verbs`] where the provider refuses; the queue pair has failed then.
    pub fn reset(&self) -> Result<(), ResetError> {
        self.inner.reset()
    }

    /// Resets the queue pair, unless it is ready to be connected already, and connects it.
    ///
    /// The remote endpoint is the one after the remote side's own reset: where both reset, both
    /// call [`QueuePair::reset`] first, then exchange endpoints, then call this.
    ///
    /// # Errors
    /// As [`QueuePair::reset`] and [`QueuePair::connect`].
    pub fn reconnect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), ResetError> {
        if !matches!(*self.inner.status(), QpState::Initialised) {
            self.inner.reset()?;
        }
        Ok(self.inner.connect(remote, options)?)
    }
}

impl QueuePairInner {
    /// The state of the completion queue of its sends; and, beside a shared receive queue, of that of its
    /// receives, where that is another. In the order of their addresses.
    fn lock_completions(&self) -> (CompletionGuard<'_>, Option<CompletionGuard<'_>>) {
        match Arc::as_ptr(&self.send_cq).cmp(&Arc::as_ptr(&self.recv_cq)) {
            _ if self.shared.is_none() => (self.send_cq.lock(), None),
            Cmp::Equal => (self.send_cq.lock(), None),
            Cmp::Less => {
                let sends = self.send_cq.lock();
                (sends, Some(self.recv_cq.lock()))
            }
            Cmp::Greater => {
                let receives = self.recv_cq.lock();
                (self.send_cq.lock(), Some(receives))
            }
        }
    }

    /// Its entries that were not polled keep their places; those of receives of a shared queue are free.
    pub(super) fn leave_behind(&self, completions: &mut CompletionState) {
        for receive in completions.leave_behind(self.number) {
            self.shared.as_ref().and_then(|shared| shared.receives.retire(receive));
        }
    }

    fn reset(&self) -> Result<(), ResetError> {
        if self.failure().is_some() {
            // What was only prepared completes, too.
            self.flush_unposted();
        }
        let refuse = |blocker| Err(ResetError::Blocked { qpn: self.number, blocker });
        for queue in [&self.send_cq, &self.recv_cq] {
            if queue.lock().is_lost() {
                return refuse(ResetBlocker::CompletionQueueLost(queue.number()));
            }
        }
        // Held to the end: no thread adds work to queues that are being reset.
        let (mut completions, mut arrivals) = self.lock_completions();
        let mut send = self.send();
        let mut recv = self.recv();
        if let Some(blocker) = send.blocker(self.failure().is_some(), completions.waits_ahead() > 0) {
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
            if arrivals.take_released_back() {
                return refuse(ResetBlocker::EndedWaits);
            }
        }
        if let Some((trigger, master)) = self.master() {
            // Its blocks are counted from 0 again: no release with an old index may be left.
            master.forget(trigger, self.number);
        }
        let mut status = self.status();
        self.is_ready.store(false, Ordering::Release);
        // Every completion was polled, but perhaps of sends that asked for none; so no entry of the
        // old queues appears under the new ones' numbers. (libmlx5 would look for some, but leaves
        // completion queues alone whose ring it has given away.)
        self.to_state(verbs::IBV_QPS_RESET, "to RESET")?;
        let silent = send.outstanding();
        if silent.entries > 0 {
            self.leave_behind(&mut completions);
            (0..silent.entries).for_each(|i| completions.unreserve(i < silent.signaled));
        }
        if self.shared.is_some() {
            // A receive that it was filling when it was reset.
            self.leave_behind(arrivals.as_mut().unwrap_or(&mut completions));
        }
        drop((completions, arrivals));
        send.reset();
        recv.reset();
        self.psn.store(next_psn(), Ordering::Relaxed);
        self.to_init()?;
        *status = QpState::Initialised;
        self.is_flushed.store(false, Ordering::Release);
        drop(status);
        if self.config.transport.is_addressed() {
            self.to_ready()?;
        }
        tracing::debug!(qpn = self.number, "queue pair reset");
        Ok(())
    }
}

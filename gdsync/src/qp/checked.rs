//! Waits that tell success from failure.
//!
//! A stream can wait for the owner bit of a CQE, which flips with any completion, good or bad: no
//! condition on that word tells the two apart. So a thread of the library polls the CQE and writes
//! a *status word*. The stream waits for that word instead, and kernels and later descriptors can
//! read it.

use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::qp::{CompletionQueueInner, PreparedWait, QueuePairInner};
use crate::queue::outcome::{WorkError, outcome};
use crate::queue::{PeerOp, Status, Syndrome};
use crate::util::poller::{Polled, Poller, Task};
use crate::verbs::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A prepared wait with a [`Status`] of the work that it waits for; see [`PreparedWait::checked`].
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct CheckedWait {
    wait: PreparedWait,
    status: Status,
}

impl CheckedWait {
    pub(crate) fn into_wait(self) -> PreparedWait {
        self.wait
    }

    /// The outcome of the work. It stays readable after the wait was posted.
    pub fn status(&self) -> Status {
        self.status.clone()
    }
}

impl PreparedWait {
    /// The same wait, with a [`Status`] of the work. The status is written before the stream passes
    /// the wait, so later operations of the stream can read it. If the work failed, its queue pair
    /// has failed by then, too, even if the program has not polled.
    ///
    /// The completion is polled by a thread of the library, which sleeps while no checked wait is
    /// outstanding. The stream goes on when that thread has seen the completion; `gdsync bench
    /// checked` measures the delay.
    ///
    /// # Errors
    /// [`Error::Thread`], [`Error::Memory`]. The wait is dropped then.
    pub fn checked(mut self) -> Result<CheckedWait, Error> {
        start_checker()?;
        let status = Status::new()?;
        self.checked = Some(Checked { status: status.clone(), called_off: Arc::default() });
        Ok(CheckedWait { wait: self, status })
    }
}

/// The part of a prepared wait that only checked ones have.
#[derive(Debug)]
pub(crate) struct Checked {
    status: Status,
    /// The wait was not posted after all: the thread has nothing to poll.
    called_off: Arc<AtomicBool>,
}

impl Checked {
    /// Has the thread poll a CQE, which is not given back to the card before the stream has passed
    /// `point`, and so not before the status is written.
    ///
    /// Returns the stream's operation.
    pub(crate) fn commit(
        &mut self,
        cq: &Arc<CompletionQueueInner>,
        index: u32,
        queue_pairs: &[Arc<QueuePairInner>],
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> PeerOp {
        self.called_off = Arc::default();
        CHECKER.add(Arc::new(Check {
            cq: cq.clone(),
            index,
            status: self.status.clone(),
            queue_pairs: queue_pairs.to_vec(),
            timeline: timeline.clone(),
            point,
            called_off: self.called_off.clone(),
        }));
        self.status.wait_op()
    }

    pub(crate) fn undo(&self) {
        self.called_off.store(true, Ordering::Release);
    }

    pub(crate) fn is_satisfied(&self) -> bool {
        self.status.get().is_some()
    }
}

/// A CQE to poll.
struct Check {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    status: Status,
    queue_pairs: Vec<Arc<QueuePairInner>>,
    timeline: Arc<Timeline>,
    point: TimelinePoint,
    called_off: Arc<AtomicBool>,
}

impl Task for Check {
    fn poll(&self) -> Polled {
        // The stream passes the point only after the status was written, unless it has failed: then
        // the card may own the CQE again.
        if self.called_off.load(Ordering::Acquire) || self.timeline.has_passed(self.point) {
            return Polled::Done;
        }
        let state = self.cq.lock();
        // If the program has polled the CQE, that has failed the queue pair, which may have been
        // reset since.
        let is_history = state.is_history(self.index);
        let Some(entry) = state.read(self.index) else {
            if state.is_released(self.index) {
                self.status.set(Err(WorkError { syndrome: Syndrome::WrFlush as u8, vendor: 0 }));
                return Polled::Done;
            }
            drop(state);
            for queue_pair in self.queue_pairs.iter().filter(|queue_pair| queue_pair.failure().is_some()) {
                queue_pair.flush_unposted();
            }
            return Polled::Nothing;
        };
        let owner = self.queue_pairs.iter().find(|one| one.number == entry.cqe.qpn());
        let psn = owner.map(|owner| owner.psn.load(Ordering::Relaxed));
        drop(state);
        let outcome = outcome(&entry.cqe);
        if let (Err(error), Some(failed), Some(psn)) = (outcome, owner, psn)
            && !is_history
        {
            failed.fail_with_work(psn, error);
            failed.flush_unposted();
        }
        self.status.set(outcome);
        Polled::Done
    }
}

/// The thread that polls for checked waits, persistent requests, collectors, masters, and queue pairs
/// that are flushed.
pub(crate) static CHECKER: Poller = Poller::new("gdsync-checked");

/// Starts the thread of [`CHECKER`], unless it runs.
///
/// # Errors
/// [`Error::Thread`].
pub(crate) fn start_checker() -> Result<(), Error> {
    CHECKER.start().map_err(|source| Error::Thread { name: CHECKER.name, source })
}

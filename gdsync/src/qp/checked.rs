//! Waits that tell success from failure.
//!
//! A stream can wait for the owner bit of a completion entry, which flips with any completion, successful or not: no condition on that
//! word tells the two apart. So a thread of the library looks at the entry in the stream's place and writes a *status word*,
//! which the stream waits for instead, and which kernels and later descriptors can read.

use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::qp::cq::CompletionQueueInner;
use crate::qp::wait::PreparedWait;
use crate::queue::Status;
use crate::queue::doorbell::PeerOp;
use crate::queue::outcome::outcome;
use crate::util::poller::{self, Watched};
use crate::verbs::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A prepared wait that will say how the work that it waits for ended; see [`PreparedWait::checked`].
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

    /// What became of the work. Stays readable after the wait was posted.
    pub fn status(&self) -> Status {
        self.status.clone()
    }
}

impl PreparedWait {
    /// The same wait, with a [`Status`] that says how it ended: when the stream continues, it is written, for whatever follows
    /// on the stream. A queue pair that the work failed on is in the error state by then, too, without a poll.
    ///
    /// It takes a thread of the library, which sleeps while no checked wait is outstanding, and the time until that has looked;
    /// `gdsync bench checked` measures it.
    ///
    /// # Errors
    /// [`Error::Thread`], [`Error::Memory`]. The wait is given back then, as when it is dropped.
    pub fn checked(mut self) -> Result<CheckedWait, Error> {
        poller::start()?;
        let status = Status::new()?;
        self.checked = Some(Checked { status: status.clone(), called_off: Arc::default() });
        Ok(CheckedWait { wait: self, status })
    }
}

/// What a checked wait has more than others.
#[derive(Debug)]
pub(crate) struct Checked {
    status: Status,
    /// The post that the thread watches for was undone.
    called_off: Arc<AtomicBool>,
}

impl Checked {
    /// Has the thread look at a completion entry, which the stream's point holds until the status was written.
    ///
    /// Returns what the stream waits for.
    pub(crate) fn commit(
        &mut self,
        cq: &Arc<CompletionQueueInner>,
        index: u32,
        queue_pairs: &[Arc<QueuePairInner>],
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
    ) -> PeerOp {
        self.called_off = Arc::default();
        poller::watch(Box::new(Check {
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

/// An entry to look at.
struct Check {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    status: Status,
    queue_pairs: Vec<Arc<QueuePairInner>>,
    timeline: Arc<Timeline>,
    point: TimelinePoint,
    called_off: Arc<AtomicBool>,
}

impl Watched for Check {
    fn look(&mut self) -> bool {
        // The timeline passes only after the status was written, unless its stream has failed: then the entry may be the card's again.
        if self.called_off.load(Ordering::Acquire) || self.timeline.has_passed(self.point) {
            return true;
        }
        let state = self.cq.lock();
        // Polling fails the queue pair, too; it may have been reset after that.
        let is_history = state.is_history(self.index);
        let Some(entry) = state.read(self.index) else {
            drop(state);
            for queue_pair in self.queue_pairs.iter().filter(|queue_pair| queue_pair.failure().is_some()) {
                queue_pair.flush_unposted();
            }
            return false;
        };
        let owner = self.queue_pairs.iter().find(|one| one.number() == entry.cqe.qpn());
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
        true
    }
}

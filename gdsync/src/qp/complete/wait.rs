//! A prepared wait: the right to have a stream wait for one completion; and waits that tell success from
//! failure.
//!
//! A stream can wait for the owner bit of a CQE, which flips with any completion, good or bad: no
//! condition on that word tells the two apart. So a thread of the library polls the CQE and writes
//! a *status word*. The stream waits for that word instead, and kernels and later descriptors can
//! read it.

use crate::memory::{Timeline, TimelinePoint};
use crate::qp::complete::CompletionQueueInner;
use crate::qp::{CardWord, QueuePairInner};
use crate::queue::completion::{CompletionState, Slot};
use crate::queue::outcome::outcome;
use crate::queue::{Claim, PeerOp, QueueError, Status, Syndrome, WorkError};
use crate::util::poller::{Polled, Poller, Task};
use crate::verbs::Error;
use gdsync_trace::{Kind, event};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A wait for the next completion of a completion queue that no other wait is for.
///
/// Which completion that is, of several queue pairs that share the queue, the card decides: the
/// entry that it writes next. So a wait says that as many completions have arrived as were waited
/// for, of any of the queue pairs.
///
/// Put it into a [`crate::Batch`] and post that. The send that it waits for is posted before it, or
/// by another stream or the CPU: behind it on the same stream, the send is refused
/// ([`OrderError::BehindOwnWait`](crate::queue::OrderError::BehindOwnWait)). Dropping it instead gives the completion back:
/// where it was the newest wait, the next one prepared takes its place; otherwise no stream waits
/// for that completion.
///
/// ```
/// use gdsync::{Access, Batch, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let region = MemoryRegion::allocate(&pd, 64, Access::all())?;
/// let stream = Stream::new(SoftStream::new()?)?;
/// right.post_recv(&[region.slice(..8)?], 0)?;
/// let arrival = right.recv_cq().prepare_wait()?; // after the receive that it waits for
/// left.post_send(WorkRequest::send(&[region.slice(8..16)?]))?;
/// stream.post(Batch::new().wait(arrival))?;
/// stream.launch(|| println!("the message is there"))?;
/// stream.synchronize()?;
/// // The CPU polls it, too: that frees its places in the queues.
/// assert!(right.recv_cq().poll()?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct PreparedWait {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    /// Once posted: what the stream writes when it has passed the wait.
    point: Option<TimelinePoint>,
    /// The queue pairs that completed here when it was prepared: the completion that it counts on
    /// is theirs, and needs them alive.
    pub(crate) queue_pairs: Vec<Arc<QueuePairInner>>,
    /// A thread looks at the entry, and the stream waits for what it says.
    pub(crate) checked: Option<Checked>,
    /// Once posted, where a collector waits for the entry: the word at which the stream looks instead.
    /// Its memory has to stay until the stream has passed, whatever becomes of the collector.
    arrival: Option<CardWord>,
}

/// A completion that a collector waits for: its queue, its index, and the queue pairs whose it may be.
pub(crate) type Entry<'a> = (&'a Arc<CompletionQueueInner>, u32, &'a [Arc<QueuePairInner>]);

impl PreparedWait {
    pub(crate) fn new(cq: Arc<CompletionQueueInner>) -> Result<Self, QueueError> {
        loop {
            let mut state = cq.lock();
            // The completion counted on may be that of a queue pair being destroyed, which unbooks
            // its entries under this lock.
            let queue_pairs = match cq.attached() {
                Ok(queue_pairs) => queue_pairs,
                Err(others) => {
                    drop(state);
                    drop(others);
                    std::thread::yield_now();
                    continue;
                }
            };
            let prepared = state.prepare_wait();
            // Released before the queue pairs may be dropped: the drop of the last handle takes
            // this lock.
            drop(state);
            let index = prepared?;
            event(Kind::PreparedWait, || [cq.number().into(), index.into(), 0]);
            return Ok(PreparedWait { index, cq, point: None, queue_pairs, checked: None, arrival: None });
        }
    }

    /// A wait for claimed work of a queue pair: one of its sends, or of its receives. `None` where the
    /// entry in which the work completes is not known, was polled, or is the place of another wait; or
    /// where work of the program completes before it, for which its next wait is.
    pub(crate) fn of_claim(
        queue_pair: &Arc<QueuePairInner>,
        cq: &Arc<CompletionQueueInner>,
        claim: &Claim,
    ) -> Option<Self> {
        let index = *claim.entry.get()?;
        let is_send = Arc::ptr_eq(cq, &queue_pair.send_cq);
        if !cq.sharing.is_alone() {
            return None;
        }
        let skips = |next| match is_send {
            true => queue_pair.send().claims.cover(next, index),
            false => queue_pair.recv().claims.cover(next, index),
        };
        let queue_pairs = vec![queue_pair.clone()];
        let prepared = cq.lock().prepare_wait_for(index, skips);
        let (cq, point, checked, arrival) = (cq.clone(), None, None, None);
        prepared.then_some(PreparedWait { cq, index, point, queue_pairs, checked, arrival })
    }

    /// Index of the completion that it waits for, from 0 on, modulo 2^32.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Marks it as posted. Returns the peer operation that waits: none where the completion is
    /// known to have arrived, because a covering wait was posted with it before, and refused.
    pub(crate) fn commit(&mut self, timeline: &Arc<Timeline>, point: TimelinePoint) -> Option<PeerOp> {
        self.point = Some(point);
        let mut completions = self.cq.lock();
        if completions.is_recycled(self.index) {
            return None;
        }
        completions.post_wait(self.index, timeline, point);
        self.guard_sends(&completions);
        match &mut self.checked {
            None => Some(completions.wait_op(self.index)),
            Some(checked) => {
                drop(completions);
                Some(checked.commit(&self.cq, self.index, &self.queue_pairs, timeline, point))
            }
        }
    }

    /// If it waits for a send that is not posted, that send must not follow it on the same stream:
    /// the queue pair's posts look for that from now on.
    #[inline]
    fn guard_sends(&self, completions: &CompletionState) {
        if let [queue_pair] = &self.queue_pairs[..]
            && Arc::ptr_eq(&queue_pair.send_cq, &self.cq)
        {
            let mut send = queue_pair.send();
            if completions.is_of_unposted(self.index, send.unposted()) {
                send.guard(true);
            }
        }
    }

    /// Marks it as posted, where the stream waits for a later completion of the same queue and
    /// never looks at this one's entry: that need not be kept for it.
    pub(crate) fn commit_covered(&mut self, point: TimelinePoint) {
        self.point = Some(point);
        // No stream looks at its entry.
        self.cq.lock().set_slot(self.index, Slot::Free);
    }

    /// Marks it as posted, where a collector waits for the entry, and the stream for the collector's
    /// word.
    pub(crate) fn commit_collected(
        &mut self,
        timeline: &Arc<Timeline>,
        point: TimelinePoint,
        arrival: Option<CardWord>,
    ) {
        (self.point, self.arrival) = (Some(point), arrival);
        let mut completions = self.cq.lock();
        if !completions.is_recycled(self.index) {
            completions.post_wait(self.index, timeline, point);
            self.guard_sends(&completions);
        }
    }

    /// What a collector has to know to wait for it.
    pub(crate) fn entry(&self) -> Entry<'_> {
        (&self.cq, self.index, &self.queue_pairs)
    }

    pub(crate) fn undo(&mut self) {
        if let Some(checked) = &self.checked {
            checked.undo();
        }
        self.cq.lock().set_slot(self.index, Slot::Prepared);
        (self.point, self.arrival) = (None, None);
    }

    /// No stream looks at the entry, and no other wait is for it.
    pub(crate) fn give_up(mut self) {
        self.point = Some(TimelinePoint::default());
        self.cq.lock().leave_to_cpu(self.index);
    }

    /// True once the stream has passed it.
    pub(crate) fn is_passed(&self, timeline: &Timeline) -> bool {
        self.point.is_some_and(|point| timeline.has_passed(point))
    }

    /// True where what it waits for is there. Only of a wait that is posted and not passed.
    pub(crate) fn is_satisfied(&self) -> bool {
        match &self.checked {
            None => self.cq.lock().has_come(self.index),
            Some(checked) => checked.is_satisfied(),
        }
    }
}

impl fmt::Display for PreparedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wait for completion {} of queue {:#x}", self.index, self.cq.number())?;
        for (i, queue_pair) in self.queue_pairs.iter().enumerate() {
            let word = if i == 0 { " (queue pair" } else { "," };
            write!(f, "{word} {:#x}", queue_pair.number)?;
        }
        f.write_str(if self.queue_pairs.is_empty() { "" } else { ")" })
    }
}

impl Drop for PreparedWait {
    fn drop(&mut self) {
        if self.point.is_none() {
            self.cq.lock().cancel_wait(self.index);
        }
    }
}

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
        self.checked = Some(Checked { status: status.clone(), is_cancelled: Arc::default() });
        Ok(CheckedWait { wait: self, status })
    }
}

/// The part of a prepared wait that only checked ones have.
#[derive(Debug)]
pub(crate) struct Checked {
    status: Status,
    /// The wait was not posted after all: the thread has nothing to poll.
    is_cancelled: Arc<AtomicBool>,
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
        self.is_cancelled = Arc::default();
        CHECKER.add(Arc::new(Check {
            cq: cq.clone(),
            index,
            status: self.status.clone(),
            queue_pairs: queue_pairs.to_vec(),
            timeline: timeline.clone(),
            point,
            is_cancelled: self.is_cancelled.clone(),
        }));
        self.status.wait_op()
    }

    pub(crate) fn undo(&self) {
        self.is_cancelled.store(true, Ordering::Release);
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
    is_cancelled: Arc<AtomicBool>,
}

impl Task for Check {
    fn poll(&self) -> Polled {
        // The stream passes the point only after the status was written, unless it has failed: then
        // the card may own the CQE again.
        if self.is_cancelled.load(Ordering::Acquire) || self.timeline.has_passed(self.point) {
            return Polled::Done;
        }
        let state = self.cq.lock();
        // If the program has polled the CQE, that has failed the queue pair, which may have been
        // reset since.
        let is_history = state.is_history(self.index);
        let Some(entry) = state.read(self.index) else {
            if state.is_wait_ended(self.index) {
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

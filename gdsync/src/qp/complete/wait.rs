//! Prepared waits: the right to have a stream wait for one completion; and waits that tell success from failure.
//!
//! A stream can wait for the owner bit of a CQE, which flips with any completion: no condition on that word tells
//! success from failure. So a library thread polls the CQE and writes a *status word*. The stream waits for that
//! word instead, and kernels and later descriptors can read it.

use crate::memory::{Timeline, TimelinePoint};
use crate::qp::complete::CompletionQueueInner;
use crate::qp::{CardWord, Completing, QueuePairInner};
use crate::queue::completion::{CompletionState, Slot};
use crate::queue::outcome::outcome;
use crate::queue::{Claim, PeerOp, QueueError, Status, Syndrome, WorkError};
use crate::util::poller::{Polled, Poller, Task};
use crate::verbs::Error;
use gdsync_trace::{EventKind, event};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The right to make a stream wait for one completion: the next of a completion queue that no other wait is for.
///
/// If several queue pairs share the queue, the card decides which completion that is: the entry that it writes
/// next. So a wait ends when as many completions have arrived, of any of the queue pairs, as were waited for. After all
/// of them have failed, the library ends waits for which the card has no entry yet. Such a wait keeps its place: if one
/// of the queue pairs starts again first, the entry at [`Self::index`] may be its success, and the flush a later entry.
///
/// Add it to a [`crate::Batch`] and post that. The awaited send is posted before the wait, by another stream or by
/// the CPU: after the wait on the same stream, the send is refused
/// ([`OrderError::SendAfterOwnWait`](crate::queue::OrderError::SendAfterOwnWait)). Dropping a wait gives its completion
/// back: the next wait takes the place of the newest one; for others, no stream waits for that completion.
///
/// ```
/// use gdsync::{Access, Batch, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct PreparedWait {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    /// Once posted: the point that the stream writes when it has passed the wait.
    point: Option<TimelinePoint>,
    /// The queue pairs that completed here when it was prepared. They stay alive, as one of them writes the completion.
    pub(crate) queue_pairs: Vec<Arc<QueuePairInner>>,
    /// Set if a thread reads the entry and the stream waits for the resulting status.
    pub(crate) checked: Option<Checked>,
    /// Once posted, if a collector waits for the entry: the word that the stream waits for. Its memory must stay
    /// until the stream has passed, even if the collector is dropped.
    arrival: Option<CardWord>,
}

/// A completion that a collector waits for: its queue, its index, and the queue pairs that it may belong to.
pub(crate) type Entry<'a> = (&'a Arc<CompletionQueueInner>, u32, &'a [Arc<QueuePairInner>]);

impl PreparedWait {
    pub(crate) fn new(cq: Arc<CompletionQueueInner>) -> Result<Self, QueueError> {
        loop {
            let mut state = cq.lock();
            // The completion may be that of a queue pair being destroyed, which unreserves its entries under this lock.
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
            // Released before the queue pairs are dropped: the drop of a last handle takes this lock.
            drop(state);
            let index = prepared?;
            event(EventKind::PreparedWait, || [cq.number().into(), index.into(), 0]);
            return Ok(PreparedWait { index, cq, point: None, queue_pairs, checked: None, arrival: None });
        }
    }

    /// Prepares a wait for claimed work of a queue pair, a send or a receive. Returns `None` if the work's entry is
    /// not known, was polled or has another wait, or if work of the program completes before it, which the
    /// program's next wait is for.
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
            false => queue_pair.recv.lock().claims.cover(next, index),
        };
        let queue_pairs = vec![queue_pair.clone()];
        let prepared = cq.lock().prepare_wait_for(index, skips);
        let (cq, point, checked, arrival) = (cq.clone(), None, None, None);
        prepared.then_some(PreparedWait { cq, index, point, queue_pairs, checked, arrival })
    }

    /// Returns the index of the awaited completion, from 0 on, modulo 2^32.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Marks it as posted. Returns the waiting peer operation, or `None` if the completion has arrived: a covering
    /// wait was posted with it before, and refused.
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

    /// Makes the queue pair's posts check that a send does not follow its own wait on the same stream, if it is not
    /// posted yet.
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

    /// Marks it as posted, if the stream waits for a later completion of the same queue instead. This entry need
    /// not be kept for it.
    pub(crate) fn commit_covered(&mut self, point: TimelinePoint) {
        self.point = Some(point);
        self.cq.lock().set_slot(self.index, Slot::Free);
    }

    /// Marks it as posted, if a collector waits for the entry, and the stream for the collector's word.
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

    /// Gives the wait up: no stream reads the entry, and no other wait is for it.
    pub(crate) fn give_up(mut self) {
        self.point = Some(TimelinePoint::default());
        self.cq.lock().leave_completion_to_cpu(self.index);
    }

    pub(crate) fn is_passed(&self, timeline: &Timeline) -> bool {
        self.point.is_some_and(|point| timeline.has_passed(point))
    }

    /// Returns whether the completion has arrived, for a wait that is posted and not passed.
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

/// A prepared wait with a [`Status`] of the awaited work. [`PreparedWait::checked`] makes it.
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

    /// Returns the outcome of the work. It stays readable after the wait was posted.
    pub fn status(&self) -> Status {
        self.status.clone()
    }
}

impl PreparedWait {
    /// Adds a [`Status`] of the work. It is written before the stream passes the wait, so later operations of the
    /// stream can read it. If the work failed, its queue pair has failed by then, too, even if the program has not
    /// polled.
    ///
    /// A library thread polls the completion; it sleeps while no checked wait is outstanding. The stream continues
    /// when that thread has seen the completion; `gdsync bench checked` measures the delay.
    ///
    /// # Errors
    /// [`Error::Thread`] if the thread cannot be started, [`Error::Memory`] if there is none. The wait is dropped then.
    pub fn checked(mut self) -> Result<CheckedWait, Error> {
        start_checker()?;
        let status = Status::new()?.written_after(Arc::new(Completing::of(&self.queue_pairs)));
        let psns = self.queue_pairs.iter().map(|one| one.life.psn.load(Ordering::Relaxed)).collect();
        self.checked = Some(Checked { status: status.clone(), psns, is_cancelled: Arc::default() });
        Ok(CheckedWait { wait: self, status })
    }
}

/// The part of a prepared wait that only checked ones have.
#[derive(Debug)]
pub(crate) struct Checked {
    status: Status,
    /// Those of the wait's queue pairs when it was made.
    psns: Arc<[u32]>,
    /// True if the wait was not posted after all: the thread has nothing to poll.
    is_cancelled: Arc<AtomicBool>,
}

impl Checked {
    /// Makes the thread poll a CQE. The CQE returns to the card only after the stream has passed `point`, so after
    /// the status is written. Returns the stream's operation.
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
            psns: self.psns.clone(),
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
    psns: Arc<[u32]>,
    timeline: Arc<Timeline>,
    point: TimelinePoint,
    is_cancelled: Arc<AtomicBool>,
}

impl Task for Check {
    fn poll(&self) -> Polled {
        // The stream passes the point only after the status is written, unless it has failed; then the card may own
        // the CQE again.
        if self.is_cancelled.load(Ordering::Acquire) || self.timeline.has_passed(self.point) {
            return Polled::Done;
        }
        let state = self.cq.lock();
        // If the program has polled the CQE, the queue pair has failed, and may have been reset since.
        let is_history = state.is_history(self.index);
        let Some(entry) = state.read(self.index) else {
            if state.is_wait_ended(self.index) {
                drop(state);
                self.status.set(Err(self.ended()));
                return Polled::Done;
            }
            drop(state);
            for queue_pair in self.queue_pairs.iter().filter(|queue_pair| queue_pair.life.failure().is_some())
            {
                queue_pair.flush_unposted();
            }
            return Polled::Nothing;
        };
        let owner = self.owners().find(|(one, _)| one.number == entry.cqe.qpn());
        let psn = owner.map(|(owner, _)| owner.life.psn.load(Ordering::Relaxed));
        drop(state);
        let mut outcome = outcome(&entry.cqe);
        if let (Err(error), Some((failed, first_psn)), Some(psn)) = (&mut outcome, owner, psn) {
            // A target serves other initiators.
            if !is_history && !failed.is_target() {
                failed.fail_with_work(psn, *error);
                failed.flush_unposted();
            }
            if error.is_flush() {
                *error = failed.life.followed_by(if is_history { first_psn } else { psn }, *error);
            }
        }
        self.status.set(outcome);
        Polled::Done
    }
}

impl Check {
    /// Returns the queue pairs, each with its packet sequence number from when the wait was made.
    fn owners(&self) -> impl Iterator<Item = (&Arc<QueuePairInner>, u32)> {
        self.queue_pairs.iter().zip(self.psns.iter().copied())
    }

    /// Returns the outcome of a wait that [`CompletionState::end_waits`] has ended, with a failure of its queue pairs.
    fn ended(&self) -> WorkError {
        let flush = WorkError::new(Syndrome::WrFlush as u8, 0);
        let mut named = self.owners().map(|(owner, psn)| owner.life.followed_by(psn, flush));
        named.find(|error| error.flushed_after().is_some()).unwrap_or(flush)
    }
}

/// The thread that polls for checked waits, persistent requests, collectors, masters, and queue pairs being flushed.
pub(crate) static CHECKER: Poller = Poller::new("gdsync-checked");

/// Starts the thread of [`CHECKER`], unless it runs.
pub(crate) fn start_checker() -> Result<(), Error> {
    CHECKER.start().map_err(|source| Error::Thread { name: CHECKER.name, source })
}

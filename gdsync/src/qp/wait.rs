//! A prepared wait: the right to have a stream wait for one completion.

use crate::memory::timeline::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use crate::qp::checked::Checked;
use crate::qp::cq::CompletionQueueInner;
use crate::queue::doorbell::PeerOp;
use crate::queue::error::QueueError;
use std::fmt;
use std::sync::Arc;

/// A wait for the next completion of a completion queue that nobody waits for yet.
///
/// Which completion that is, of several queue pairs that share the queue, the card decides: the entry that it writes next. So a wait
/// says that as many completions have come as were waited for, of whichever queue pair.
///
/// Put it into a [`crate::Batch`] and post that. Dropping it instead gives the completion back: where it was the newest
/// wait, the next one prepared takes its place; otherwise no stream waits for that completion.
#[derive(Debug)]
#[must_use = "a prepared wait does nothing until it is posted in a batch"]
pub struct PreparedWait {
    cq: Arc<CompletionQueueInner>,
    index: u32,
    /// Once posted: what the stream writes when it has passed the wait.
    point: Option<TimelinePoint>,
    /// The queue pairs that completed here when it was prepared: what it counts on is theirs, and would not come without them.
    queue_pairs: Vec<Arc<QueuePairInner>>,
    /// A thread looks at the entry, and the stream waits for what it says.
    pub(crate) checked: Option<Checked>,
}

impl PreparedWait {
    pub(crate) fn new(cq: Arc<CompletionQueueInner>) -> Result<Self, QueueError> {
        loop {
            let mut state = cq.lock();
            // What is counted on may be a queue pair's that is going, which takes its share off under this lock.
            let Some(queue_pairs) = cq.attached() else {
                drop(state);
                std::thread::yield_now();
                continue;
            };
            let prepared = state.prepare_wait();
            // Before the queue pairs are let go of: the last one to do so needs the lock.
            drop(state);
            return Ok(PreparedWait { index: prepared?, cq, point: None, queue_pairs, checked: None });
        }
    }

    /// Which completion it waits for: the how-manieth of the queue, from 0 on, modulo 2^32.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Marks it as posted. Returns the peer operation that waits: none where the completion is known to have come, because a
    /// covering wait was posted with it before, and refused.
    pub(crate) fn commit(&mut self, timeline: &Arc<Timeline>, point: TimelinePoint) -> Option<PeerOp> {
        self.point = Some(point);
        let mut completions = self.cq.lock();
        if completions.is_recycled(self.index) {
            return None;
        }
        completions.post_wait(self.index, timeline, point);
        match &mut self.checked {
            None => Some(completions.wait_op(self.index)),
            Some(checked) => {
                drop(completions);
                Some(checked.commit(&self.cq, self.index, &self.queue_pairs, timeline, point))
            }
        }
    }

    /// Marks it as posted, where the stream waits for a later completion of the same queue and never looks at this one's entry:
    /// that need not be kept for it.
    pub(crate) fn commit_covered(&mut self, point: TimelinePoint) {
        self.point = Some(point);
        self.cq.lock().release_wait(self.index);
    }

    pub(crate) fn undo(&mut self) {
        if let Some(checked) = &self.checked {
            checked.undo();
        }
        self.cq.lock().unpost_wait(self.index);
        self.point = None;
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

    /// Identifies its completion queue, as long as it lives.
    pub(crate) fn queue_id(&self) -> u64 {
        Arc::as_ptr(&self.cq) as u64
    }

    /// The number of its completion queue.
    pub(crate) fn cq_num(&self) -> u32 {
        self.cq.number()
    }

    /// The queue pairs that complete here.
    pub(crate) fn queue_pairs(&self) -> &[Arc<QueuePairInner>] {
        &self.queue_pairs
    }
}

impl fmt::Display for PreparedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wait for completion {} of queue {:#x}", self.index, self.cq.number())?;
        for (i, queue_pair) in self.queue_pairs.iter().enumerate() {
            let word = if i == 0 { " (queue pair" } else { "," };
            write!(f, "{word} {:#x}", queue_pair.number())?;
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

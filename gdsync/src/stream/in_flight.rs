//! Submissions in flight: accepted by a stream, and kept alive until it has passed them.

use crate::batch::Descriptor;
use crate::memop::Gone;
use crate::memory::{Timeline, TimelinePoint};
use crate::qp::QueuePairInner;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) end: TimelinePoint,
    pub(super) kept: KeptAlive,
}

/// The objects that a submission names and keeps alive.
#[derive(Debug)]
pub(super) enum KeptAlive {
    Send(Arc<QueuePairInner>),
    /// Descriptors, which hold queue pairs, completion queues and the memory of words.
    Many(Vec<Descriptor>),
    /// The descriptors of a graph's batch nodes, and the number of nodes.
    Graph(Box<(Vec<Descriptor>, usize)>),
}

impl KeptAlive {
    /// Returns the submission's weight against [`crate::memop::MemOpCaps::max_outstanding`].
    pub(super) fn weight(&self) -> usize {
        match self {
            KeptAlive::Send(_) | KeptAlive::Many(_) => 1,
            KeptAlive::Graph(graph) => graph.1,
        }
    }
}

/// Submissions that a stream has passed, to be dropped without the stream's lock. Then prepared work behind that of failed
/// queue pairs is flushed. Their vector is reused.
#[derive(Debug, Default)]
pub(super) struct Past {
    submissions: Vec<InFlight>,
    spare: Option<Arc<Spare>>,
}

/// The vector of [`Past`] while it is not in use.
pub(super) type Spare = Mutex<Vec<InFlight>>;

impl Past {
    /// Makes an empty value with the stream's spare vector.
    pub(super) fn new(spare: &Arc<Spare>) -> Self {
        Past { submissions: std::mem::take(&mut *spare.lock()), spare: Some(spare.clone()) }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.spare.is_none()
    }

    pub(super) fn push(&mut self, submission: InFlight) {
        self.submissions.push(submission);
    }

    pub(super) fn extend(&mut self, mut more: Past) {
        if self.is_unused() {
            *self = more;
        } else {
            self.submissions.append(&mut more.submissions);
        }
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        let Some(spare) = &self.spare else { return };
        self.submissions.drain(..).for_each(|submission| submission.flush_failed());
        let mut room = spare.lock();
        if room.capacity() < self.submissions.capacity() {
            std::mem::swap(&mut *room, &mut self.submissions);
        }
    }
}

/// Submissions that were in flight when their streams were dropped.
static ORPHANS: Mutex<Vec<(Arc<Timeline>, InFlight)>> = Mutex::new(Vec::new());

impl InFlight {
    fn descriptors(&self) -> &[Descriptor] {
        match &self.kept {
            KeptAlive::Send(_) => &[],
            KeptAlive::Many(descriptors) => descriptors,
            KeptAlive::Graph(graph) => &graph.0,
        }
    }

    pub(super) fn queue_pairs(&self) -> impl Iterator<Item = &Arc<QueuePairInner>> {
        let sent = match &self.kept {
            KeptAlive::Send(queue_pair) => Some(queue_pair),
            KeptAlive::Many(_) | KeptAlive::Graph(_) => None,
        };
        sent.into_iter().chain(self.descriptors().iter().flat_map(Descriptor::queue_pairs))
    }

    /// Flushes the unposted work of queue pairs that have failed meanwhile.
    pub(super) fn flush_failed(&self) {
        for queue_pair in self.queue_pairs().filter(|queue_pair| queue_pair.life.failure().is_some()) {
            queue_pair.flush_unposted();
        }
    }

    /// Moves the queue pairs to the error state: the backend has failed, and may have rung any doorbell.
    pub(super) fn abort(&self) {
        abort(self.queue_pairs());
    }

    /// Returns the first unsatisfied wait that the stream has not passed, with its position.
    pub(super) fn oldest_wait(&self, timeline: &Timeline) -> Option<(usize, &Descriptor)> {
        let mut waits = self.descriptors().iter().enumerate().filter(|(_, descriptor)| descriptor.is_wait());
        waits.find(|(_, wait)| is_open(wait, timeline))
    }

    /// Returns the end of what would have ended one of the unsatisfied waits, if nothing does any more.
    pub(super) fn gone(&self, timeline: &Timeline) -> Option<Gone> {
        let mut waits = self.descriptors().iter().filter_map(|wait| Some((wait, wait.word_cause()?)));
        waits.find_map(|(wait, cause)| if is_open(wait, timeline) { cause.gone() } else { None })
    }
}

/// Returns whether a wait is unsatisfied. Words in GPU memory cannot be read here, and count as unsatisfied; so do words
/// that the stream has cleared after a wait that it is not known to have passed.
fn is_open(wait: &Descriptor, timeline: &Timeline) -> bool {
    match wait {
        Descriptor::WaitCq(wait) => !wait.is_passed(timeline) && !wait.is_satisfied(),
        Descriptor::Wait32(word, condition, value) => {
            word.load32().is_none_or(|now| !condition.holds32(now, *value))
        }
        Descriptor::Wait64(word, condition, value) => {
            word.load64().is_none_or(|now| !condition.holds64(now, *value))
        }
        _ => true,
    }
}

pub(super) fn abort<'a>(queue_pairs: impl Iterator<Item = &'a Arc<QueuePairInner>>) {
    for queue_pair in queue_pairs {
        if let Err(error) = queue_pair.abort() {
            tracing::error!(%error, qpn = queue_pair.number, "a queue pair of a failed stream could not be aborted");
        }
    }
}

/// Keeps the submissions of a stream that is being dropped, until its timeline has passed them.
pub(super) fn orphan(timeline: &Arc<Timeline>, in_flight: VecDeque<InFlight>) {
    if let Some(last) = in_flight.back() {
        crate::memory::add_unfinished(timeline, last.end);
    }
    let orphans = in_flight.into_iter().map(|submission| (timeline.clone(), submission));
    ORPHANS.lock().extend(orphans);
    reap_orphans();
}

/// Ends the submissions of a dropped stream whose backend performs nothing any more. The queue pairs have failed.
pub(super) fn end_orphans(timeline: &Timeline, queue_pairs: &[Arc<QueuePairInner>]) {
    timeline.kill();
    // Their sends wait for no stream any more.
    queue_pairs.iter().for_each(|queue_pair| queue_pair.flush_unposted());
    reap_orphans();
}

/// Drops orphaned submissions that have been passed.
pub(super) fn reap_orphans() {
    let Some(mut orphans) = ORPHANS.try_lock() else { return };
    let past = take_past(&mut orphans);
    drop(orphans);
    // Outside the lock: flushing and dropping take other locks.
    past.into_iter().for_each(|(_, submission)| submission.flush_failed());
}

fn take_past(orphans: &mut MutexGuard<'_, Vec<(Arc<Timeline>, InFlight)>>) -> Vec<(Arc<Timeline>, InFlight)> {
    if orphans.is_empty() {
        return Vec::new();
    }
    // A stream's submissions are in order: behind one that it has not passed, none is asked about.
    let mut stands: Option<u64> = None;
    let (past, kept) = orphans.drain(..).partition(|(timeline, submission)| {
        let is_passed = stands != Some(timeline.id()) && timeline.has_passed(submission.end);
        stands = if is_passed { stands } else { Some(timeline.id()) };
        is_passed
    });
    **orphans = kept;
    orphans.iter().for_each(|(_, submission)| submission.flush_failed());
    past
}

//! Posting batches on a backend, and knowing how far it has come.

use super::{MemOpCaps, MemOpStream, StreamError};
use crate::batch::{Batch, Descriptor, Lowering, Step};
use crate::cq::CompletionQueueInner;
use crate::error::{Error, QueueError};
use crate::lane::{Blocked, Lane, Ticket};
use crate::memory::PinnedMemory;
use crate::qp::QueuePairInner;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A batch whose end nobody has a wait for writes its progress only once in so many batches.
const PROGRESS_EVERY: u32 = 64;
/// How often a waiting host thread looks after queue pairs that failed meanwhile.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// A backend on which batches are posted. Dereferences to the backend.
///
/// Dropping it does not wait for the work that it has accepted; what that work names stays alive until it is past.
pub struct Stream<B: MemOpStream> {
    backend: B,
    caps: MemOpCaps,
    lane: Arc<Lane>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last ticket handed out.
    issued: Ticket,
    /// Submissions since the last one whose end ticket the stream writes.
    unwritten: u32,
    in_flight: VecDeque<InFlight>,
}

/// One submission, and what its operations name.
#[derive(Debug)]
struct InFlight {
    end: Ticket,
    keep: Keep,
}

/// What a submission keeps alive. Queue pairs come first: they must go before the queues they complete into.
#[derive(Debug, Default)]
struct Keep {
    queue_pairs: Vec<Arc<QueuePairInner>>,
    _completion_queues: Vec<Arc<CompletionQueueInner>>,
    _memory: Vec<PinnedMemory>,
}

/// Submissions of streams that were dropped before they had passed them.
static ORPHANS: Mutex<Vec<(Arc<Lane>, InFlight)>> = Mutex::new(Vec::new());

/// A batch that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Posted {
    /// Memory operations that it took.
    pub operations: usize,
    /// Submissions to the backend.
    pub submissions: usize,
}

/// Why a batch, or the rest of one, was not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// A send or wait cannot be posted now.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The backend refused.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream has as many submissions outstanding as it takes without blocking the caller.
    #[error(
        "{outstanding} submissions are outstanding and the stream takes {limit} ({blocked}): let it catch up, or put more into one batch"
    )]
    WouldBlock {
        /// Submissions outstanding.
        outstanding: usize,
        /// Its limit.
        limit: usize,
        /// The oldest of them.
        blocked: Blocked,
    },
}

/// A batch that was not posted wholly, with what is left of it: nothing is lost.
#[derive(Debug, thiserror::Error)]
#[error("posted {posted} of {} descriptors: {source}", .posted + .batch.len())]
pub struct PostError {
    /// The descriptors that were not posted, in order.
    pub batch: Batch,
    /// How many were posted before.
    pub posted: usize,
    /// Why not more.
    pub source: PostFailure,
}

impl<B: MemOpStream> Stream<B> {
    /// A stream on a backend.
    ///
    /// # Errors
    /// [`Error::Memory`] where its lane cannot be had.
    pub fn new(backend: B) -> Result<Self, Error> {
        let lane = Lane::new().map_err(|source| Error::Memory { len: size_of::<u32>(), source })?;
        Ok(Stream { caps: backend.caps(), backend, lane, state: Mutex::default() })
    }

    /// Posts a batch: the backend will perform its descriptors in order. Does not wait for that (unless the backend is
    /// [`super::Cpu`], which performs it before this returns).
    ///
    /// A batch that needs more operations than one submission takes is split between descriptors.
    ///
    /// # Errors
    /// [`PostError`], with the part of the batch that was not posted. Where the backend itself has failed, the queue
    /// pairs of that part's sends and waits are moved to the error state, because what was rung is not known.
    pub fn post(&self, mut batch: Batch) -> Result<Posted, PostError> {
        let mut state = self.lock();
        let mut done = Posted { operations: 0, submissions: 0 };
        let mut posted = 0;
        while !batch.is_empty() {
            let mut chunk = self.take_chunk(&mut batch.descriptors);
            match self.post_chunk(&mut state, &mut chunk) {
                Ok(operations) => {
                    posted += chunk.len();
                    done.operations += operations;
                    done.submissions += 1;
                }
                Err(source) => {
                    chunk.extend(batch.descriptors);
                    return Err(PostError { batch: Batch { descriptors: chunk }, posted, source });
                }
            }
        }
        Ok(done)
    }

    /// Waits until the stream has performed everything.
    ///
    /// # Errors
    /// [`StreamError::Failed`].
    pub fn synchronize(&self) -> Result<(), StreamError> {
        while !self.synchronize_timeout(Duration::from_secs(3600))? {}
        Ok(())
    }

    /// Waits until the stream has performed everything; false where that took longer than `timeout`.
    ///
    /// # Errors
    /// [`StreamError::Failed`].
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool, StreamError> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let idle = self.backend.wait_idle(left.min(LOOK_AFTER));
            let mut state = self.lock();
            // Asked again under the lock: nothing of ours can be posted meanwhile.
            match idle.and_then(|idle| if idle { self.backend.wait_idle(Duration::ZERO) } else { Ok(false) })
            {
                Ok(idle) => {
                    if idle {
                        self.lane.declare_passed(state.issued);
                        state.unwritten = 0;
                    }
                    let past = self.reap(&mut state);
                    drop(state);
                    drop(past);
                    if idle {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    self.abandon(state);
                    return Err(error);
                }
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Submissions that the stream is not known to have passed.
    pub fn outstanding(&self) -> usize {
        let mut state = self.lock();
        let past = self.reap(&mut state);
        let outstanding = state.in_flight.len();
        drop(state);
        drop(past);
        outstanding
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left lists that are consistent after each single step.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As many descriptors as fit one submission, with one operation kept for the closing ticket. At least one.
    fn take_chunk(&self, descriptors: &mut VecDeque<Descriptor>) -> VecDeque<Descriptor> {
        let mut cost = 1usize;
        let fits = |descriptor: &&Descriptor| {
            cost = cost.saturating_add(descriptor.cost(&self.caps));
            cost <= self.caps.max_ops
        };
        let count = descriptors.iter().take_while(fits).count().max(1).min(descriptors.len());
        let rest = descriptors.split_off(count);
        std::mem::replace(descriptors, rest)
    }

    fn post_chunk(&self, state: &mut State, chunk: &mut VecDeque<Descriptor>) -> Result<usize, PostFailure> {
        drop(self.reap(state));
        self.check_room(state)?;
        let mut end = state.issued;
        let tickets: Vec<Ticket> = chunk
            .iter()
            .map(|descriptor| {
                if matches!(descriptor, Descriptor::WaitCq(_)) {
                    end = end.next();
                }
                end
            })
            .collect();
        // A ticket is written right after its wait: whatever comes after the last wait needs another.
        let ends_with_wait = matches!(chunk.back(), Some(Descriptor::WaitCq(_)));
        if !ends_with_wait {
            end = end.next();
        }
        let write_end = !ends_with_wait && state.unwritten + 1 >= PROGRESS_EVERY;
        let result = self.commit(chunk, &tickets, end).and_then(|()| {
            let ops = self.lower(chunk, &tickets, write_end.then_some(end))?;
            // SAFETY: every address was translated by this backend. Rings, records and registers belong to queues that
            // `Keep` holds until the lane has passed `end`, which the backend writes (or is declared to have written once
            // it is idle) only after these operations; words belong to memory that it holds likewise; the lane's own word
            // goes with the lane, which `ORPHANS` holds for as long. The library computes aligned addresses.
            unsafe { self.backend.submit(&ops) }?;
            Ok(ops.len())
        });
        match result {
            Ok(operations) => {
                state.issued = end;
                state.unwritten = if ends_with_wait || write_end { 0 } else { state.unwritten + 1 };
                state.in_flight.push_back(InFlight { end, keep: Keep::of(chunk) });
                tracing::trace!(operations, ticket = end.0, "batch posted");
                Ok(operations)
            }
            Err(failure) => {
                chunk.iter_mut().rev().for_each(Descriptor::undo);
                if let PostFailure::Stream(StreamError::Failed { .. }) = &failure {
                    self.lane.kill();
                    Keep::of(chunk).abort();
                }
                Err(failure)
            }
        }
    }

    fn commit(
        &self,
        chunk: &mut VecDeque<Descriptor>,
        tickets: &[Ticket],
        end: Ticket,
    ) -> Result<(), PostFailure> {
        for (descriptor, ticket) in chunk.iter_mut().zip(tickets) {
            match descriptor {
                Descriptor::Send(send) => send.commit(&self.lane, end)?,
                Descriptor::WaitCq(wait) => wait.commit(&self.lane, *ticket),
                _ => {}
            }
        }
        Ok(())
    }

    fn lower(
        &self,
        chunk: &VecDeque<Descriptor>,
        tickets: &[Ticket],
        closing: Option<Ticket>,
    ) -> Result<Vec<super::MemOp>, PostFailure> {
        let translate = |addr, len| self.backend.translate(addr, len);
        let lowering = Lowering { caps: &self.caps, lane: self.lane.word(), translate };
        let mut ops = Vec::with_capacity(2 * chunk.len() + 1);
        for (descriptor, ticket) in chunk.iter().zip(tickets) {
            if let Some(step) = descriptor.step(*ticket) {
                lowering.lower(step, &mut ops)?;
            }
        }
        if let Some(ticket) = closing {
            lowering.lower(Step::Progress(ticket), &mut ops)?;
        }
        Ok(ops)
    }

    /// Takes out the submissions that the stream has passed, to be dropped by the caller, and looks after queue pairs that
    /// have failed. Then does the same for streams that are gone.
    fn reap(&self, state: &mut State) -> Vec<InFlight> {
        let mut past = Vec::new();
        while let Some(oldest) = state.in_flight.front() {
            if !self.lane.has_passed(oldest.end) {
                break;
            }
            past.extend(state.in_flight.pop_front());
        }
        if let Some(oldest) = state.in_flight.front() {
            oldest.keep.flush_failed();
        }
        reap_orphans();
        past
    }

    fn check_room(&self, state: &State) -> Result<(), PostFailure> {
        let (outstanding, limit) = (state.in_flight.len(), self.caps.max_outstanding);
        match state.in_flight.front() {
            Some(oldest) if outstanding >= limit => {
                Err(PostFailure::WouldBlock { outstanding, limit, blocked: self.lane.blocked_on(oldest.end) })
            }
            _ => Ok(()),
        }
    }

    /// The backend has failed: it will touch nothing any more, and nobody knows what it rang.
    fn abandon(&self, mut state: MutexGuard<'_, State>) {
        self.lane.kill();
        let lost = std::mem::take(&mut state.in_flight);
        drop(state);
        for submission in &lost {
            submission.keep.abort();
        }
    }
}

impl Descriptor {
    fn undo(&mut self) {
        match self {
            Descriptor::Send(send) => send.undo(),
            Descriptor::WaitCq(wait) => wait.undo(),
            _ => {}
        }
    }

    /// What is to be lowered; nothing for a send that the card was told of meanwhile because its queue pair failed.
    fn step(&self, ticket: Ticket) -> Option<Step> {
        Some(match self {
            Descriptor::Send(send) => Step::Send(send.peer_ops()?),
            Descriptor::WaitCq(wait) => Step::WaitCq(wait.peer_op(), ticket),
            Descriptor::Wait32(word, condition, value) => Step::Wait32(word.addr(), *condition, *value),
            Descriptor::Wait64(word, condition, value) => Step::Wait64(word.addr(), *condition, *value),
            Descriptor::Write32(word, value) => Step::Write32(word.addr(), *value),
            Descriptor::Write64(word, value) => Step::Write64(word.addr(), *value),
        })
    }
}

impl Keep {
    fn of(chunk: &VecDeque<Descriptor>) -> Self {
        let mut keep = Keep::default();
        for descriptor in chunk {
            match descriptor {
                Descriptor::Send(send) => keep.queue_pairs.push(send.queue_pair().clone()),
                Descriptor::WaitCq(wait) => {
                    // The queue pair, too: without it nothing would ever complete here.
                    keep.queue_pairs.extend(wait.queue().attached());
                    keep._completion_queues.push(wait.queue().clone());
                }
                Descriptor::Wait32(word, ..) => keep._memory.push(word.memory().clone()),
                Descriptor::Wait64(word, ..) => keep._memory.push(word.memory().clone()),
                Descriptor::Write32(word, _) => keep._memory.push(word.memory().clone()),
                Descriptor::Write64(word, _) => keep._memory.push(word.memory().clone()),
            }
        }
        keep
    }

    fn flush_failed(&self) {
        for queue_pair in self.queue_pairs.iter().filter(|queue_pair| queue_pair.failure().is_some()) {
            queue_pair.flush_unposted();
        }
    }

    fn abort(&self) {
        for queue_pair in &self.queue_pairs {
            if let Err(error) = queue_pair.abort() {
                tracing::error!(%error, qpn = queue_pair.number(), "a queue pair of a failed stream could not be aborted");
            }
        }
    }
}

fn reap_orphans() {
    let mut past = Vec::new();
    if let Ok(mut orphans) = ORPHANS.try_lock() {
        let (gone, kept) = orphans.drain(..).partition(|(lane, submission)| lane.has_passed(submission.end));
        *orphans = kept;
        orphans.iter().for_each(|(_, submission)| submission.keep.flush_failed());
        past = gone;
    }
    // Outside the lock: dropping may take other locks.
    drop(past);
}

impl<B: MemOpStream> Deref for Stream<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.backend
    }
}

impl<B: MemOpStream> fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Stream")
            .field("issued", &state.issued.0)
            .field("progress", &self.lane.progress().0)
            .field("in_flight", &state.in_flight.len())
            .finish()
    }
}

impl<B: MemOpStream> Drop for Stream<B> {
    fn drop(&mut self) {
        let mut state = self.lock();
        drop(self.reap(&mut state));
        if state.in_flight.is_empty() {
            return;
        }
        let in_flight = std::mem::take(&mut state.in_flight);
        let end = state.issued;
        drop(state);
        if self.write_closing_ticket(end).is_err() {
            // The backend has failed: it touches nothing any more.
            self.lane.kill();
            return;
        }
        let orphans = in_flight.into_iter().map(|submission| (self.lane.clone(), submission));
        ORPHANS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(orphans);
        reap_orphans();
    }
}

impl<B: MemOpStream> Stream<B> {
    fn write_closing_ticket(&self, end: Ticket) -> Result<(), StreamError> {
        let translate = |addr, len| self.backend.translate(addr, len);
        let lowering = Lowering { caps: &self.caps, lane: self.lane.word(), translate };
        let mut ops = Vec::with_capacity(1);
        lowering.lower(Step::Progress(end), &mut ops)?;
        // SAFETY: the lane's word, translated by this backend, lives in the lane, which `ORPHANS` keeps until it is written.
        unsafe { self.backend.submit(&ops) }
    }
}

//! Posting batches on a backend.
//!
//! A backend that performs a submission before it returns, such as [`super::Cpu`], performs one with waits without
//! the lock on the stream's state. Other threads can then query the stream's wait. They cannot post, as
//! [`StreamState::performing`] serializes posts instead of the lock.

use crate::batch::{Batch, Bytes, Chunk, Descriptor, Fate, Planner, Points};
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::TimelinePoint;
use crate::qp::PreparedSend;
use crate::stream::fast_path::FastPath;
use crate::stream::in_flight::{self, InFlight, KeptAlive, Past};
use crate::stream::lower::{Lowered, lower, lower_submission, lowering};
use crate::stream::proxy::{self, ProxiedDoorbell};
use crate::stream::state::{Engine, PROGRESS_EVERY, StreamState};
use crate::stream::{PostError, PostFailure, Posted};
use parking_lot::{Condvar, MutexGuard};
use tracing::level_filters::LevelFilter;

impl<B: MemOpStream> Engine<B> {
    /// Implements [`Stream::post_parts`](super::Stream::post_parts). `is_held`: waits of the batch are held.
    pub(super) fn post(
        &self,
        state: MutexGuard<'_, StreamState>,
        batch: Batch,
        is_held: bool,
        done: &mut Posted,
        whole: bool,
    ) -> Result<(), PostError> {
        let Batch { descriptors, unmerged } = batch;
        let mut rest = descriptors.into_iter();
        // Bound before the lock, and so dropped after it is released: the drops may take other locks.
        let mut past = Past::default();
        let mut state = state;
        self.await_turn(&mut state);
        state.reports = is_held;
        let mut posted = 0;
        if whole {
            let submissions = self.submissions(&mut state, rest.as_slice(), unmerged);
            if self.check_room(&mut state, submissions).is_err() {
                past.extend(self.reap(&mut state));
            }
            if let Err(source) = self.check_room(&mut state, submissions) {
                let batch = Batch { descriptors: rest.collect(), unmerged };
                return Err(PostError { batch, posted, source });
            }
        }
        while rest.len() > 0 {
            if state.is_long(&self.caps) {
                past.extend(self.reap(&mut state));
            }
            let mut planner = std::mem::take(&mut state.planner);
            planner.collecting = state.collector.collecting(rest.as_slice(), &self.backend);
            let plan = planner.plan(rest.as_slice(), &self.caps, !unmerged);
            // A batch that is one submission is not copied.
            let mut chunk: Vec<Descriptor> = match plan.count == rest.len() {
                true => std::mem::take(&mut rest).collect(),
                false => rest.by_ref().take(plan.count).collect(),
            };
            let result = self.post_chunk(&mut state, &mut chunk, &planner, &plan, !unmerged);
            state.planner = planner;
            match result {
                Ok((points, operations)) => {
                    state.accept(points, KeptAlive::Many(chunk), &self.caps);
                    posted += plan.count;
                    done.operations += operations;
                    done.submissions += 1;
                }
                Err(source) => {
                    chunk.extend(rest);
                    return Err(self.refuse(state, Batch { descriptors: chunk, unmerged }, posted, source));
                }
            }
        }
        Ok(())
    }

    /// Handles a send that the fast path has not posted.
    #[cold]
    #[inline(never)]
    pub(super) fn post_otherwise(
        &self,
        state: MutexGuard<'_, StreamState>,
        fast: FastPath,
        send: PreparedSend,
    ) -> Result<Posted, PostError> {
        match fast {
            FastPath::Refused(error) => Err(self.refuse(state, Batch::new().send(send), 0, error.into())),
            _ => self.post_send_in_full(state, send),
        }
    }

    /// Posts a send with housekeeping and the full lowering.
    fn post_send_in_full(
        &self,
        mut state: MutexGuard<'_, StreamState>,
        mut send: PreparedSend,
    ) -> Result<Posted, PostError> {
        self.await_turn(&mut state);
        state.reports = false;
        // Dropped after the lock is released: the drops may take other locks.
        let past = if state.is_long(&self.caps) { self.reap(&mut state) } else { Past::default() };
        let points = Points::next(state.issued);
        let lowered = lower_submission(self, &mut state, points, false, |lowering| {
            lowering.send(&mut send, Fate::Kept)
        });
        match lowered.and_then(|lowered| self.submit_lowered(&mut state, lowered, None)) {
            Ok((points, operations)) => {
                state.accept(points, KeptAlive::Send(send.into_queue_pair()), &self.caps);
                drop((state, past));
                Ok(Posted { operations, submissions: 1 })
            }
            Err(source) => {
                send.undo();
                Err(self.refuse(state, Batch::new().send(send), 0, source))
            }
        }
    }

    fn submissions(&self, state: &mut StreamState, descriptors: &[Descriptor], unmerged: bool) -> usize {
        let (mut rest, mut submissions) = (descriptors, 0);
        while !rest.is_empty() {
            state.planner.collecting = state.collector.collecting(rest, &self.backend);
            let plan = state.planner.plan(rest, &self.caps, !unmerged);
            rest = rest.get(plan.count..).unwrap_or_default();
            submissions += 1;
        }
        submissions
    }

    /// Gives the unposted rest back. If the backend has failed, it may have rung any doorbell, and the queue pairs
    /// are aborted.
    #[cold]
    fn refuse(
        &self,
        state: MutexGuard<'_, StreamState>,
        batch: Batch,
        posted: usize,
        source: PostFailure,
    ) -> PostError {
        if matches!(source, PostFailure::Stream(StreamError::Failed { .. })) {
            self.abandon(state);
            in_flight::abort(batch.descriptors.iter().flat_map(Descriptor::queue_pairs));
        }
        PostError { batch, posted, source }
    }

    /// Submits descriptors as planned. Returns their points, and the number of operations.
    fn post_chunk(
        &self,
        state: &mut MutexGuard<'_, StreamState>,
        chunk: &mut Vec<Descriptor>,
        planner: &Planner,
        plan: &Chunk,
        merged: bool,
    ) -> Result<(Points, usize), PostFailure> {
        if let [Descriptor::Bytes(bytes)] = &mut chunk[..]
            && bytes.word_count(&self.caps).is_none()
        {
            return self.post_bytes(state, bytes).map(|points| (points, 0));
        }
        let points = Points::planned(state.issued, plan);
        let lowered = lower_submission(self, state, points, merged, |lowering| {
            lower(lowering, chunk.iter_mut().zip(planner.fates.iter().copied()))?;
            lowering.catch_up()
        });
        if LevelFilter::current() >= LevelFilter::TRACE {
            trace_lowered(chunk, &planner.fates, &state.ops);
        }
        lowered
            .and_then(|lowered| self.submit_lowered(state, lowered, Some(chunk)))
            .inspect_err(|_| chunk.iter_mut().rev().for_each(Descriptor::undo))
    }

    /// Submits `state.ops`, made from `descriptors` or from one send. Returns the points, and the number of operations.
    fn submit_lowered(
        &self,
        state: &mut MutexGuard<'_, StreamState>,
        (points, rings): Lowered,
        descriptors: Option<&mut Vec<Descriptor>>,
    ) -> Result<(Points, usize), PostFailure> {
        let ops = std::mem::take(&mut state.ops);
        let result = match descriptors {
            Some(descriptors) if self.backend.is_synchronous() && ops.iter().any(MemOp::is_wait) => {
                self.perform(state, points.end, descriptors, &ops, rings)
            }
            // SAFETY: every address was translated by this backend, and is aligned. Rings, records and registers
            // belong to queues that the submission in flight holds until the timeline has passed `end`, which the
            // backend writes (or is declared to have written once it is idle) only after these operations; words
            // belong to memory that it holds likewise. The timeline's own word belongs to the timeline, which
            // `ORPHANS` holds as long; mailboxes belong to the proxy until they were written. The lock on the state
            // keeps others from submitting.
            _ => proxy::ringing(&state.proxied, rings, || unsafe { self.backend.submit(&ops) }),
        };
        let count = ops.len();
        state.ops = ops;
        result?;
        Ok((points, count))
    }

    /// Submits operations, one of which may wait, to a backend that performs them at once. The descriptors are
    /// returned afterwards.
    #[cold]
    #[inline(never)]
    fn perform(
        &self,
        state: &mut MutexGuard<'_, StreamState>,
        end: TimelinePoint,
        descriptors: &mut Vec<Descriptor>,
        ops: &[MemOp],
        rings: Vec<ProxiedDoorbell>,
    ) -> Result<(), StreamError> {
        let kept = KeptAlive::Many(std::mem::take(descriptors));
        state.performing = Some(InFlight { end, kept });
        // The fast path takes turns, too.
        state.fast_posts_left.set(0);
        let turn = Turn { state, over: &self.turn };
        let proxied = turn.state.proxied.clone();
        let result = MutexGuard::unlocked(turn.state, || {
            // SAFETY: as in `submit_lowered`; instead of the lock, `performing` keeps other threads from submitting.
            proxy::ringing(&proxied, rings, || unsafe { self.backend.submit(ops) })
        });
        if let Some(InFlight { kept: KeptAlive::Many(performed), .. }) = turn.state.performing.take() {
            *descriptors = performed;
        }
        result
    }

    /// Submits a write of bytes as a copy.
    fn post_bytes(&self, state: &mut StreamState, bytes: &mut Bytes) -> Result<Points, PostFailure> {
        self.make_room_for_bytes(state)?;
        let to = self.address(&bytes.location, bytes.content.len())?;
        let points = Points::next(state.issued);
        // SAFETY: the address is this backend's, and within one page of the host (`Bytes`). The descriptor holds
        // the memory and the staged copy until the timeline has passed the submission. The lock on the state keeps
        // others from submitting.
        let staged = unsafe { self.backend.write_bytes(to, bytes.location.kind(), &bytes.content) }?;
        bytes.keep(staged);
        Ok(points)
    }

    /// Makes room for a copy, which cannot write its point, and leaves the last place to a submission that can. If
    /// that place is next, or the point is due, the stream writes it before.
    fn make_room_for_bytes(&self, state: &mut StreamState) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        let due = state.unwritten >= PROGRESS_EVERY || state.weight.saturating_add(2) >= limit;
        if due && state.weight < limit {
            self.write_closing_point(state)?;
        }
        self.check_room(state, 2)
    }

    /// Makes the stream write its timeline at the end, unless its last submission does.
    pub(super) fn write_closing_point(&self, state: &mut StreamState) -> Result<(), StreamError> {
        if state.unwritten == 0 {
            return Ok(());
        }
        // A separate point: the timeline must live until this very write is past.
        let points = Points { open: false, ..Points::next(state.issued) };
        let mut ops = Vec::with_capacity(1);
        state.translations.refresh(&self.backend);
        lowering(self, state, points, false, &mut ops).progress(points.end)?;
        // SAFETY: the timeline's word, translated by this backend, is in the timeline, which `ORPHANS` keeps until
        // it has reached `points.end`. The lock on the state keeps other threads from submitting.
        unsafe { self.backend.submit(&ops) }?;
        state.accept(points, KeptAlive::Many(Vec::new()), &self.caps);
        Ok(())
    }
}

/// Traces descriptors and their operations.
#[cold]
#[inline(never)]
fn trace_lowered(descriptors: &[Descriptor], fates: &[Fate], ops: &[MemOp]) {
    for (descriptor, fate) in descriptors.iter().zip(fates) {
        tracing::trace!(%descriptor, covered = *fate == Fate::Covered, "lowered");
    }
    for op in ops {
        tracing::trace!(?op, "submitted");
    }
}

/// The turn of the thread that performs. It also ends if the backend panics.
struct Turn<'a, 'b> {
    state: &'a mut MutexGuard<'b, StreamState>,
    over: &'a Condvar,
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        self.state.performing = None;
        self.over.notify_all();
    }
}

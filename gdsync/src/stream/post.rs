//! Posting batches on a backend.
//!
//! A backend that performs a submission before it returns, such as [`super::Cpu`], performs one with waits without
//! the lock on the stream's state. Other threads can then query the stream's wait. They cannot post, as
//! [`StreamState::performing`] serializes posts instead of the lock.

use crate::batch::{Batch, Bytes, Chunk, Descriptor, Fate, Lowering, Planner, Points};
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::TimelinePoint;
use crate::stream::in_flight::{self, InFlight, KeptAlive, Past};
use crate::stream::lower::Posting;
use crate::stream::proxy::ProxiedDoorbell;
use crate::stream::state::{PROGRESS_EVERY, Stream, StreamState};
use crate::stream::{PostError, PostFailure, Posted};
use gdsync_sys::pause::Pause;
use parking_lot::{Condvar, MutexGuard};
use std::time::Duration;
use tracing::level_filters::LevelFilter;

impl<B: MemOpStream> Stream<B> {
    /// Posts a batch: the backend will perform its descriptors in order. This does not wait for that, except with
    /// [`super::Cpu`], which performs the batch before this returns. While that waits, other posting threads wait for
    /// their turn; all other calls return at once.
    ///
    /// A batch that needs more operations than one submission takes is split between descriptors.
    ///
    /// # Errors
    /// [`PostError`], with the part of the batch that was not posted. If the backend itself has failed, the queue
    /// pairs of that part's sends and waits move to the error state, as it is not known which doorbells have rung.
    pub fn post(&self, batch: Batch) -> Result<Posted, PostError> {
        let mut done = Posted { operations: 0, submissions: 0 };
        self.post_counting(batch, &mut done, false).map(|()| done)
    }

    /// Posts nothing unless the stream has room for the whole batch. Counts what it has posted in `done`.
    pub(super) fn post_whole(&self, batch: Batch, done: &mut Posted) -> Result<(), PostError> {
        self.post_counting(batch, done, true)
    }

    /// Waits up to `timeout` while the stream has as many submissions outstanding as it takes, and posts.
    ///
    /// # Errors
    /// As [`Self::post`]; [`PostFailure::WouldBlock`] after the timeout.
    pub fn post_timeout(&self, mut batch: Batch, timeout: Duration) -> Result<Posted, PostError> {
        let mut pause = Pause::new();
        let mut done = Posted { operations: 0, submissions: 0 };
        let mut before = 0;
        loop {
            match self.post_counting(batch, &mut done, false) {
                Err(PostError { batch: rest, posted, source: PostFailure::WouldBlock { .. } })
                    if pause.elapsed() < timeout =>
                {
                    before += posted;
                    batch = rest;
                    pause.pause();
                }
                Err(error) => return Err(PostError { posted: before + error.posted, ..error }),
                Ok(()) => return Ok(done),
            }
        }
    }

    fn post_counting(&self, batch: Batch, done: &mut Posted, whole: bool) -> Result<(), PostError> {
        let _span = tracing::enabled!(tracing::Level::TRACE)
            .then(|| tracing::trace_span!("post", descriptors = batch.len()).entered());
        let Batch { descriptors, unmerged } = batch;
        let mut rest = descriptors.into_iter();
        // Dropped after the lock is released: the drops may take other locks.
        let mut past = Past::default();
        let mut state = self.lock();
        self.await_turn(&mut state);
        let mut posted = 0;
        if whole {
            let submissions = self.submissions(&mut state, rest.as_slice(), unmerged);
            if self.check_room(&mut state, submissions).is_err() {
                past.extend(self.reap(&mut state));
            }
            if let Err(source) = self.check_room(&mut state, submissions) {
                return Err(PostError {
                    batch: Batch { descriptors: rest.collect(), unmerged },
                    posted,
                    source,
                });
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
            let mut chunk: Vec<Descriptor> = if plan.count == rest.len() {
                std::mem::take(&mut rest).collect()
            } else {
                rest.by_ref().take(plan.count).collect()
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
        // Unlike other submissions, copies of bytes write no point.
        if state.signals_always()
            && let Err(error) = self.write_closing_point(&mut state)
        {
            tracing::debug!(%error, "the stream cannot write the point of a copy");
        }
        Ok(())
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
    pub(super) fn refuse(
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
        let lowered = self.lower_submission(state, points, merged, |lowering| {
            Self::lower(lowering, chunk.iter_mut().zip(planner.fates.iter().copied()))?;
            lowering.catch_up()
        });
        if LevelFilter::current() >= LevelFilter::TRACE {
            trace_lowered(chunk, &planner.fates, &state.ops);
        }
        lowered
            .and_then(|lowered| self.submit_lowered(state, lowered, Some(chunk)))
            .inspect_err(|_| chunk.iter_mut().rev().for_each(Descriptor::undo))
    }

    /// Makes the operations of a submission, `state.ops`: those that `lower` appends, and a point if one is due.
    pub(super) fn lower_submission(
        &self,
        state: &mut StreamState,
        mut points: Points,
        merged: bool,
        lower: impl FnOnce(&mut Lowering<'_, Posting<'_, B>>) -> Result<(), PostFailure>,
    ) -> Result<Lowered, PostFailure> {
        self.check_room(state, 1)?;
        state.translations.refresh(&self.backend);
        let mut ops = std::mem::take(&mut state.ops);
        ops.clear();
        let mut lowering = self.lowering(state, points, merged, &mut ops);
        // The last submission with room always writes a point, so that a full stream drains without another one.
        let last = state.weight + 1 >= self.caps.max_outstanding;
        let is_due = points.open && (state.unwritten + 1 >= state.progress_every || last);
        let at_end = state.signals_always();
        let mut result = Ok(());
        if is_due && !at_end && !points.has_own && state.unwritten > 0 {
            // Before: the program may ask whether the stream is idle as soon as it sees its last write.
            result = lowering.progress(points.before).map_err(PostFailure::from);
            points.has_own = true;
        }
        result = result.and_then(|()| lower(&mut lowering));
        if is_due && at_end && result.is_ok() {
            result = lowering.progress(points.end).map_err(PostFailure::from);
            points.open = false;
        }
        let rings = lowering.driver.rings;
        state.ops = ops;
        result.map(|()| Lowered { points, rings })
    }

    /// Submits `state.ops`, made from `descriptors` or from one send. Returns the points, and the number of operations.
    pub(super) fn submit_lowered(
        &self,
        state: &mut MutexGuard<'_, StreamState>,
        lowered: Lowered,
        descriptors: Option<&mut Vec<Descriptor>>,
    ) -> Result<(Points, usize), PostFailure> {
        let Lowered { points, rings } = lowered;
        let ops = std::mem::take(&mut state.ops);
        self.timeline.expect(points.end);
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
            _ => Self::with_proxy(&state.proxied, rings, || unsafe { self.backend.submit(&ops) }),
        };
        if result.is_err() {
            self.timeline.expect(points.before);
        }
        let count = ops.len();
        state.ops = ops;
        result?;
        Ok((points, count))
    }

    /// Submits operations, one of which may wait, to a backend that performs them at once. The descriptors are
    /// returned afterwards.
    #[cold]
    #[inline(never)]
    pub(super) fn perform(
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
            Self::with_proxy(&proxied, rings, || unsafe { self.backend.submit(ops) })
        });
        if let Some(InFlight { kept: KeptAlive::Many(performed), .. }) = turn.state.performing.take() {
            *descriptors = performed;
        }
        result
    }

    /// Submits a write of bytes as a copy.
    pub(super) fn post_bytes(
        &self,
        state: &mut StreamState,
        bytes: &mut Bytes,
    ) -> Result<Points, PostFailure> {
        self.make_room_for_bytes(state)?;
        let to = self.address(&bytes.location, bytes.content.len())?;
        let points = Points::next(state.issued);
        self.timeline.expect(points.end);
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
}

pub(super) struct Lowered {
    points: Points,
    rings: Vec<ProxiedDoorbell>,
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

//! Posting batches on a backend.

use crate::batch::{Batch, Chunk, Descriptor, Fate, Lowering, Planner, Points};
use crate::cuda::arena_of;
use crate::memop::{MemOp, MemOpCaps, MemOpStream, StreamError};
use crate::memory::{Timeline, TimelinePoint};
use crate::stream::in_flight::{self, Held, InFlight, Past, Spare};
use crate::stream::lower::{Posting, StreamCollector};
use crate::stream::proxy::{self, Ring};
use crate::stream::translations::Translations;
use crate::stream::{DoorbellPath, Doorbells, PostError, PostFailure, Posted, StreamOptions};
use crate::verbs::Error;
use gdsync_sys::pause::{self, Pause};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Of submissions without waits for completions, one in this many writes the point of those before.
pub(super) const PROGRESS_EVERY: u32 = 64;
/// From this many submissions in flight on, posts retire those that are past. Posts before that
/// read no memory that the stream writes.
const REAP_FROM: usize = 32;

/// A backend on which batches are posted. Dereferences to the backend.
///
/// Dropping it does not wait for the work that it has accepted. What that work names stays alive
/// until the stream has passed it.
///
/// ```
/// use gdsync::memop::{Condition, MemOpStream, Word32};
/// use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Streams of any kind fit one type.
/// let backend: Box<dyn MemOpStream> = Box::new(SoftStream::new()?);
/// let stream: Stream<Box<dyn MemOpStream>> = Stream::new(backend)?;
/// let memory = PinnedMemory::allocate(8)?;
/// let (go, done) = (Word32::new(&memory, 0)?, Word32::new(&memory, 4)?);
/// stream.post(Batch::new().wait_value32(&go, Condition::Eq, 1).write_value32(&done, 1))?;
/// assert_eq!((done.load(), stream.outstanding()), (0, 1));
/// go.store(1);
/// stream.synchronize()?;
/// assert_eq!((done.load(), stream.outstanding()), (1, 0));
/// # Ok(())
/// # }
/// ```
pub struct Stream<B: MemOpStream> {
    pub(crate) backend: B,
    pub(super) caps: MemOpCaps,
    pub(super) path: DoorbellPath,
    pub(crate) timeline: Arc<Timeline>,
    pub(super) state: Mutex<State>,
    /// Signalled when a thread has performed a submission.
    pub(super) turn: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    /// The last point handed out.
    pub(super) issued: TimelinePoint,
    /// Submissions since the last point that the stream writes.
    pub(super) unwritten: u32,
    /// One submission in this many writes a point; each its own end, where that is 1.
    progress_every: u32,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The submission that a thread performs at this moment, without the lock: no other thread
    /// submits meanwhile.
    pub(super) performing: Option<InFlight>,
    /// The sum of the weights of those in flight.
    pub(super) weight: usize,
    /// Sends that may take the fast path before the next housekeeping: retiring submissions,
    /// writing a point, the limit of submissions outstanding. 0 while the proxy rings, and while a
    /// thread performs.
    pub(super) fast_posts_left: Cell<u32>,
    pub(super) doorbells: RefCell<Doorbells>,
    pub(super) translations: Translations,
    /// Doorbells that the proxy has to ring for this stream.
    pub(super) proxied: Arc<proxy::Queue>,
    /// Memory operations of the last submission; kept for their allocation, as is the planner.
    ops: Vec<MemOp>,
    planner: Planner,
    pub(super) collector: StreamCollector,
    pub(super) spare: Arc<Spare>,
}

impl<B: MemOpStream> Stream<B> {
    /// A stream on a backend.
    ///
    /// # Errors
    /// [`Error::Memory`] where its timeline cannot be had;
    /// [`PlacementError`](crate::cuda::PlacementError).
    pub fn new(backend: B) -> Result<Self, Error> {
        Self::with_options(backend, StreamOptions::default())
    }

    /// A stream on a backend, with options.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Thread`] for [`DoorbellPath::Proxy`].
    pub fn with_options(backend: B, options: StreamOptions) -> Result<Self, Error> {
        pause::prepare();
        proxy::start_if_asked_for(options.doorbells)?;
        let timeline = Timeline::of(backend.device(), arena_of(options.timeline)?.as_ref());
        let timeline = timeline.map_err(|source| Error::Memory { len: size_of::<u32>(), source })?;
        let state = State {
            issued: TimelinePoint::default(),
            unwritten: 0,
            progress_every: if options.always_signal { 1 } else { PROGRESS_EVERY },
            in_flight: VecDeque::with_capacity(REAP_FROM),
            performing: None,
            weight: 0,
            fast_posts_left: Cell::new(0),
            doorbells: RefCell::new(Doorbells::at_first(options.doorbells)),
            translations: Translations::default(),
            proxied: Arc::default(),
            ops: Vec::with_capacity(REAP_FROM),
            planner: Planner::default(),
            collector: StreamCollector::new(options.collect_from, options.collect_in),
            spare: Arc::default(),
        };
        if options.always_signal {
            let timeline = timeline.clone();
            backend.idle_probe(Arc::new(move || timeline.is_quiet()));
        }
        Ok(Stream {
            caps: backend.caps(),
            backend,
            path: options.doorbells,
            timeline,
            state: Mutex::new(state),
            turn: Condvar::new(),
        })
    }

    /// Posts a batch: the backend will perform its descriptors in order. Does not wait for that
    /// (unless the backend is [`super::Cpu`], which performs it before this returns. While it
    /// waits, other threads that post wait for their turn; all other calls answer at once).
    ///
    /// A batch that needs more operations than one submission takes is split between descriptors.
    ///
    /// # Errors
    /// [`PostError`], with the part of the batch that was not posted. Where the backend itself has
    /// failed, the queue pairs of that part's sends and waits are moved to the error state, because
    /// what was rung is not known.
    pub fn post(&self, batch: Batch) -> Result<Posted, PostError> {
        let mut done = Posted { operations: 0, submissions: 0 };
        self.post_counting(batch, &mut done, false).map(|()| done)
    }

    /// As [`Self::post`], but posts nothing where the stream has no room for the whole batch. Counts what
    /// it has posted in `done`.
    pub(super) fn post_whole(&self, batch: Batch, done: &mut Posted) -> Result<(), PostError> {
        self.post_counting(batch, done, true)
    }

    /// As [`Self::post`], but waits up to `timeout` while the stream has as many submissions
    /// outstanding as it takes.
    ///
    /// # Errors
    /// As [`Self::post`]; [`PostFailure::WouldBlock`] where that took longer.
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
                    state.accept(points, Held::Many(chunk), &self.caps);
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

    /// How many submissions a batch takes.
    fn submissions(&self, state: &mut State, descriptors: &[Descriptor], unmerged: bool) -> usize {
        let (mut rest, mut submissions) = (descriptors, 0);
        while !rest.is_empty() {
            state.planner.collecting = state.collector.collecting(rest, &self.backend);
            let plan = state.planner.plan(rest, &self.caps, !unmerged);
            rest = rest.get(plan.count..).unwrap_or_default();
            submissions += 1;
        }
        submissions
    }

    /// Gives back what was not posted. If the backend has failed, which doorbells it rang is not
    /// known, and the queue pairs are aborted.
    #[cold]
    pub(super) fn refuse(
        &self,
        state: MutexGuard<'_, State>,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Submits descriptors as planned. Returns their points, and the number of operations.
    fn post_chunk(
        &self,
        state: &mut MutexGuard<'_, State>,
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

    /// Makes the operations of a submission, `state.ops`, of what `lower` appends, and a point if one is
    /// due.
    pub(super) fn lower_submission(
        &self,
        state: &mut State,
        mut points: Points,
        merged: bool,
        lower: impl FnOnce(&mut Lowering<'_, Posting<'_, B>>) -> Result<(), PostFailure>,
    ) -> Result<Lowered, PostFailure> {
        self.check_room(state, 1)?;
        state.translations.refresh(&self.backend);
        let mut ops = std::mem::take(&mut state.ops);
        ops.clear();
        let mut lowering = self.lowering(state, points, merged, &mut ops);
        // The last submission that there is room for always writes a point, so that a full stream
        // drains without another one.
        let last = state.weight + 1 >= self.caps.max_outstanding;
        let is_due = points.open && (state.unwritten + 1 >= state.progress_every || last);
        let at_end = state.signals_always();
        let mut result = Ok(());
        if is_due && !at_end && !points.has_own && state.unwritten > 0 {
            // In front: the program may ask whether the stream is idle as soon as it sees its last write.
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

    /// Submits `state.ops`, made of `descriptors` or of a lone send. Returns the points, and the
    /// number of operations.
    pub(super) fn submit_lowered(
        &self,
        state: &mut MutexGuard<'_, State>,
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
            // SAFETY: every address was translated by this backend. Rings, records and registers
            // belong to queues that the submission in flight holds until the timeline has passed
            // `end`, which the backend writes (or is declared to have written once it is idle) only
            // after these operations; words belong to memory that it holds likewise; the timeline's
            // own word belongs to the timeline, which `ORPHANS` holds for as long; mailboxes belong
            // to the proxy until they were written. The library computes aligned addresses. The
            // lock on the state keeps others from submitting.
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

    /// Whether there is room for a submission that counts for `weight`.
    #[inline]
    pub(super) fn check_room(&self, state: &mut State, weight: usize) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        match state.in_flight.front() {
            Some(oldest) if state.weight + weight > limit => Err(self.would_block(state.weight, oldest.end)),
            _ => Ok(()),
        }
    }

    #[cold]
    #[inline(never)]
    fn would_block(&self, outstanding: usize, oldest: TimelinePoint) -> PostFailure {
        let (limit, blocked) = (self.caps.max_outstanding, self.timeline.blocked_on(oldest));
        PostFailure::WouldBlock { outstanding, limit, blocked }
    }
}

/// A submission whose operations are made.
pub(super) struct Lowered {
    points: Points,
    /// Doorbells that the proxy will ring.
    rings: Vec<Ring>,
}

impl State {
    /// Each submission writes its own end.
    #[inline(always)]
    pub(super) fn signals_always(&self) -> bool {
        self.progress_every == 1
    }

    /// True once posts retire submissions.
    #[inline]
    pub(super) fn is_long(&self, caps: &MemOpCaps) -> bool {
        self.in_flight.len() >= REAP_FROM || self.weight >= caps.max_outstanding
    }

    /// The backend has taken a submission.
    pub(super) fn accept(&mut self, points: Points, held: Held, caps: &MemOpCaps) {
        self.issued = points.end;
        self.unwritten = match points {
            Points { open: false, .. } => 0,
            Points { has_own: true, .. } => 1,
            _ => self.unwritten + 1,
        };
        self.weight += held.weight();
        self.in_flight.push_back(InFlight { end: points.end, held });
        let room = caps.max_outstanding.saturating_sub(self.weight + 1);
        let left = REAP_FROM.saturating_sub(self.in_flight.len()).min(room) as u32;
        let left = match self.signals_always() {
            true => left,
            false => left.min(self.progress_every.saturating_sub(self.unwritten + 1)),
        };
        self.fast_posts_left.set(if self.rings_itself() && caps.writes_are_fenced { left } else { 0 });
        if LevelFilter::current() >= LevelFilter::TRACE {
            trace_posted(points.end);
        }
    }
}

/// Traces descriptors and the operations that they became.
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

#[cold]
#[inline(never)]
fn trace_posted(point: TimelinePoint) {
    tracing::trace!(point = point.0, "posted");
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
            .field("progress", &self.timeline.progress().0)
            .field("in_flight", &state.in_flight.len())
            .field("performing", &state.performing.is_some())
            .field("doorbells", &*state.doorbells.borrow())
            .field("proxied", &state.proxied)
            .finish()
    }
}

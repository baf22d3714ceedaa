//! The parts of a stream: its backend with its timeline, and the state under its lock.

use crate::batch::{Descriptor, Planner, Points};
use crate::memop::{Gone, Location, MemOp, MemOpCaps, MemOpStream, Site, StreamError};
use crate::memory::{StreamAddr, Timeline, TimelinePoint};
use crate::stream::collector::StreamCollector;
use crate::stream::in_flight::{self, InFlight, KeptAlive, Past, Spare};
use crate::stream::proxy::ProxyQueue;
use crate::stream::shown::Shown;
use crate::stream::translations::Translations;
use crate::stream::{DoorbellPath, Doorbells, PostFailure, StreamOptions};
use parking_lot::{Condvar, MutexGuard};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;

/// One in this many submissions without waits for completions writes the previous submissions' point.
pub(super) const PROGRESS_EVERY: u32 = 64;
/// Fewest submissions in flight with which posts retire passed ones. Other posts read no memory that the stream writes.
const REAP_FROM: usize = 32;

/// What of a stream its lock does not protect. Its methods are called with the lock held.
pub(super) struct Engine<B: MemOpStream> {
    pub(super) backend: B,
    pub(super) caps: MemOpCaps,
    pub(super) path: DoorbellPath,
    pub(super) timeline: Arc<Timeline>,
    /// Signalled when a thread has performed a submission.
    pub(super) turn: Condvar,
    /// True while the stream stops at waits that nothing ends any more; none if it never did.
    pub(super) hold: Option<Arc<AtomicBool>>,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) issued: TimelinePoint,
    /// Submissions since the last point that the stream writes.
    pub(super) unwritten: u32,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The submission that a thread is performing without the lock. No other thread submits meanwhile.
    pub(super) performing: Option<InFlight>,
    pub(super) weight: usize,
    /// Sends that may take the fast path before the next housekeeping: retiring submissions, writing a point, the
    /// limit of outstanding submissions. 0 while the proxy rings, and while a thread performs.
    pub(super) fast_posts_left: Cell<u32>,
    pub(super) doorbells: RefCell<Doorbells>,
    pub(super) translations: Translations,
    /// Doorbells that the proxy must ring for this stream.
    pub(super) proxied: Arc<ProxyQueue>,
    /// Memory operations of the last submission. They and the planner are kept for their allocations.
    pub(super) ops: Vec<MemOp>,
    pub(super) planner: Planner,
    pub(super) collector: StreamCollector,
    pub(super) spare: Arc<Spare>,
    /// True while a batch with held waits is posted: its submissions write their ends, which tell whether the stream has
    /// passed the waits.
    pub(super) reports: bool,
    /// The oldest unsatisfied wait at the last look, and when it was first seen to be that.
    pub(super) standing: Option<(WaitPlace, Instant)>,
    pub(super) shown: Option<Arc<Shown>>,
}

/// A wait in the order of a stream: the end of its submission, and its position there.
pub(super) type WaitPlace = (TimelinePoint, usize);

impl<B: MemOpStream> Engine<B> {
    /// Waits until no other thread performs a submission.
    #[inline]
    pub(super) fn await_turn(&self, state: &mut MutexGuard<'_, StreamState>) {
        while state.performing.is_some() {
            self.turn.wait(state);
        }
    }

    /// Returns the stream's address of `len` bytes at a place.
    ///
    /// # Errors
    /// [`StreamError`] if the stream does not reach the place.
    #[inline]
    pub(super) fn address(&self, location: &Location, len: usize) -> Result<StreamAddr, StreamError> {
        if let Some(memory) = location.gpu_memory() {
            self.backend.reaches(memory)?;
        }
        match location.site() {
            Site::Host(addr) => self.backend.translate(addr, len),
            Site::Stream(addr) => Ok(addr),
        }
    }

    #[inline]
    pub(super) fn check_room(&self, state: &mut StreamState, weight: usize) -> Result<(), PostFailure> {
        let limit = self.caps.max_outstanding;
        match state.in_flight.front() {
            Some(oldest) if state.weight + weight > limit => Err(self.would_block(state, oldest.end)),
            _ => Ok(()),
        }
    }

    /// Keeps the words' waits from ending without the awaited writes, if the stream stops at such waits. Returns whether
    /// there are any.
    pub(super) fn hold_waits(&self, descriptors: &[Descriptor]) -> bool {
        let Some(hold) = self.hold.as_ref().filter(|hold| hold.load(Ordering::Acquire)) else { return false };
        let causes = descriptors.iter().filter_map(Descriptor::word_cause);
        causes.map(|cause| cause.hold(hold)).count() > 0
    }

    /// Returns the error of a stream that has stopped at a wait that nothing ends any more.
    pub(super) fn stopped(&self, state: &StreamState) -> Option<StreamError> {
        self.hold.as_ref().filter(|hold| hold.load(Ordering::Acquire))?;
        let Gone { rank, reason } = state.given().find_map(|submission| submission.gone(&self.timeline))?;
        Some(StreamError::Stopped { rank, reason })
    }

    #[cold]
    #[inline(never)]
    fn would_block(&self, state: &StreamState, oldest: TimelinePoint) -> PostFailure {
        if let Some(stopped) = self.stopped(state) {
            return PostFailure::Stream(stopped);
        }
        let outstanding = state.weight;
        let (limit, blocked) = (self.caps.max_outstanding, self.timeline.blocked_on(oldest));
        PostFailure::WouldBlock { outstanding, limit, blocked }
    }

    /// Returns whether nothing that could write the timeline's word is being performed. The state's lock keeps
    /// other threads from posting.
    pub(super) fn is_idle(&self, state: &StreamState) -> Result<bool, StreamError> {
        if state.performing.is_some() { Ok(false) } else { self.backend.wait_idle(Duration::ZERO) }
    }

    /// Writes the timeline by the CPU, if the stream is idle but its timeline lags.
    pub(super) fn retire_if_idle(&self, state: &mut StreamState) {
        if state.unwritten > 0 && !state.in_flight.is_empty() && matches!(self.is_idle(state), Ok(true)) {
            self.timeline.declare_passed(state.issued);
            state.unwritten = 0;
        }
    }

    /// Takes the submissions that the stream has passed, for the caller to drop without the lock, and flushes
    /// failed queue pairs. Does the same for dropped streams.
    #[inline(never)]
    pub(super) fn reap(&self, state: &mut StreamState) -> Past {
        if state.weight >= self.caps.max_outstanding {
            self.retire_if_idle(state);
        }
        let mut past = Past::default();
        while let Some(oldest) = state.in_flight.front() {
            if !self.timeline.has_passed(oldest.end) {
                break;
            }
            if let Some(passed) = state.in_flight.pop_front() {
                state.weight -= passed.kept.weight();
                if past.is_unused() {
                    past = Past::new(&state.spare);
                }
                past.push(passed);
            }
        }
        if let Some(oldest) = state.in_flight.front() {
            oldest.flush_failed();
        }
        in_flight::reap_orphans();
        past
    }

    /// Gives up all submissions, as the backend has failed: it accesses no memory any more, and may have rung any
    /// doorbell.
    pub(super) fn abandon(&self, mut state: MutexGuard<'_, StreamState>) {
        self.timeline.kill();
        let lost = std::mem::take(&mut state.in_flight);
        state.weight = 0;
        drop(state);
        lost.iter().for_each(InFlight::abort);
    }
}

impl StreamState {
    pub(super) fn new(options: &StreamOptions) -> Self {
        StreamState {
            issued: TimelinePoint::default(),
            unwritten: 0,
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
            reports: false,
            standing: None,
            shown: None,
        }
    }

    /// Returns submissions that the backend is not known to have passed, oldest first.
    pub(super) fn given(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter().chain(&self.performing)
    }

    /// Returns the oldest unsatisfied wait, and how long it is known to be that.
    pub(super) fn stand(&mut self, timeline: &Timeline) -> Option<(WaitPlace, Duration, &Descriptor)> {
        let StreamState { in_flight, performing, standing, .. } = self;
        let oldest = in_flight.iter().chain(&*performing).find_map(|submission| {
            let (position, descriptor) = submission.oldest_wait(timeline)?;
            Some(((submission.end, position), descriptor))
        });
        let Some((place, descriptor)) = oldest else {
            *standing = None;
            return None;
        };
        let since = match *standing {
            Some((before, since)) if before == place => since,
            _ => standing.insert((place, Instant::now())).1,
        };
        Some((place, since.elapsed(), descriptor))
    }

    /// Returns whether posts retire submissions.
    #[inline]
    pub(super) fn is_long(&self, caps: &MemOpCaps) -> bool {
        self.in_flight.len() >= REAP_FROM || self.weight >= caps.max_outstanding
    }

    /// Records a submission that the backend has taken.
    pub(super) fn accept(&mut self, points: Points, kept: KeptAlive, caps: &MemOpCaps) {
        self.issued = points.end;
        self.unwritten = match points {
            Points { open: false, .. } => 0,
            Points { has_own: true, .. } => 1,
            _ => self.unwritten + 1,
        };
        self.weight += kept.weight();
        self.in_flight.push_back(InFlight { end: points.end, kept });
        let room = caps.max_outstanding.saturating_sub(self.weight + 1);
        let left = REAP_FROM.saturating_sub(self.in_flight.len()).min(room) as u32;
        let left = left.min(PROGRESS_EVERY.saturating_sub(self.unwritten + 1));
        self.fast_posts_left.set(if self.rings_itself() && caps.writes_are_fenced { left } else { 0 });
        if LevelFilter::current() >= LevelFilter::TRACE {
            trace_posted(points.end);
        }
    }

    #[inline]
    pub(super) fn rings_itself(&self) -> bool {
        matches!(*self.doorbells.borrow(), Doorbells::Direct)
    }

    pub(super) fn fall_back(&self, reason: String) {
        tracing::info!(reason, "the stream cannot reach the card's doorbells: a proxy thread rings them");
        *self.doorbells.borrow_mut() = Doorbells::Proxy { reason };
        self.fast_posts_left.set(0);
    }
}

#[cold]
#[inline(never)]
fn trace_posted(point: TimelinePoint) {
    tracing::trace!(point = point.0, "posted");
}

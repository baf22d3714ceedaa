//! A stream's backend, its timeline, and the state under its lock.

use crate::batch::{Planner, Points};
use crate::cuda::arena_of;
use crate::memop::{Location, MemOp, MemOpCaps, MemOpStream, Site, StreamError};
use crate::memory::{StreamAddr, Timeline, TimelinePoint};
use crate::stream::collector::StreamCollector;
use crate::stream::in_flight::{InFlight, KeptAlive, Spare};
use crate::stream::proxy;
use crate::stream::translations::Translations;
use crate::stream::{DoorbellPath, Doorbells, PostFailure, StreamOptions};
use crate::verbs::Error;
use gdsync_sys::pause;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// One in this many submissions without waits for completions writes the previous submissions' point.
pub(super) const PROGRESS_EVERY: u32 = 64;
/// Fewest submissions in flight with which posts retire passed ones. Other posts read no memory that the stream writes.
const REAP_FROM: usize = 32;

/// A stream that performs batches in order. It dereferences to its backend, such as [`SoftStream`](crate::SoftStream)
/// or [`CudaStream`](crate::CudaStream).
///
/// Dropping it does not wait for accepted work. The objects that the work names live until the stream has passed it.
///
/// ```
/// use gdsync::memop::{Condition, MemOpStream, Word32};
/// use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stream<B: MemOpStream> {
    pub(crate) backend: B,
    pub(super) caps: MemOpCaps,
    pub(super) path: DoorbellPath,
    pub(crate) timeline: Arc<Timeline>,
    pub(super) state: Mutex<StreamState>,
    /// Signalled when a thread has performed a submission.
    pub(super) turn: Condvar,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) issued: TimelinePoint,
    /// Submissions since the last point that the stream writes.
    pub(super) unwritten: u32,
    /// One submission in this many writes a point; if it is 1, each writes its own end.
    pub(super) progress_every: u32,
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
    pub(super) proxied: Arc<proxy::ProxyQueue>,
    /// Memory operations of the last submission. They and the planner are kept for their allocations.
    pub(super) ops: Vec<MemOp>,
    pub(super) planner: Planner,
    pub(super) collector: StreamCollector,
    pub(super) spare: Arc<Spare>,
}

impl<B: MemOpStream> Stream<B> {
    /// Makes a stream on a backend.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is none for its timeline.
    pub fn new(backend: B) -> Result<Self, Error> {
        Self::with_options(backend, StreamOptions::default())
    }

    /// Makes a stream on a backend, with options.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::Thread`] if [`DoorbellPath::Proxy`] has no thread;
    /// [`PlacementError`](crate::cuda::PlacementError) if its timeline cannot be placed as asked.
    pub fn with_options(backend: B, options: StreamOptions) -> Result<Self, Error> {
        pause::prepare();
        proxy::start_if_asked_for(options.doorbells)?;
        let timeline = Timeline::of(backend.device(), arena_of(options.timeline)?.as_ref());
        let timeline = timeline.map_err(|source| Error::Memory { len: size_of::<u32>(), source })?;
        let state = StreamState {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }

    /// Waits until no other thread performs a submission.
    #[inline]
    pub(super) fn await_turn(&self, state: &mut MutexGuard<'_, StreamState>) {
        while state.performing.is_some() {
            self.turn.wait(state);
        }
    }

    /// Returns the stream's address of `len` bytes at a location.
    ///
    /// # Errors
    /// [`StreamError`] if the stream does not reach the location.
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

impl StreamState {
    /// Returns whether each submission writes its own end.
    #[inline(always)]
    pub(super) fn signals_always(&self) -> bool {
        self.progress_every == 1
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
        let left = match self.signals_always() {
            true => left,
            false => left.min(self.progress_every.saturating_sub(self.unwritten + 1)),
        };
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

//! A stream, and its calls.

use crate::batch::Batch;
use crate::memop::{MemOpStream, StreamError};
use crate::memory::Timeline;
use crate::qp::{PreparedSend, QueuePair};
use crate::queue::WorkRequest;
use crate::queue::send::PostMode;
use crate::stream::fast_path::FastPath;
use crate::stream::in_flight::InFlight;
use crate::stream::proxy;
use crate::stream::state::{Engine, StreamState, WaitPlace};
use crate::stream::watchdog::{StalledWait, Watchdog, Watched};
use crate::stream::{DoorbellPath, Doorbells, PostError, PostFailure, Posted, StreamOptions};
use crate::verbs::Error;
use gdsync_sys::pause::{self, Pause};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Delay until a waiting CPU thread first checks for failed queue pairs. The delay doubles each time, up to
/// [`LONGEST_LOOK`]: a check takes a step for each send in flight, and many threads may wait.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(160);
/// Period in which a waiting CPU thread logs the wait at which the stream hangs.
const STALL: Duration = Duration::from_secs(10);

/// A stream that performs batches in order. It dereferences to its backend, such as [`SoftStream`](crate::SoftStream)
/// or [`CudaStream`](crate::CudaStream).
///
/// Dropping it does not wait for accepted work. The objects that the work names live until the stream has passed it. A stream
/// that has stopped ([`StreamOptions::stop_at_death`]) performs no more of it if it is in software; the queue pairs of that work
/// fail.
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
    pub(super) engine: Engine<B>,
    pub(super) state: Mutex<StreamState>,
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
    /// As [`Self::new`]; [`Error::Thread`] if [`DoorbellPath::Proxy`] has no thread.
    pub fn with_options(backend: B, options: StreamOptions) -> Result<Self, Error> {
        pause::prepare();
        proxy::start_if_asked_for(options.doorbells)?;
        let timeline = Timeline::new(backend.device())
            .map_err(|source| Error::Memory { len: size_of::<u32>(), source })?;
        let state = StreamState::new(&options);
        let (caps, path, turn) = (backend.caps(), options.doorbells, Condvar::new());
        let stops = options.stop_at_death && !backend.is_synchronous();
        let hold = stops.then(|| Arc::new(AtomicBool::new(true)));
        Ok(Stream { engine: Engine { backend, caps, path, timeline, turn, hold }, state: Mutex::new(state) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }

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
        self.post_parts(batch, &mut done, false).map(|()| done)
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
            match self.post_parts(batch, &mut done, false) {
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

    /// Posts a prepared send, as [`Self::post`] posts a batch of it alone, in less CPU time.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send(&self, send: PreparedSend) -> Result<Posted, PostError> {
        let mut state = self.lock();
        match state.submit_fast(&self.engine, &send.queue_pair, send.place()) {
            FastPath::Posted(end) => Ok(state.hold(end, send.into_queue_pair())),
            other => self.engine.post_otherwise(state, other, send),
        }
    }

    /// Posts as [`Self::post_send`] does, for a stream's only owner: takes no lock of the stream.
    ///
    /// ```
    /// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
    /// # left.connect(&right.endpoint()?, Default::default())?;
    /// # right.connect(&left.endpoint()?, Default::default())?;
    /// # let region = MemoryRegion::allocate(&pd, 8, Access::all())?;
    /// let mut stream = Stream::new(SoftStream::new()?)?;
    /// let send = left.prepare(WorkRequest::write_inline(b"hello", region.remote()))?;
    /// stream.post_send_mut(send)?;
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send_mut(&mut self, send: PreparedSend) -> Result<Posted, PostError> {
        let state = self.state.get_mut();
        match state.submit_fast(&self.engine, &send.queue_pair, send.place()) {
            FastPath::Posted(end) => Ok(state.hold(end, send.into_queue_pair())),
            other => self.engine.post_otherwise(self.lock(), other, send),
        }
    }

    /// Prepares a request and posts it on this stream (libgdsync's `gds_stream_queue_send`).
    ///
    /// # Errors
    /// Those of [`QueuePair::prepare`] and of [`Self::post`]. The request then leaves the send queue.
    pub fn queue_send(
        &self,
        queue_pair: &QueuePair,
        request: WorkRequest<'_>,
    ) -> Result<Posted, PostFailure> {
        let enqueued = queue_pair.inner.enqueue(&request, PostMode::LATER)?;
        self.post_send(PreparedSend::of(queue_pair.inner.clone(), enqueued)).map_err(|error| error.source)
    }

    /// Posts a batch; with `whole`, only if the stream has room for all of it. Counts what it has posted in `done`.
    pub(super) fn post_parts(&self, batch: Batch, done: &mut Posted, whole: bool) -> Result<(), PostError> {
        let _span = tracing::enabled!(tracing::Level::TRACE)
            .then(|| tracing::trace_span!("post", descriptors = batch.len()).entered());
        let is_held = self.engine.hold_waits(&batch.descriptors);
        self.engine.post(self.lock(), batch, is_held, done, whole)
    }

    /// Waits until the stream has performed everything (of [some](crate::CudaStream::borrow_raw), the library's work).
    ///
    /// # Errors
    /// As [`Self::synchronize_timeout`].
    pub fn synchronize(&self) -> Result<(), StreamError> {
        while !self.synchronize_timeout(STALL)? {
            if let Some(wait) = self.explain_wait() {
                tracing::warn!(wait, "a stream has not come further than this wait for {STALL:?}");
            }
        }
        Ok(())
    }

    /// Waits until the stream has performed everything. Returns false after `timeout`: [`Self::explain_wait`] then says
    /// why.
    ///
    /// # Errors
    /// [`StreamError::Failed`] if the backend has failed; [`StreamError::Stopped`] if the stream stands at a wait that
    /// nothing ends any more; another [`StreamError`] if the backend cannot tell.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool, StreamError> {
        let _waiting = gdsync_trace::span(gdsync_trace::EventKind::Synchronize, || [0; 3]);
        let deadline = Instant::now().checked_add(timeout);
        let mut look_after = FIRST_LOOK;
        loop {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            let idle = self.engine.backend.wait_idle(left.min(look_after));
            look_after = (look_after * 2).min(LONGEST_LOOK);
            let mut state = self.lock();
            let idle = idle.and_then(|idle| if idle { self.engine.is_idle(&state) } else { Ok(false) });
            match idle {
                Ok(idle) => {
                    if idle {
                        self.engine.timeline.declare_passed(state.issued);
                        state.unwritten = 0;
                    }
                    let past = self.engine.reap(&mut state);
                    if !idle {
                        state.given().for_each(InFlight::flush_failed);
                    }
                    let long_wait = state.long_wait(idle, &self.engine.timeline);
                    let stopped = if idle { None } else { self.engine.stopped(&state) };
                    drop((state, past));
                    if let Some(long_wait) = long_wait {
                        long_wait.show();
                    }
                    match stopped {
                        Some(error) => return Err(error),
                        None if idle => return Ok(true),
                        None => {}
                    }
                }
                Err(error) => {
                    if matches!(error, StreamError::Failed { .. }) {
                        self.engine.abandon(state);
                    }
                    return Err(error);
                }
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Lets the stream go on at waits that a death has ended, now and from now on, as one without
    /// [`StreamOptions::stop_at_death`] does: it performs what follows them, without the awaited data.
    pub fn go_on(&self) {
        if let Some(hold) = &self.engine.hold {
            hold.store(false, Ordering::Release);
        }
    }

    /// Returns the number of submissions that the stream is not known to have passed. A graph counts for each batch
    /// node.
    pub fn outstanding(&self) -> usize {
        let mut state = self.lock();
        self.engine.retire_if_idle(&mut state);
        let past = self.engine.reap(&mut state);
        let outstanding = state.weight + usize::from(state.performing.is_some());
        drop((state, past));
        outstanding
    }

    /// Describes the oldest unsatisfied wait that the stream is not known to have passed: the wait at which it
    /// hangs, if it does. [`Self::explain_wait`] also says why.
    pub fn oldest_wait(&self) -> Option<String> {
        self.lock().stand(&self.engine.timeline).map(|(.., wait)| wait.to_string())
    }

    /// Says at which wait the stream stands, for how long at least, and why: that the peer has posted no receive, is
    /// stopped or has ended, that a notification has not been set, that a trigger's ticket was never written. The words are
    /// those of `gdsync top`. `None` if it stands at none.
    ///
    /// It asks the processes of this user on this host what they know, which takes up to 250 ms if one of them does not
    /// answer. Of a real card and its peers only the library's part is known. The time counts from the first look at the
    /// stream (this call, [`Self::synchronize_timeout`], the watchdog) that has found it at the wait.
    ///
    /// ```
    /// use gdsync::{Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, SoftStream, Stream, WorkRequest};
    /// use std::time::Duration;
    /// # let pd = ProtectionDomain::new(&Device::software()?)?;
    /// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
    /// # let forever = ConnectOptions::default().rnr_retry(7);
    /// # left.connect(&right.endpoint()?, forever)?;
    /// # right.connect(&left.endpoint()?, forever)?;
    /// # let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
    /// let stream = Stream::new(SoftStream::new()?)?;
    /// left.post_send(WorkRequest::send(&[region.slice(..8)?]))?; // the peer has posted no receive
    /// stream.post(Batch::new().wait(left.send_cq().prepare_wait()?))?;
    /// assert!(!stream.synchronize_timeout(Duration::from_millis(50))?);
    /// println!("{}", stream.explain_wait().ok_or("the stream stands at no wait")?);
    /// // wait for completion 0 of queue 0x44 (queue pair 0x45), for 30 ms: queue pair 0x45 waits for a receive of the peer (RNR), …
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain_wait(&self) -> Option<String> {
        let (_, stood, wait) = self.stalled()?;
        Some(wait.explained(stood))
    }

    /// Returns how the doorbells of a queue pair reach its card. Decides it if necessary, so that the first send
    /// does not.
    ///
    /// # Errors
    /// [`StreamError::NoThread`]; [`StreamError`] if the stream cannot reach the doorbell register and
    /// [`DoorbellPath::Direct`] requires it.
    pub fn doorbells(&self, queue_pair: &QueuePair) -> Result<Doorbells, StreamError> {
        let state = self.lock();
        if state.rings_itself() {
            let register = queue_pair.inner.send().register;
            match self.engine.backend.translate(register, size_of::<u64>()) {
                Err(StreamError::Unreachable { reason, .. }) if self.engine.path == DoorbellPath::Auto => {
                    state.fall_back(reason);
                    proxy::start()?;
                }
                other => drop(other?),
            }
        }
        let doorbells = state.doorbells.borrow().clone();
        Ok(doorbells)
    }
}

impl<B: MemOpStream + 'static> Stream<B> {
    /// Starts a thread that checks the stream periodically. If the stream stays at the same wait for `after`, the
    /// thread reports the wait and its duration once, as a `tracing` warning and to `callback`. The thread ends
    /// with the returned handle, or with the stream, which it does not keep alive. A callback that panics is
    /// logged, and called again at the next wait.
    ///
    /// # Errors
    /// [`Error::Thread`]; [`OutOfRange`](crate::verbs::OutOfRange) for an `after` of 0.
    pub fn watchdog(
        self: &Arc<Self>,
        after: Duration,
        callback: impl FnMut(&StalledWait, Duration) + Send + 'static,
    ) -> Result<Watchdog, Error> {
        Watchdog::start(Arc::downgrade(self), after, callback)
    }
}

impl<B: MemOpStream> Watched for Stream<B> {
    fn stalled(&self) -> Option<(WaitPlace, Duration, StalledWait)> {
        if !matches!(self.engine.backend.wait_idle(Duration::ZERO), Ok(false)) {
            return None;
        }
        let mut state = self.lock();
        let (place, stood, descriptor) = state.stand(&self.engine.timeline)?;
        Some((place, stood, StalledWait::of(descriptor)))
    }
}

impl<B: MemOpStream> Deref for Stream<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.engine.backend
    }
}

impl<B: MemOpStream> fmt::Debug for Stream<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Stream")
            .field("issued", &state.issued.0)
            .field("progress", &self.engine.timeline.progress().0)
            .field("in_flight", &state.in_flight.len())
            .field("performing", &state.performing.is_some())
            .field("doorbells", &*state.doorbells.borrow())
            .field("proxied", &state.proxied)
            .finish()
    }
}

impl<B: MemOpStream> Drop for Stream<B> {
    fn drop(&mut self) {
        self.engine.end(self.lock());
    }
}

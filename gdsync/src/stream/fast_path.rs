//! Posting one send in little more time than the backend's call takes, for programs that send from a loop.

use crate::batch::{Batch, Fate, Points};
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::{StreamAddr, Timeline, TimelinePoint};
use crate::qp::{PreparedSend, QueuePair, QueuePairInner};
use crate::queue::send::{PostMode, PreviousPost};
use crate::queue::{Release, WorkRequest};
use crate::stream::in_flight::{InFlight, KeptAlive, Past};
use crate::stream::state::StreamState;
use crate::stream::{PostError, PostFailure, Posted, Stream};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::level_filters::LevelFilter;

/// The outcome of a send on the fast path.
enum FastPath {
    Posted(TimelinePoint),
    /// It needs housekeeping or the full lowering. Nothing has changed.
    NotTaken,
    /// The backend has refused it. Nothing has changed.
    Refused(StreamError),
}

impl StreamState {
    /// Submits a send if its pages are in the translation cache and it is next in its queue pair's order. The state
    /// belongs to the stream with this backend and this timeline.
    #[inline(always)]
    fn submit_fast<B: MemOpStream>(
        &mut self,
        backend: &B,
        timeline: &Arc<Timeline>,
        queue_pair: &QueuePairInner,
        (serial, release): (u64, Release),
    ) -> FastPath {
        let left = self.fast_posts_left.get();
        let Release::Ring(doorbell) = release else { return FastPath::NotTaken };
        if left == 0 || LevelFilter::current() >= LevelFilter::TRACE {
            return FastPath::NotTaken;
        }
        self.translations.refresh(backend);
        let end = self.issued.next();
        let known = |addr| self.translations.known(addr);
        let (Some(record), Some(register)) = (known(doorbell.record_at), known(doorbell.register)) else {
            return FastPath::NotTaken;
        };
        let word = match self.signals_always() {
            false => None,
            true => match known(timeline.word()) {
                None => return FastPath::NotTaken,
                word => word,
            },
        };
        if !queue_pair.life.is_ready.load(Ordering::Acquire) {
            return FastPath::NotTaken;
        }
        let Some(before) = queue_pair.send().post_next(serial, timeline, end) else {
            return FastPath::NotTaken;
        };
        let ring = [
            MemOp::Write32 { addr: record, value: doorbell.record },
            MemOp::Write64 { addr: register, value: doorbell.value },
        ];
        // SAFETY: as in `submit_lowered`: the addresses were translated by this backend; record and register belong to
        // the queue pair, which the submission in flight holds (`StreamState::hold`), and the word to the timeline. The
        // exclusive reference to the state, by its lock or by the stream's only owner, keeps others from submitting.
        let submitted = unsafe {
            match word {
                None => backend.submit(&ring),
                Some(word) => submit_signalling(backend, timeline, ring, word, [self.issued, end]),
            }
        };
        if let Err(error) = submitted {
            queue_pair.send().undo_post(serial, PreviousPost::SameTimeline(before));
            return FastPath::Refused(error);
        }
        self.fast_posts_left.set(left - 1);
        FastPath::Posted(end)
    }

    /// Keeps the queue pair of a submitted send alive until the stream has passed it.
    #[inline(always)]
    fn hold(&mut self, end: TimelinePoint, queue_pair: Arc<QueuePairInner>) -> Posted {
        let signals = self.signals_always();
        self.issued = end;
        self.unwritten += u32::from(!signals);
        self.weight += 1;
        self.in_flight.push_back(InFlight { end, kept: KeptAlive::Send(queue_pair) });
        Posted { operations: 2 + usize::from(signals), submissions: 1 }
    }
}

/// Submits a doorbell, followed by the write of the submission's point. The two points are the previous and this one.
///
/// # Safety
/// As [`MemOpStream::submit`], for the doorbell and the word, which is the timeline's.
#[inline(never)]
unsafe fn submit_signalling<B: MemOpStream>(
    backend: &B,
    timeline: &Timeline,
    [record, register]: [MemOp; 2],
    word: StreamAddr,
    [before, end]: [TimelinePoint; 2],
) -> Result<(), StreamError> {
    let ops = [record, register, MemOp::Write32 { addr: word, value: end.get() }];
    timeline.expect(end);
    // SAFETY: the caller's.
    let submitted = unsafe { backend.submit(&ops) };
    if submitted.is_err() {
        timeline.expect(before);
    }
    submitted
}

impl<B: MemOpStream> Stream<B> {
    /// Posts a prepared send, as [`Self::post`] posts a batch of it alone, in less CPU time.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send(&self, send: PreparedSend) -> Result<Posted, PostError> {
        let mut state = self.lock();
        match state.submit_fast(&self.backend, &self.timeline, &send.queue_pair, send.place()) {
            FastPath::Posted(end) => Ok(state.hold(end, send.into_queue_pair())),
            other => self.post_otherwise(state, other, send),
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
        let Stream { backend, timeline, state, .. } = self;
        let state = state.get_mut();
        match state.submit_fast(backend, timeline, &send.queue_pair, send.place()) {
            FastPath::Posted(end) => Ok(state.hold(end, send.into_queue_pair())),
            other => self.post_otherwise(self.lock(), other, send),
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
        let queue_pair = &queue_pair.inner;
        let place = queue_pair.enqueue(&request, PostMode::LATER)?;
        let mut state = self.lock();
        match state.submit_fast(&self.backend, &self.timeline, queue_pair, place) {
            FastPath::Posted(end) => Ok(state.hold(end, queue_pair.clone())),
            other => self.queue_otherwise(state, other, queue_pair, place),
        }
    }

    /// Posts as [`Self::queue_send`] does, for a stream's only owner: takes no lock of the stream.
    ///
    /// # Errors
    /// As [`Self::queue_send`].
    pub fn queue_send_mut(
        &mut self,
        queue_pair: &QueuePair,
        request: WorkRequest<'_>,
    ) -> Result<Posted, PostFailure> {
        let queue_pair = &queue_pair.inner;
        let place = queue_pair.enqueue(&request, PostMode::LATER)?;
        let Stream { backend, timeline, state, .. } = self;
        let state = state.get_mut();
        match state.submit_fast(backend, timeline, queue_pair, place) {
            FastPath::Posted(end) => Ok(state.hold(end, queue_pair.clone())),
            other => self.queue_otherwise(self.lock(), other, queue_pair, place),
        }
    }

    #[cold]
    #[inline(never)]
    fn queue_otherwise(
        &self,
        state: MutexGuard<'_, StreamState>,
        fast: FastPath,
        queue_pair: &Arc<QueuePairInner>,
        enqueued: (u64, Release),
    ) -> Result<Posted, PostFailure> {
        self.post_otherwise(state, fast, PreparedSend::of(queue_pair.clone(), enqueued))
            .map_err(|error| error.source)
    }

    /// Handles a send that the fast path has not posted.
    #[cold]
    #[inline(never)]
    fn post_otherwise(
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
        // Dropped after the lock is released: the drops may take other locks.
        let past = if state.is_long(&self.caps) { self.reap(&mut state) } else { Past::default() };
        let points = Points::next(state.issued);
        let lowered =
            self.lower_submission(&mut state, points, false, |lowering| lowering.send(&mut send, Fate::Kept));
        match lowered.and_then(|lowered| self.submit_lowered(&mut state, lowered, None)) {
            Ok((points, operations)) => {
                state.accept(points, KeptAlive::Send(send.into_queue_pair()), &self.caps);
                drop(state);
                drop(past);
                Ok(Posted { operations, submissions: 1 })
            }
            Err(source) => {
                send.undo();
                Err(self.refuse(state, Batch::new().send(send), 0, source))
            }
        }
    }
}

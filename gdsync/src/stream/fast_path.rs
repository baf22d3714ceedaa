//! Posting one send, in little more time than the backend's call takes: programs that send from a
//! loop do little else.

use super::in_flight::{Held, InFlight, Past};
use super::post::{State, Stream};
use super::post_error::{PostError, PostFailure, Posted};
use crate::batch::{Batch, Fate, Points};
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::qp::{PreparedSend, QueuePair, QueuePairInner};
use crate::queue::{Release, WorkRequest};
use parking_lot::MutexGuard;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// What has become of a send on the fast path.
enum FastPath {
    /// It is submitted, with this point.
    Posted(TimelinePoint),
    /// It needs housekeeping, or the full lowering. Nothing has changed.
    NotTaken,
    /// The backend has refused it. Nothing has changed.
    Refused(StreamError),
}

/// The operations of a send on the fast path: a doorbell record and a doorbell.
const POSTED: Posted = Posted { operations: 2, submissions: 1 };

impl State {
    /// A send has been submitted: its queue pair lives until the stream has passed it.
    #[inline(always)]
    fn hold(&mut self, end: TimelinePoint, queue_pair: Arc<QueuePairInner>) {
        self.issued = end;
        self.unwritten += 1;
        self.weight += 1;
        self.in_flight.push_back(InFlight { end, held: Held::Send(queue_pair) });
    }
}

impl<B: MemOpStream> Stream<B> {
    /// Posts a prepared send, as [`Self::post`] posts a batch of it alone, in less of the CPU's
    /// time.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send(&self, send: PreparedSend) -> Result<Posted, PostError> {
        let mut state = self.lock();
        let (serial, release) = send.place();
        match self.submit_fast(&mut state, &send.queue_pair, serial, release) {
            FastPath::Posted(end) => {
                state.hold(end, send.into_queue_pair());
                Ok(POSTED)
            }
            FastPath::NotTaken => self.post_send_in_full(state, send),
            FastPath::Refused(error) => Err(self.refuse(state, Batch::new().send(send), 0, error.into())),
        }
    }

    /// Prepares a request and posts it on this stream, for programs that do nothing in between.
    /// (libgdsync calls it `gds_stream_queue_send`.)
    ///
    /// # Errors
    /// Those of [`QueuePair::prepare`] and of [`Self::post`]. The request then leaves the send
    /// queue.
    pub fn queue_send(
        &self,
        queue_pair: &QueuePair,
        request: WorkRequest<'_>,
    ) -> Result<Posted, PostFailure> {
        let queue_pair = &queue_pair.inner;
        let (serial, release) = queue_pair.prepare_send(&request, None)?;
        let mut state = self.lock();
        let fast = self.submit_fast(&mut state, queue_pair, serial, release);
        let queue_pair = queue_pair.clone();
        if let FastPath::Posted(end) = fast {
            state.hold(end, queue_pair);
            return Ok(POSTED);
        }
        self.queue_in_full(state, fast, PreparedSend::assemble(queue_pair, serial, release))
    }

    #[cold]
    #[inline(never)]
    fn queue_in_full(
        &self,
        state: MutexGuard<'_, State>,
        fast: FastPath,
        send: PreparedSend,
    ) -> Result<Posted, PostFailure> {
        let posted = match fast {
            FastPath::Refused(error) => Err(self.refuse(state, Batch::new().send(send), 0, error.into())),
            _ => self.post_send_in_full(state, send),
        };
        posted.map_err(|error| error.source)
    }

    /// Submits a send if its pages are in the cache of translations and it is next in its queue
    /// pair's order.
    #[inline(always)]
    fn submit_fast(
        &self,
        state: &mut State,
        queue_pair: &QueuePairInner,
        serial: u64,
        release: Release,
    ) -> FastPath {
        let left = state.fast_posts_left.get();
        let Release::Ring(doorbell) = release else { return FastPath::NotTaken };
        if left == 0 || LevelFilter::current() >= LevelFilter::TRACE {
            return FastPath::NotTaken;
        }
        state.translations.refresh(&self.backend);
        let end = state.issued.next();
        let known = |addr| state.translations.known(addr);
        let (Some(record), Some(register)) = (known(doorbell.record_at), known(doorbell.register)) else {
            return FastPath::NotTaken;
        };
        let Some(before) = queue_pair.commit_next(serial, &self.timeline, end) else {
            return FastPath::NotTaken;
        };
        let ops = [
            MemOp::Write32 { addr: record, value: doorbell.record },
            MemOp::Write64 { addr: register, value: doorbell.value },
        ];
        // SAFETY: as in `submit_lowered`: both addresses were translated by this backend, and
        // belong to the queue pair, which the submission in flight holds (`State::hold`); the lock
        // on the state keeps others from submitting.
        if let Err(error) = unsafe { self.backend.submit(&ops) } {
            queue_pair.undo_next(serial, before);
            return FastPath::Refused(error);
        }
        state.fast_posts_left.set(left - 1);
        FastPath::Posted(end)
    }

    /// Posts a send with housekeeping and the full lowering.
    #[cold]
    #[inline(never)]
    fn post_send_in_full(
        &self,
        mut state: MutexGuard<'_, State>,
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
                state.accept(points, Held::Send(send.into_queue_pair()), &self.caps);
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

//! Posting one send: little more than the driver's call, as programs that send from a loop do little else.

use super::in_flight::{Held, InFlight, Past};
use super::post::{State, Stream};
use super::post_error::{PostError, PostFailure, Posted};
use crate::batch::Batch;
use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::qp::prepared::PreparedSend;
use crate::qp::{QueuePair, QueuePairInner};
use crate::queue::doorbell::Doorbell;
use crate::queue::request::WorkRequest;
use parking_lot::MutexGuard;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// What has become of a send that may be nothing out of the ordinary.
enum Plain {
    Posted(TimelinePoint),
    /// It wants care; nothing has changed.
    No,
    /// The backend has refused it; nothing else has changed.
    Refused(StreamError),
}

/// A plain send writes a doorbell record and rings.
const PLAIN: Posted = Posted { operations: 2, submissions: 1 };

impl State {
    /// A plain send has been submitted: its queue pair lives until the stream has passed it.
    #[inline(always)]
    fn hold(&mut self, end: TimelinePoint, queue_pair: Arc<QueuePairInner>) {
        self.issued = end;
        self.unwritten += 1;
        self.weight += 1;
        self.in_flight.push_back(InFlight { end, weight: 1, held: Held::Send(queue_pair) });
    }
}

impl<B: MemOpStream> Stream<B> {
    /// Posts a prepared send: what [`Self::post`] does with a batch of it alone, for less of the CPU's time.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn post_send(&self, send: PreparedSend) -> Result<Posted, PostError> {
        let mut state = self.lock();
        let (serial, doorbell) = send.place();
        match self.submit_plain(&mut state, send.queue_pair(), serial, doorbell) {
            Plain::Posted(end) => {
                state.hold(end, send.into_queue_pair());
                Ok(PLAIN)
            }
            Plain::No => self.post_send_with_care(state, send),
            Plain::Refused(error) => Err(self.refuse(state, Batch::new().send(send), 0, error.into())),
        }
    }

    /// Prepares a request and posts it on this stream: for programs that have nothing to do in between. (It is libgdsync's
    /// `gds_stream_queue_send`.)
    ///
    /// # Errors
    /// Those of [`QueuePair::prepare`] and of [`Self::post`]. The request is taken back then.
    pub fn queue_send(
        &self,
        queue_pair: &QueuePair,
        request: WorkRequest<'_>,
    ) -> Result<Posted, PostFailure> {
        let queue_pair = &queue_pair.inner;
        let (serial, doorbell) = queue_pair.prepare_send(&request, None)?;
        let mut state = self.lock();
        let plain = self.submit_plain(&mut state, queue_pair, serial, doorbell);
        let queue_pair = queue_pair.clone();
        if let Plain::Posted(end) = plain {
            state.hold(end, queue_pair);
            return Ok(PLAIN);
        }
        self.queue_with_care(state, plain, PreparedSend::assemble(queue_pair, serial, doorbell))
    }

    #[cold]
    #[inline(never)]
    fn queue_with_care(
        &self,
        state: MutexGuard<'_, State>,
        plain: Plain,
        send: PreparedSend,
    ) -> Result<Posted, PostFailure> {
        let posted = match plain {
            Plain::Refused(error) => Err(self.refuse(state, Batch::new().send(send), 0, error.into())),
            _ => self.post_send_with_care(state, send),
        };
        posted.map_err(|error| error.source)
    }

    /// Submits a send with what was remembered of the last ones: their pages, their order.
    #[inline(always)]
    fn submit_plain(
        &self,
        state: &mut State,
        queue_pair: &QueuePairInner,
        serial: u64,
        doorbell: Doorbell,
    ) -> Plain {
        let plain = state.plain.get();
        if plain == 0 || LevelFilter::current() >= LevelFilter::TRACE {
            return Plain::No;
        }
        state.translations.refresh(&self.backend);
        let end = state.issued.next();
        let known = |addr| state.translations.known(addr);
        let (Some(record), Some(register)) = (known(doorbell.record_at), known(doorbell.register)) else {
            return Plain::No;
        };
        let Some(before) = queue_pair.commit_next(serial, &self.timeline, end) else {
            return Plain::No;
        };
        let ops = [
            MemOp::Write32 { addr: record, value: doorbell.record },
            MemOp::Write64 { addr: register, value: doorbell.value },
        ];
        // SAFETY: as in `submit_lowered`: both addresses were translated by this backend, and belong to the queue pair, which the
        // submission in flight holds (`State::hold`); the lock on the state keeps others from submitting.
        if let Err(error) = unsafe { self.backend.submit(&ops) } {
            queue_pair.undo_next(serial, before);
            return Plain::Refused(error);
        }
        state.plain.set(plain - 1);
        Plain::Posted(end)
    }

    /// The same, whatever has to be looked after.
    #[cold]
    #[inline(never)]
    fn post_send_with_care(
        &self,
        mut state: MutexGuard<'_, State>,
        mut send: PreparedSend,
    ) -> Result<Posted, PostError> {
        // Dropped after the lock: anything may hang on it.
        let past = if state.is_long(&self.caps) { self.reap(&mut state) } else { Past::default() };
        let points = state.next_point();
        let end = points.end;
        let lowered = self.submit_lowered(&mut state, points, |state, ops, rings| {
            match send.commit(&self.timeline, end)? {
                Some(doorbell) => Ok(self.lower_send(state, &send, doorbell, ops, rings)?),
                None => Ok::<(), PostFailure>(()),
            }
        });
        match lowered {
            Ok((points, operations)) => {
                state.accept(points, Held::Send(send.into_queue_pair()), 1, &self.caps);
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

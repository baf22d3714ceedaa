//! Posting one send in little more time than the backend's call takes, for programs that send from a loop.

use crate::memop::{MemOp, MemOpStream, StreamError};
use crate::memory::TimelinePoint;
use crate::qp::QueuePairInner;
use crate::queue::Release;
use crate::queue::send::PreviousPost;
use crate::stream::Posted;
use crate::stream::in_flight::{InFlight, KeptAlive};
use crate::stream::state::{Engine, StreamState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::level_filters::LevelFilter;

/// The outcome of a send on the fast path.
pub(super) enum FastPath {
    Posted(TimelinePoint),
    /// It needs housekeeping or the full lowering. Nothing has changed.
    NotTaken,
    /// The backend has refused it. Nothing has changed.
    Refused(StreamError),
}

impl StreamState {
    /// Submits a send if its pages are in the translation cache and it is next in its queue pair's order. The state
    /// belongs to the stream with this engine.
    #[inline(always)]
    pub(super) fn submit_fast<B: MemOpStream>(
        &mut self,
        Engine { backend, timeline, .. }: &Engine<B>,
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
        // the queue pair, which the submission in flight holds (`StreamState::hold`). The
        // exclusive reference to the state, by its lock or by the stream's only owner, keeps others from submitting.
        let submitted = unsafe { backend.submit(&ring) };
        if let Err(error) = submitted {
            queue_pair.send().undo_post(serial, PreviousPost::SameTimeline(before));
            return FastPath::Refused(error);
        }
        self.fast_posts_left.set(left - 1);
        FastPath::Posted(end)
    }

    /// Keeps the queue pair of a submitted send alive until the stream has passed it.
    #[inline(always)]
    pub(super) fn hold(&mut self, end: TimelinePoint, queue_pair: Arc<QueuePairInner>) -> Posted {
        self.issued = end;
        self.unwritten += 1;
        self.weight += 1;
        self.in_flight.push_back(InFlight { end, kept: KeptAlive::Send(queue_pair) });
        Posted { operations: 2, submissions: 1 }
    }
}

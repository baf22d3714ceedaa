//! Retiring submissions: waiting for them, dropping their objects once the stream has passed them, and dropping a
//! stream.

use crate::batch::{Descriptor, Points};
use crate::memop::{MemOpStream, StreamError};
use crate::memory::TimelinePoint;
use crate::stream::in_flight::{self, InFlight, KeptAlive, Past};
use crate::stream::state::StreamState;
use crate::stream::{StalledWait, Stream};
use parking_lot::MutexGuard;
use std::time::{Duration, Instant};

/// Delay until a waiting CPU thread first checks for failed queue pairs. The delay doubles each time, up to
/// [`LONGEST_LOOK`]: a check takes a step for each send in flight, and many threads may wait.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LONGEST_LOOK: Duration = Duration::from_millis(160);
/// Period in which a waiting CPU thread logs the wait at which the stream hangs.
const STALL: Duration = Duration::from_secs(10);

impl<B: MemOpStream> Stream<B> {
    /// Waits until the stream has performed everything.
    ///
    /// # Errors
    /// As [`Self::synchronize_timeout`].
    pub fn synchronize(&self) -> Result<(), StreamError> {
        while !self.synchronize_timeout(STALL)? {
            if let Some(wait) = self.oldest_wait() {
                tracing::warn!(%wait, "a stream has not come further than this wait for {STALL:?}");
            }
        }
        Ok(())
    }

    /// Waits until the stream has performed everything. Returns false after `timeout`.
    ///
    /// # Errors
    /// [`StreamError::Failed`] if the backend has failed; another [`StreamError`] if the backend cannot tell.
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool, StreamError> {
        let _waiting = gdsync_trace::span(gdsync_trace::EventKind::Synchronize, || [0; 3]);
        let deadline = Instant::now().checked_add(timeout);
        let mut look_after = FIRST_LOOK;
        loop {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            let idle = self.backend.wait_idle(left.min(look_after));
            look_after = (look_after * 2).min(LONGEST_LOOK);
            let mut state = self.lock();
            let idle = idle.and_then(|idle| if idle { self.is_idle(&state) } else { Ok(false) });
            match idle {
                Ok(idle) => {
                    if idle {
                        self.timeline.declare_passed(state.issued);
                        state.unwritten = 0;
                    }
                    let past = self.reap(&mut state);
                    if !idle {
                        state.given().for_each(InFlight::flush_failed);
                    }
                    drop(state);
                    drop(past);
                    if idle {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    if matches!(error, StreamError::Failed { .. }) {
                        self.abandon(state);
                    }
                    return Err(error);
                }
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Returns the number of submissions that the stream is not known to have passed. A graph counts for each batch
    /// node.
    pub fn outstanding(&self) -> usize {
        let mut state = self.lock();
        self.retire_if_idle(&mut state);
        let past = self.reap(&mut state);
        let outstanding = state.weight + usize::from(state.performing.is_some());
        drop(state);
        drop(past);
        outstanding
    }

    /// Describes the oldest unsatisfied wait that the stream is not known to have passed: the wait at which it
    /// hangs, if it does.
    pub fn oldest_wait(&self) -> Option<String> {
        let state = self.lock();
        let oldest = state.given().find_map(|submission| submission.oldest_wait(&self.timeline));
        oldest.map(|(_, wait)| wait.to_string())
    }

    /// Returns the oldest unsatisfied wait, with its place in the stream's order. `None` if the stream is idle or
    /// has failed.
    pub(crate) fn stalled(&self) -> Option<((TimelinePoint, usize), StalledWait)> {
        if !matches!(self.backend.wait_idle(Duration::ZERO), Ok(false)) {
            return None;
        }
        let state = self.lock();
        state.given().find_map(|submission| {
            let (position, descriptor) = submission.oldest_wait(&self.timeline)?;
            let wait = match descriptor {
                Descriptor::WaitCq(wait) => Some(wait),
                _ => None,
            };
            let stalled = StalledWait {
                description: descriptor.to_string(),
                completion_queue: wait.map(|wait| wait.entry().0.number()),
                index: wait.map(|wait| wait.index()),
                queue_pairs: descriptor.queue_pairs().iter().map(|one| one.number).collect(),
            };
            Some(((submission.end, position), stalled))
        })
    }

    /// Returns whether nothing that could write the timeline's word is being performed. The state's lock keeps
    /// other threads from posting.
    fn is_idle(&self, state: &StreamState) -> Result<bool, StreamError> {
        if state.performing.is_some() { Ok(false) } else { self.backend.wait_idle(Duration::ZERO) }
    }

    /// Writes the timeline by the CPU, if the stream is idle but its timeline lags.
    fn retire_if_idle(&self, state: &mut StreamState) {
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

    /// Makes the stream write its timeline at the end, unless its last submission does.
    pub(super) fn write_closing_point(&self, state: &mut StreamState) -> Result<(), StreamError> {
        if state.unwritten == 0 {
            return Ok(());
        }
        // A separate point: the timeline must live until this very write is past.
        let points = Points { open: false, ..Points::next(state.issued) };
        let mut ops = Vec::with_capacity(1);
        state.translations.refresh(&self.backend);
        self.lowering(state, points, false, &mut ops).progress(points.end)?;
        self.timeline.expect(points.end);
        // SAFETY: the timeline's word, translated by this backend, is in the timeline, which `ORPHANS` keeps until
        // it has reached `points.end`. The lock on the state keeps other threads from submitting.
        unsafe { self.backend.submit(&ops) }?;
        state.accept(points, KeptAlive::Many(Vec::new()), &self.caps);
        Ok(())
    }
}

impl StreamState {
    /// Returns submissions that the backend is not known to have passed, oldest first.
    fn given(&self) -> impl Iterator<Item = &InFlight> {
        self.in_flight.iter().chain(&self.performing)
    }
}

impl<B: MemOpStream> Drop for Stream<B> {
    fn drop(&mut self) {
        let mut state = self.lock();
        let past = self.reap(&mut state);
        if state.in_flight.is_empty() {
            return drop((state, past));
        }
        let closed = self.backend.wait_idle(Duration::ZERO).and_then(|idle| match idle {
            true => {
                self.timeline.declare_passed(state.issued);
                Ok(())
            }
            false => self.write_closing_point(&mut state),
        });
        if let Err(StreamError::Failed { .. }) = closed {
            return self.abandon(state);
        }
        let in_flight = std::mem::take(&mut state.in_flight);
        drop((state, past));
        if let Err(error) = closed {
            tracing::error!(%error, "a dropped stream cannot be made to write its timeline: what it names stays for ever");
        }
        in_flight::orphan(&self.timeline, in_flight);
    }
}

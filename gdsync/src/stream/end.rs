//! The end of a stream: what a dropped stream leaves, and how the library learns when that has ended.

use crate::memop::{MemOpStream, StreamError};
use crate::stream::in_flight::{self, InFlight};
use crate::stream::state::{Engine, StreamState};
use parking_lot::MutexGuard;
use std::time::Duration;

impl<B: MemOpStream> Engine<B> {
    /// Ends a stream that is being dropped. Its submissions in flight are kept until it has passed them, or does not
    /// perform them any more.
    pub(super) fn end(&self, mut state: MutexGuard<'_, StreamState>) {
        let past = self.reap(&mut state);
        if state.in_flight.is_empty() {
            return drop((state, past));
        }
        if let Some(stopped) = self.stopped(&state) {
            // No send of the rest leaves, and a backend that can end performs nothing of it.
            state.in_flight.iter().for_each(InFlight::abort);
            let timeline = self.timeline.clone();
            let queue_pairs: Vec<_> =
                state.in_flight.iter().flat_map(InFlight::queue_pairs).cloned().collect();
            let then = move || in_flight::end_orphans(&timeline, &queue_pairs);
            // SAFETY: `ORPHANS` keeps what the submissions name until `then` has ended them.
            if unsafe { self.backend.stop(&stopped.to_string(), Box::new(then)) } {
                let in_flight = std::mem::take(&mut state.in_flight);
                drop((state, past));
                return in_flight::orphan(&self.timeline, in_flight);
            }
        }
        let closed = match (self.backend.wait_idle(Duration::ZERO), self.backend.end_probe()) {
            (Err(error @ StreamError::Failed { .. }), _) | (Err(error), None) => Err(error),
            (Ok(false), None) => self.write_closing_point(&mut state),
            (Ok(true), _) => {
                self.timeline.declare_passed(state.issued);
                Ok(())
            }
            (_, Some(probe)) => {
                self.timeline.end_by(state.issued, probe);
                Ok(())
            }
        };
        if let Err(StreamError::Failed { .. }) = closed {
            return self.abandon(state);
        }
        let in_flight = std::mem::take(&mut state.in_flight);
        drop((state, past));
        if let Err(error) = closed {
            tracing::error!(
                %error,
                "a dropped stream cannot be made to write its timeline: what it names is never freed, nor any memory of its GPU"
            );
        }
        in_flight::orphan(&self.timeline, in_flight);
    }
}

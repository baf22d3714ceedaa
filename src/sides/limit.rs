//! Until which exchange a run lasts, on which both sides agree where it is interrupted.
//!
//! The first side stops enqueuing and asks the other ([`Message::Stop`](super::channel::Message::Stop)); the thread that
//! reads the other side's channel answers at once, whatever its own thread waits for. The end is the later of what both
//! have enqueued, so that everything enqueued finds its counterpart.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones name the same limit.
#[derive(Clone)]
pub(crate) struct Limit(Arc<Mutex<State>>);

struct State {
    /// Exchanges that this side has enqueued, or is about to.
    enqueued: u64,
    end: u64,
}

impl Limit {
    /// None yet.
    pub(crate) fn new() -> Self {
        Limit(Arc::new(Mutex::new(State { enqueued: 0, end: u64::MAX })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run has at most so many exchanges.
    pub(crate) fn shorten(&self, end: u64) {
        let mut state = self.lock();
        state.end = state.end.min(end);
    }

    pub(crate) fn end(&self) -> u64 {
        self.lock().end
    }

    /// How many of `count` exchanges from `next` on may be enqueued. The caller enqueues them.
    pub(crate) fn claim(&self, next: u64, count: u64) -> u64 {
        let mut state = self.lock();
        let count = count.min(state.end.saturating_sub(next));
        state.enqueued = state.enqueued.max(next + count);
        count
    }

    /// The other side has enqueued `next` exchanges and stopped. Returns where both end.
    pub(crate) fn stop(&self, next: u64) -> u64 {
        let mut state = self.lock();
        state.end = state.end.min(state.enqueued.max(next));
        state.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_the_later_of_what_both_sides_have_enqueued() {
        for (own, other, expected) in [(32, 16, 32), (16, 32, 32), (0, 48, 48), (100, 100, 100), (0, 0, 0)] {
            let limit = Limit::new();
            limit.shorten(100);
            assert_eq!(limit.claim(0, own), own);
            assert_eq!((limit.stop(other), limit.end()), (expected, expected), "{own} and {other}");
            assert_eq!(limit.claim(own, 1000), expected - own, "what is missing, and no more");
            assert_eq!(limit.claim(expected, 1), 0);
        }
    }

    #[test]
    fn a_side_that_is_asked_before_it_begins_ends_there_too() {
        let limit = Limit::new();
        assert_eq!(limit.stop(16), 16);
        limit.shorten(1000);
        assert_eq!((limit.end(), limit.claim(0, 64)), (16, 16));
    }
}

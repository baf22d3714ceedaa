//! The CPU's wait for memory that a card writes.

use std::time::{Duration, Instant};

/// The CPU yields this long before it sleeps: the card, or the peer, often answers within.
const YIELDING: Duration = Duration::from_micros(100);
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(500);

/// The time between two looks at memory: none at first, later a nap that grows with the time
/// waited.
pub(crate) struct Pause(Instant);

impl Pause {
    pub(crate) fn new() -> Self {
        Pause(Instant::now())
    }

    /// Time since the wait began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Called between two looks.
    pub(crate) fn pause(&self) {
        let waited = self.elapsed();
        if waited < YIELDING {
            // Another thread of this machine, such as a software card, may need the core.
            std::thread::yield_now();
        } else {
            std::thread::sleep((waited / 16).clamp(SHORTEST_NAP, LONGEST_NAP));
        }
    }
}

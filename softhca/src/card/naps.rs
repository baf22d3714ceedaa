//! What naps of the cards of this process have cost: a card that has no work naps, and finds what a GPU, or
//! libmlx5, has stored to a register only after that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Naps of all cards of this process, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Naps {
    /// Those that lasted to their end, and after which there was work at once.
    pub late: u64,
    /// Their lengths together: the most that work has waited for a nap to end.
    pub late_time: Duration,
}

static LATE: AtomicU64 = AtomicU64::new(0);
static LATE_NS: AtomicU64 = AtomicU64::new(0);

/// The naps so far.
pub fn naps() -> Naps {
    Naps {
        late: LATE.load(Ordering::Relaxed),
        late_time: Duration::from_nanos(LATE_NS.load(Ordering::Relaxed)),
    }
}

/// A nap had come to its end, and there was work then.
pub(super) fn was_late(nap: Duration) {
    LATE.fetch_add(1, Ordering::Relaxed);
    LATE_NS.fetch_add(nap.as_nanos() as u64, Ordering::Relaxed);
}

//! A watchdog, which reports the wait at which a stream hangs.
//!
//! Its thread is not a [`crate::util::poller::Poller`]: it checks in a fixed period, calls the program back, and
//! ends with its handle.

use crate::memory::TimelinePoint;
use crate::util::contain::log;
use crate::verbs::{Error, OutOfRange};
use gdsync_sys::contain::contain;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const NAME: &str = "gdsync-watchdog";

/// The oldest unsatisfied wait that a stream is not known to have passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StalledWait {
    /// Description of the wait.
    pub description: String,
    /// Number of the completion queue, if the stream waits for a completion.
    pub completion_queue: Option<u32>,
    /// Index of the completion in that queue, from 0 on, modulo 2^32.
    pub index: Option<u32>,
    /// The queue pairs that complete there. [`crate::QueuePair::abort`] of the one with outstanding work ends the wait.
    pub queue_pairs: Vec<u32>,
}

impl fmt::Display for StalledWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Watches a stream as long as it lives; see [`Stream::watchdog`](crate::Stream::watchdog).
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<bool>,
    changed: Condvar,
}

/// What a watchdog watches.
pub(super) trait Watched {
    /// Returns the oldest unsatisfied wait, with its place in the stream's order. `None` if the stream is idle or
    /// has failed.
    fn stalled(&self) -> Option<((TimelinePoint, usize), StalledWait)>;
}

impl Watchdog {
    /// Implements [`Stream::watchdog`](super::Stream::watchdog).
    pub(super) fn start(
        watched: Weak<impl Watched + Send + Sync + 'static>,
        after: Duration,
        callback: impl FnMut(&StalledWait, Duration) + Send + 'static,
    ) -> Result<Self, Error> {
        if after.is_zero() {
            return Err(Error::OutOfRange(OutOfRange {
                what: "the time after which a wait is named",
                value: 0,
                limit: "it must be more than 0".to_owned(),
                remedy: "choose longer than any healthy wait takes",
            }));
        }
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        std::thread::Builder::new()
            .name(NAME.to_owned())
            // The callback is dropped there.
            .spawn(move || drop(contain(|| own.run(&watched, after, callback))))
            .map_err(|source| Error::Thread { name: NAME, source })?;
        Ok(Watchdog { shared })
    }
}

impl Shared {
    fn run(
        &self,
        watched: &Weak<impl Watched>,
        after: Duration,
        mut callback: impl FnMut(&StalledWait, Duration),
    ) {
        let period = (after / 4).max(Duration::from_millis(1));
        let mut standing: Option<(_, Instant, bool)> = None;
        loop {
            let mut ended = self.ended.lock();
            if !*ended {
                self.changed.wait_for(&mut ended, period);
            }
            if *ended {
                return;
            }
            drop(ended);
            // The thread keeps the stream only for this check. If this becomes the last handle, dropping it does
            // not wait.
            let Some(stream) = watched.upgrade() else { return };
            let Some((place, wait)) = stream.stalled() else {
                standing = None;
                continue;
            };
            match &mut standing {
                Some((at, since, told)) if *at == place => {
                    let stood = since.elapsed();
                    if !*told && stood >= after {
                        *told = true;
                        log(|| {
                            tracing::warn!(%wait, completion_queue = wait.completion_queue, index = wait.index,
                                queue_pairs = ?wait.queue_pairs, ?stood, "a stream does not come past this wait");
                        });
                        if let Err(panic) = contain(|| callback(&wait, stood)) {
                            log(|| tracing::error!(panic, "the callback of a watchdog panicked"));
                        }
                    }
                }
                _ => standing = Some((place, Instant::now(), false)),
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.ended.lock() = true;
        self.shared.changed.notify_one();
    }
}

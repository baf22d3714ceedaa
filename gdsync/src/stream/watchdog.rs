//! A watchdog: says what a stream hangs at.

use crate::memop::MemOpStream;
use crate::stream::Stream;
use crate::verbs::error::{Error, OutOfRange};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const NAME: &str = "gdsync-watchdog";

/// The oldest wait that a stream is not known to have passed, and that is not satisfied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StalledWait {
    /// What is waited for, in words.
    pub description: String,
    /// Number of the completion queue, where it is a completion.
    pub completion_queue: Option<u32>,
    /// Which completion of that queue: the how-manieth, from 0 on, modulo 2^32.
    pub index: Option<u32>,
    /// The queue pairs that complete there: [`crate::QueuePair::abort`] of one that has the work outstanding ends the wait.
    pub queue_pairs: Vec<u32>,
}

impl fmt::Display for StalledWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Watches a stream as long as it lives; see [`Stream::watchdog`].
pub struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl<B: MemOpStream + 'static> Stream<B> {
    /// Starts a thread that looks after the stream now and then. Where it has stood at the same wait for `after`, that is said
    /// once, as a `tracing` warning and to `callback`, with what is waited for and for how long the stream has stood there.
    /// It ends with the returned handle, or with the stream, which it does not keep.
    ///
    /// # Errors
    /// [`Error::Thread`]; [`OutOfRange`](crate::verbs::OutOfRange) for an `after` of nothing.
    pub fn watchdog(
        self: &Arc<Self>,
        after: Duration,
        callback: impl FnMut(&StalledWait, Duration) + Send + 'static,
    ) -> Result<Watchdog, Error> {
        if after.is_zero() {
            return Err(Error::OutOfRange(OutOfRange {
                what: "the time after which a wait is named",
                value: 0,
                limit: "it must be more than 0".to_owned(),
                remedy: "choose longer than any healthy wait takes",
            }));
        }
        let shared = Arc::<Shared>::default();
        let (watched, own) = (Arc::downgrade(self), shared.clone());
        std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || own.run(&watched, after, callback))
            .map_err(|source| Error::Thread { name: NAME, source })?;
        Ok(Watchdog { shared })
    }
}

impl Shared {
    fn run<B: MemOpStream>(
        &self,
        watched: &Weak<Stream<B>>,
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
            // Not kept between two looks. Dropping the last handle here does not wait for the stream.
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
                        tracing::warn!(%wait, completion_queue = wait.completion_queue, index = wait.index,
                            queue_pairs = ?wait.queue_pairs, ?stood, "a stream does not come past this wait");
                        callback(&wait, stood);
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

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}

//! A watchdog, which reports the wait at which a stream hangs.
//!
//! Its thread is not a [`crate::util::poller::Poller`]: it checks in a fixed period, calls the program back, and
//! ends with its handle.

use crate::batch::{Descriptor, WORD};
use crate::memop::{WaitCause, explain};
use crate::memory::Timeline;
use crate::qp::Completing;
use crate::stream::shown::{SHOWN_AFTER, Shown};
use crate::stream::state::{StreamState, WaitPlace};
use crate::util::contain::log;
use crate::verbs::{Error, OutOfRange};
use gdsync_sys::contain::contain;
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

const NAME: &str = "gdsync-watchdog";

/// The oldest unsatisfied wait that a stream is not known to have passed.
#[derive(Clone, Debug)]
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
    cause: Option<Arc<dyn WaitCause>>,
}

/// A stream's part of the process's status, and the long wait that it shows from now on, if any.
pub(super) struct LongWait {
    shown: Arc<Shown>,
    wait: Option<(Duration, StalledWait)>,
}

impl LongWait {
    /// Shows the wait for a word; completion queues show waits for completions. The caller holds no lock of the library.
    pub(super) fn show(self) {
        self.shown.set(self.wait.and_then(|(stood, wait)| Some((stood, wait.word()?))));
    }
}

impl StreamState {
    /// Returns the part of the status, if the stream has one or needs one now. From the first call during a wait on, the time
    /// of that wait is known.
    pub(super) fn long_wait(&mut self, is_idle: bool, timeline: &Timeline) -> Option<LongWait> {
        let standing = if is_idle { None } else { self.stand(timeline) };
        let long = standing.filter(|(_, stood, _)| *stood >= SHOWN_AFTER);
        let wait = long.map(|(_, stood, wait)| (stood, StalledWait::of(wait)));
        if wait.is_some() {
            self.shown.get_or_insert_with(|| Arc::new(Shown::new(timeline.id())));
        }
        self.shown.clone().map(|shown| LongWait { shown, wait })
    }
}

impl StalledWait {
    pub(super) fn of(descriptor: &Descriptor) -> Self {
        let queue_pairs = descriptor.queue_pairs();
        let (wait, cause): (_, Option<Arc<dyn WaitCause>>) = match descriptor {
            Descriptor::WaitCq(wait) => (Some(wait), Some(Arc::new(Completing::of(queue_pairs)))),
            other => (None, other.word_cause().cloned()),
        };
        StalledWait {
            description: descriptor.to_string(),
            completion_queue: wait.map(|wait| wait.entry().0.number()),
            index: wait.map(|wait| wait.index()),
            queue_pairs: queue_pairs.iter().map(|one| one.number).collect(),
            cause,
        }
    }

    /// Returns the word that it waits for, with its cause, and the queue pairs on which it depends; `None` if it waits for a
    /// completion.
    pub(super) fn word(&self) -> Option<(String, Vec<u32>)> {
        let word = self.description.strip_prefix(WORD).filter(|_| self.completion_queue.is_none())?;
        let cause = self.cause.as_ref().and_then(|cause| cause.cause());
        let queue_pairs = self.cause.as_ref().map_or_else(Vec::new, |cause| cause.queue_pairs());
        Some((cause.map_or_else(|| word.to_owned(), |cause| format!("{word} ({cause})")), queue_pairs))
    }

    /// Describes the wait with its time and its cause. The caller holds no lock of the library.
    pub(super) fn explained(&self, stood: Duration) -> String {
        let cause = self.cause.as_ref().and_then(|cause| explain(&**cause));
        let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
        format!("{}{}{cause}", self.description, gdsync_status::since(stood))
    }
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
    /// Returns the oldest unsatisfied wait, with its place in the stream's order, and how long it is known to be that.
    /// `None` if the stream is idle or has failed.
    fn stalled(&self) -> Option<(WaitPlace, Duration, StalledWait)>;
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
        let mut told = None;
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
            let stalled = stream.stalled();
            drop(stream);
            let Some((place, stood, wait)) = stalled else { continue };
            if stood >= after && told != Some(place) {
                told = Some(place);
                log(|| {
                    tracing::warn!(wait = wait.explained(stood), completion_queue = wait.completion_queue,
                        index = wait.index, queue_pairs = ?wait.queue_pairs, "a stream does not come past this wait");
                });
                if let Err(panic) = contain(|| callback(&wait, stood)) {
                    log(|| tracing::error!(panic, "the callback of a watchdog panicked"));
                }
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

//! The word that a stream waits for, as the process's status ([`gdsync_status`]) shows it. The thread that synchronizes the
//! stream writes it, so that posts need not.

use gdsync_status::{Kept, MOST_NAMED, Published, Source, Status, Wait};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shortest wait that is shown.
pub(super) const SHOWN_AFTER: Duration = Duration::from_millis(100);
/// Time after which a wait is not shown if no thread has seen it again: more than a thread that synchronizes sleeps.
const STALE: Duration = Duration::from_secs(2);
/// How long a thread may hold the wait's lock.
const PATIENCE: Duration = Duration::from_millis(20);

/// A stream's part of the status, from its first long wait for a word on.
#[derive(Debug)]
pub(super) struct Shown {
    wait: Arc<Seen>,
    _published: Published,
}

#[derive(Debug)]
struct Seen {
    stream: u64,
    wait: Mutex<Option<(Wait, Instant)>>,
}

impl Shown {
    pub(super) fn new(stream: u64) -> Self {
        let wait = Arc::new(Seen { stream, wait: Mutex::default() });
        Shown { _published: gdsync_status::publish(wait.clone()), wait }
    }

    /// Shows the word for which the stream has waited for this time, and the queue pairs on which that depends; `None` shows
    /// nothing: completion queues show waits for completions.
    pub(super) fn set(&self, word: Option<(Duration, (String, Vec<u32>))>) {
        *self.wait.wait.lock() = word.map(|(stood, (what, queue_pairs))| {
            let queue_pairs = queue_pairs.into_iter().take(MOST_NAMED).collect();
            // All earlier waits are met: it is the oldest.
            (Wait { what, mark: 0, time: Some(stood), queue_pairs }, Instant::now())
        });
    }
}

impl Source for Seen {
    fn add_to(&self, status: &mut Status, kept: &mut Kept) {
        let Some(wait) = self.wait.try_lock_for(kept.patience(PATIENCE)) else { return };
        if let Some((wait, at)) = &*wait
            && at.elapsed() < STALE
        {
            let time = wait.time.map(|time| time + at.elapsed());
            status.add_wait(self.stream, Wait { time, ..wait.clone() });
        }
    }
}

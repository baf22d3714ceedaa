//! State shared by a side's thread, its watcher and the reader of its channel: the queue pairs, the words that the
//! other side writes, and the known failures.

use super::timing::Timing;
use crate::failure::Failure;
use gdsync::queue::{Completion, FailureCause, QueueFull};
use gdsync::{CompletionQueue, Device, MemoryRegion, PreparedSend, QueueError, QueuePair, WorkRequest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long to wait for the cause of a failure after its consequences: the other side sees it first, or its completion
/// is late.
const CAUSE: Duration = Duration::from_secs(2);
/// Polling interval for the cause.
const LOOK: Duration = Duration::from_millis(5);
/// How long the CPU sleeps if a queue is full.
const NAP: Duration = Duration::from_micros(50);

pub(crate) struct Connection {
    device: Device,
    /// Never empty.
    pub(crate) queue_pairs: Vec<QueuePair>,
    /// Words that the other side writes besides messages. A stream may wait for the first word.
    pub(crate) words: MemoryRegion,
    pub(crate) error: FirstError,
    sent: AtomicU64,
}

impl Connection {
    pub(crate) fn new(
        device: Device,
        queue_pairs: Vec<QueuePair>,
        words: MemoryRegion,
        error: FirstError,
    ) -> Self {
        Connection { device, queue_pairs, words, error, sent: AtomicU64::new(0) }
    }

    /// The first queue pair, for sides that have only one.
    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pairs[0]
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Prepares a send. `None` if there is no room, after a short sleep: the caller then polls completions.
    pub(crate) fn prepare(
        &self,
        queue_pair: usize,
        request: WorkRequest<'_>,
    ) -> Result<Option<PreparedSend>, Failure> {
        use QueueFull::{CompletionQueue, SendQueue, Stream};
        match self.queue_pairs[queue_pair].prepare(request) {
            Ok(send) => Ok(Some(send)),
            Err(QueueError::Full(SendQueue { .. } | CompletionQueue { .. } | Stream(_))) => {
                std::thread::sleep(NAP);
                Ok(None)
            }
            Err(error) => Err(self.error.or(error.into())),
        }
    }

    /// Takes the completion of a receive, if there is one. A failed completion is an error.
    pub(crate) fn take_receive(&self) -> Result<bool, Failure> {
        let taken = self.take(&self.queue_pair().recv_cq())?.is_some();
        self.error.check()?;
        Ok(taken)
    }

    /// Takes the completions of sends. A failed completion is an error.
    pub(crate) fn collect_sends(&self) -> Result<(), Failure> {
        while self.take(&self.queue_pair().send_cq())?.is_some() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.error.check()
    }

    /// Takes the next completion, if there is one, and records a failure: a flush counts as a consequence.
    pub(crate) fn take(&self, queue: &CompletionQueue) -> Result<Option<Completion>, Failure> {
        let Some(completion) = queue.poll()? else { return Ok(None) };
        if let Err(status) = completion.status {
            let text = || format!("{:?} failed: {status}", completion.kind);
            if status.is_flush() { self.error.consequence(text) } else { self.error.set(text) }
        }
        Ok(Some(completion))
    }

    /// Records failures that no wait reports: from all completion queues and the card's events.
    pub(crate) fn look_for_failures(&self) {
        for queue in self.queue_pairs.iter().flat_map(|pair| [pair.recv_cq(), pair.send_cq()]) {
            while let Ok(Some(_)) = self.take(&queue) {}
        }
        self.read_events();
    }

    /// Reads the card's events, which alone report a refused request of the other side.
    pub(crate) fn read_events(&self) {
        while let Ok(Some(_)) = self.device.next_event(Duration::ZERO) {}
        for queue_pair in &self.queue_pairs {
            if let Some(cause @ FailureCause::Event(_)) = queue_pair.failure() {
                self.error.set(|| format!("the queue pair failed: {cause}"));
            }
        }
    }

    /// Returns whether a queue pair of this side has failed or was aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.queue_pairs.iter().any(|queue_pair| queue_pair.failure().is_some())
    }

    /// While only consequences are known, looks for the cause for a limited time.
    pub(crate) fn find_cause(&self) {
        let deadline = Instant::now() + CAUSE;
        self.look_for_failures();
        while !self.error.has_cause() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            self.look_for_failures();
        }
    }

    /// Ends a stream's waits: for completions by failing the queue pairs, for the first word by moving it far ahead.
    /// The order matters: a failed queue pair takes no late write of the word.
    pub(crate) fn release(&self) -> Result<(), Failure> {
        self.queue_pairs.iter().try_for_each(QueuePair::abort)?;
        let word = self.words.word32(0)?;
        word.store(word.load().wrapping_add(1 << 30));
        Ok(())
    }
}

/// The first error of a side; later failures are its consequences.
#[derive(Clone, Default)]
pub(crate) struct FirstError(Arc<Mutex<Errors>>);

#[derive(Default)]
struct Errors {
    cause: Option<String>,
    /// The consequence of an unknown cause: flushed work, or a failure of the other side that is not the cause either.
    consequence: Option<String>,
    /// A wrong message. It may itself be a consequence: a failed work request also wakes the stream, which then finds
    /// no message.
    wrong: Option<String>,
}

impl FirstError {
    fn lock(&self) -> MutexGuard<'_, Errors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, error: impl FnOnce() -> String) {
        self.lock().cause.get_or_insert_with(error);
    }

    /// Records a consequence of a failure, which does not tell the cause.
    pub(crate) fn consequence(&self, error: impl FnOnce() -> String) {
        self.lock().consequence.get_or_insert_with(error);
    }

    pub(crate) fn has_cause(&self) -> bool {
        self.lock().cause.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let errors = self.lock();
        let first = errors.cause.as_ref().or(errors.consequence.as_ref()).or(errors.wrong.as_ref());
        first.map_or(Ok(()), |error| Err(error.clone().into()))
    }

    /// Returns the first error, or else `failure`, which may be its consequence.
    pub(crate) fn or(&self, failure: Failure) -> Failure {
        self.check().err().unwrap_or(failure)
    }
}

/// Results of a side's kernels, on either kind of driver. Clones share them.
#[derive(Clone)]
pub(crate) struct SideResults {
    pub(crate) error: FirstError,
    timing: Arc<Mutex<Timing>>,
}

impl SideResults {
    pub(crate) fn new(timing: Timing) -> Self {
        SideResults { error: FirstError::default(), timing: Arc::new(Mutex::new(timing)) }
    }

    pub(crate) fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that message `sequence` has a wrong byte.
    pub(crate) fn wrong(&self, sequence: u64, at: u64) {
        let text = || format!("message {sequence} is wrong at byte {at}");
        self.error.lock().wrong.get_or_insert_with(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_and_a_cause_before_its_consequences() {
        let results = SideResults::new(Timing::new(0, 2));
        assert!(results.error.check().is_ok());
        results.wrong(3, 1);
        results.wrong(4, 2);
        let told = || results.error.check().unwrap_err().to_string();
        assert_eq!(told(), "message 3 is wrong at byte 1");
        results.error.consequence(|| "flushed".to_owned());
        assert_eq!((told().as_str(), results.error.has_cause()), ("flushed", false));
        results.error.set(|| "a work request failed".to_owned());
        results.error.set(|| "another failed".to_owned());
        assert_eq!(told(), "a work request failed");
    }
}

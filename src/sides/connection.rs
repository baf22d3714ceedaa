//! What a side's thread, its watcher and the reader of its channel share: the queue pairs, the words that the other side
//! changes, and what is known of failures.

use super::channel::{Channel, End, GONE, Message};
use super::driver::Driver;
use super::findings::FirstError;
use crate::failure::Failure;
use gdsync::queue::{Completion, FailureCause, QueueFull};
use gdsync::{CompletionQueue, Device, MemoryRegion, PreparedSend, QueueError, QueuePair, WorkRequest};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the cause of a failure may take to show after its consequences: the other side sees it
/// first, or its completion is late.
const CAUSE: Duration = Duration::from_secs(2);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_millis(5);
/// How long the CPU sleeps where a queue is full.
const NAP: Duration = Duration::from_micros(50);

pub(crate) struct Connection {
    device: Device,
    /// At least one.
    pub(crate) queue_pairs: Vec<QueuePair>,
    /// What the other side writes or changes beside messages. A stream may wait for the first word.
    pub(crate) words: MemoryRegion,
    pub(crate) error: FirstError,
    /// Sends that have completed.
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

    /// The only queue pair of a side that has one.
    pub(crate) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pairs[0]
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Prepares a send of a queue pair. None where there is no room: after a nap, for the caller to take completions.
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

    /// Takes the completion of a receive, if there is one. A failed one is an error.
    pub(crate) fn take_receive(&self) -> Result<bool, Failure> {
        let taken = self.take(&self.queue_pair().recv_cq())?.is_some();
        self.error.check()?;
        Ok(taken)
    }

    /// Takes the completions of sends. A failed one is an error.
    pub(crate) fn collect_sends(&self) -> Result<(), Failure> {
        while self.take(&self.queue_pair().send_cq())?.is_some() {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.error.check()
    }

    /// Takes the next completion, if there is one. How it failed is remembered: a flush as the
    /// consequence of something else.
    pub(crate) fn take(&self, queue: &CompletionQueue) -> Result<Option<Completion>, Failure> {
        let Some(completion) = queue.poll()? else { return Ok(None) };
        if let Err(status) = completion.status {
            let text = || format!("{:?} failed: {status}", completion.kind);
            if status.is_flush() { self.error.consequence(text) } else { self.error.set(text) }
        }
        Ok(Some(completion))
    }

    /// Looks for failures that nothing waits for, or that a stream only woke of: in all completion
    /// queues, and among the card's events.
    pub(crate) fn look_for_failures(&self) {
        for queue in self.queue_pairs.iter().flat_map(|pair| [pair.recv_cq(), pair.send_cq()]) {
            while let Ok(Some(_)) = self.take(&queue) {}
        }
        self.read_events();
    }

    /// The card says by an event alone that it has refused a request of the other side.
    pub(crate) fn read_events(&self) {
        while let Ok(Some(_)) = self.device.next_event(Duration::ZERO) {}
        for queue_pair in &self.queue_pairs {
            if let Some(cause @ FailureCause::Event(_)) = queue_pair.failure() {
                self.error.set(|| format!("the queue pair failed: {cause}"));
            }
        }
    }

    /// Whether a queue pair of this side has failed or was aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.queue_pairs.iter().any(|queue_pair| queue_pair.failure().is_some())
    }

    /// Where only consequences of a failure are known, looks for its cause for a while.
    pub(crate) fn find_cause(&self) {
        let deadline = Instant::now() + CAUSE;
        self.look_for_failures();
        while !self.error.has_cause() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            self.look_for_failures();
        }
    }

    /// Ends the waits of a stream for completions by failing the queue pairs, and those for the first
    /// word by moving it far ahead. In this order: a failed queue pair takes no late write of the
    /// word.
    pub(crate) fn release(&self) -> Result<(), Failure> {
        self.queue_pairs.iter().try_for_each(QueuePair::abort)?;
        let word = self.words.word32(0)?;
        word.store(word.load().wrapping_add(1 << 30));
        Ok(())
    }
}

/// Has the end of the other side become this side's error. A watcher, or the side's own thread, then ends what waits.
pub(crate) fn forward_ends(channel: &Channel, error: FirstError) {
    channel.on_end().set(move |end| match end {
        End::Failed { error: text, is_cause: true } => error.set(|| text.clone()),
        End::Failed { error: text, .. } => error.consequence(|| text.clone()),
        End::Gone if error.check().is_ok() => error.set(|| GONE.to_owned()),
        End::Gone => {}
    });
}

/// Finds out why a side has failed, tells the other side, and ends what waits.
pub(crate) fn fail(
    connection: &Connection,
    driver: &mut dyn Driver,
    failure: Failure,
    mut channel: Channel,
) -> Failure {
    let error = connection.error.clone();
    connection.look_for_failures();
    if error.check().is_ok() {
        error.set(|| failure.to_string());
    }
    let mut tell = |failure: &Failure, is_cause| {
        // Where the other side is gone, there is nothing to say to it.
        let _ = channel.send(&Message::Done { error: Some(failure.to_string()), is_cause });
    };
    if !error.has_cause() {
        // The other side may have the cause.
        tell(&error.or(failure), false);
        connection.find_cause();
    }
    let failure = error.or("the cause of the failure is unknown".into());
    tell(&failure, true);
    // What these say is a consequence of the failure.
    let _ = connection.release().and_then(|()| driver.synchronize());
    channel.on_end().clear();
    failure
}

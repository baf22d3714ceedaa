//! What a side's thread, its watcher and the reader of its channel share: the queue pair, the flag,
//! and what is known of failures.

use super::findings::FirstError;
use crate::failure::Failure;
use gdsync::queue::FailureCause;
use gdsync::{CompletionQueue, Device, MemoryRegion, QueuePair};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the cause of a failure may take to show after its consequences: the other side sees it
/// first, or its completion is late.
const CAUSE: Duration = Duration::from_secs(2);
/// Time between two looks for it.
const LOOK: Duration = Duration::from_millis(5);

pub(super) struct Connection {
    device: Device,
    pub(super) queue_pair: QueuePair,
    /// The word that the other side writes after its data, where they come by RDMA write.
    pub(super) flag: MemoryRegion,
    pub(super) error: FirstError,
    /// Sends that have completed.
    sent: AtomicU64,
}

impl Connection {
    pub(super) fn new(device: Device, queue_pair: QueuePair, flag: MemoryRegion, error: FirstError) -> Self {
        Connection { device, queue_pair, flag, error, sent: AtomicU64::new(0) }
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Takes the completion of a receive, if there is one. A failed one is an error.
    pub(super) fn take_receive(&self) -> Result<bool, Failure> {
        let taken = self.take(&self.queue_pair.recv_cq())?;
        self.error.check()?;
        Ok(taken)
    }

    /// Takes the completions of sends. A failed one is an error.
    pub(super) fn collect_sends(&self) -> Result<(), Failure> {
        while self.take(&self.queue_pair.send_cq())? {
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        self.error.check()
    }

    /// Takes the next completion, if there is one. How it failed is remembered: a flush as the
    /// consequence of something else.
    fn take(&self, queue: &CompletionQueue) -> Result<bool, Failure> {
        let Some(completion) = queue.poll()? else { return Ok(false) };
        if let Err(status) = completion.status {
            let text = || format!("{:?} failed: {status}", completion.kind);
            if status.is_flush() { self.error.consequence(text) } else { self.error.set(text) }
        }
        Ok(true)
    }

    /// Looks for failures that nothing waits for, or that a stream only woke of: in both completion
    /// queues, and among the card's events.
    pub(super) fn look_for_failures(&self) {
        for queue in [self.queue_pair.recv_cq(), self.queue_pair.send_cq()] {
            while let Ok(true) = self.take(&queue) {}
        }
        self.read_events();
    }

    /// The card says by an event alone that it has refused a request of the other side.
    pub(super) fn read_events(&self) {
        while let Ok(Some(_)) = self.device.next_event(Duration::ZERO) {}
        if let Some(cause @ FailureCause::Event(_)) = self.queue_pair.failure() {
            self.error.set(|| format!("the queue pair failed: {cause}"));
        }
    }

    /// Whether this side's queue pair has failed or was aborted.
    pub(super) fn has_failed(&self) -> bool {
        self.queue_pair.failure().is_some()
    }

    /// Where only consequences of a failure are known, looks for its cause for a while.
    pub(super) fn find_cause(&self) {
        let deadline = Instant::now() + CAUSE;
        self.look_for_failures();
        while !self.error.has_cause() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            self.look_for_failures();
        }
    }

    /// Ends the waits of a stream for completions by failing the queue pair, and those for the flag
    /// by moving the flag far ahead. In this order: a failed queue pair takes no late write of the
    /// flag.
    pub(super) fn release(&self) -> Result<(), Failure> {
        self.queue_pair.abort()?;
        let word = self.flag.word32(0)?;
        word.store(word.load().wrapping_add(1 << 30));
        Ok(())
    }
}

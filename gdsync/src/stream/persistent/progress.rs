//! Looking at the completions of persistent requests.

use crate::qp::checker::CHECKER;
use crate::qp::{CompletionQueueInner, QueuePairInner};
use crate::queue::{Claim, Writer};
use crate::util::poller::{Polled, Task};
use std::sync::Arc;

/// Takes completions of persistent requests out of a queue. Other completions stay for the
/// program's polls.
pub(super) fn progress(queue: &CompletionQueueInner, queue_pair: &QueuePairInner) {
    // Before the flush: what has completed well is not taken for flushed.
    queue.progress();
    if queue_pair.failure().is_some() {
        queue_pair.flush_unposted();
    }
}

/// A start, and where it completes.
#[derive(Debug)]
pub(super) struct Progress {
    queue: Arc<CompletionQueueInner>,
    queue_pair: Arc<QueuePairInner>,
    claim: Arc<Claim>,
}

impl Progress {
    pub(super) fn new(
        queue: &Arc<CompletionQueueInner>,
        queue_pair: &Arc<QueuePairInner>,
        claim: &Arc<Claim>,
    ) -> Self {
        let (queue, queue_pair, claim) = (queue.clone(), queue_pair.clone(), claim.clone());
        Progress { queue, queue_pair, claim }
    }
}

impl Task for Progress {
    fn poll(&self) -> Polled {
        self.look();
        if self.claim.completion().is_some() { Polled::Done } else { Polled::Nothing }
    }
}

impl Writer for Progress {
    fn look(&self) {
        if self.claim.completion().is_none() {
            progress(&self.queue, &self.queue_pair);
        }
    }

    fn watch(self: Arc<Self>) {
        if self.claim.watch() {
            CHECKER.add(self);
        }
    }
}

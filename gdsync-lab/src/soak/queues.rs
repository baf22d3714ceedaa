//! Completion queues shared by several ends, their queue pairs, and waits whose status must agree with the completion.

use super::tally::Tally;
use gdsync::queue::{Status, WorkError, WorkKind};
use gdsync::{Completion, CompletionQueue, Device, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_cli::failure::Failure;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A completion queue, and completions that one end has polled for others.
pub(super) struct CompletionDemux {
    pub(super) queue: CompletionQueue,
    /// True for a queue in which several ends complete.
    is_shared: bool,
    /// Index of the completion after the last one taken.
    taken: u32,
    /// By queue pair, with receives separate.
    inboxes: BTreeMap<(u32, bool), VecDeque<Completion>>,
    /// By the completion's index: the status of the wait, and that of the completion.
    checks: BTreeMap<u32, (Status, Option<Result<(), WorkError>>)>,
}

/// Shared by the ends of one process.
pub(super) type SharedDemux = Rc<RefCell<CompletionDemux>>;

impl CompletionDemux {
    pub(super) fn new(queue: CompletionQueue, is_shared: bool) -> SharedDemux {
        Rc::new(RefCell::new(CompletionDemux {
            queue,
            is_shared,
            taken: 0,
            inboxes: BTreeMap::new(),
            checks: BTreeMap::new(),
        }))
    }

    /// Returns the next completion of a queue pair's receives, or of its sends.
    pub(super) fn take(&mut self, qpn: u32, receive: bool) -> Result<Option<Completion>, Failure> {
        if let Some(completion) = self.inboxes.get_mut(&(qpn, receive)).and_then(VecDeque::pop_front) {
            return Ok(Some(completion));
        }
        while let Some(completion) = self.queue.poll()? {
            if let Some(index) = completion.index {
                if let Some((_, outcome)) = self.checks.get_mut(&index) {
                    *outcome = Some(completion.status);
                }
                self.taken = index.wrapping_add(1);
            }
            let is_receive =
                matches!(completion.kind, WorkKind::Receive | WorkKind::ReceiveRdmaWithImmediate);
            if (completion.qp_num, is_receive) == (qpn, receive) {
                return Ok(Some(completion));
            }
            self.inboxes.entry((completion.qp_num, is_receive)).or_default().push_back(completion);
        }
        Ok(None)
    }

    /// Compares the wait's status with its completion, once taken.
    pub(super) fn expect(&mut self, index: u32, status: Status) {
        self.checks.insert(index, (status, None));
    }

    pub(super) fn pending(&self) -> usize {
        self.checks.len()
    }

    pub(super) fn compare(&mut self, tally: &mut Tally) {
        let (taken, is_shared) = (self.taken, self.is_shared);
        self.checks.retain(|index, (status, outcome)| {
            let Some(told) = status.get() else { return true };
            // A completion that was skipped is from before a reset of its queue pair, and is never returned.
            let is_past = taken.wrapping_sub(*index).wrapping_sub(1) <= i32::MAX as u32;
            let Some(outcome) = *outcome else { return !is_past };
            tally.checked += 1;
            // A wait that the library has ended does not know the vendor's syndrome of the later flush. In a shared
            // queue, the entry may be of another end's next connection.
            let is_ended = told.is_err_and(|error| error.is_flush() && error.vendor == 0);
            if is_ended && is_shared {
                return false;
            }
            let syndrome = |status: Result<(), WorkError>| status.map_err(|error| error.syndrome);
            if syndrome(told) != syndrome(outcome) {
                tally.wrong(|| format!("wait {index} says {told:?}, its completion {outcome:?}"));
            }
            false
        });
    }

    /// Reports what is left as lost: no more completions arrive.
    pub(super) fn close(&mut self, tally: &mut Tally) {
        self.compare(tally);
        let strangers: usize = self.inboxes.values().map(VecDeque::len).sum();
        let waits = self.checks.values().filter(|(status, _)| status.get().is_none()).count();
        let left = strangers + waits;
        if left > 0 {
            tally.unaccounted += left as u64;
            tally.problem(|| {
                format!("{strangers} completions belong to no end, {waits} waits have no outcome")
            });
        }
        self.checks.clear();
        self.inboxes.clear();
    }
}

/// The completion queues of an end.
#[derive(Clone)]
pub(super) enum Queues {
    /// Two unshared queues, new ones with each queue pair.
    Own,
    /// One unshared queue for both.
    Single,
    /// Two queues shared with other ends.
    Shared(SharedDemux, SharedDemux),
}

/// Returns a queue pair, and the queues of its sends and receives.
pub(super) fn queue_pair(
    device: &Device,
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    queues: &Queues,
) -> Result<(QueuePair, SharedDemux, SharedDemux), Failure> {
    let own = || -> Result<(QueuePair, SharedDemux, SharedDemux), Failure> {
        let queue_pair = QueuePair::new(pd, config)?;
        let [send, recv] =
            [queue_pair.send_cq(), queue_pair.recv_cq()].map(|queue| CompletionDemux::new(queue, false));
        Ok((queue_pair, send, recv))
    };
    let (send, recv) = match queues {
        Queues::Own => return own(),
        Queues::Single => {
            let entries = 2 * (config.send_depth + config.recv_depth);
            let demux = CompletionDemux::new(CompletionQueue::new(device, entries)?, false);
            (demux.clone(), demux)
        }
        Queues::Shared(send, recv) => (send.clone(), recv.clone()),
    };
    let made = {
        let (send, recv) = (send.borrow().queue.clone(), recv.borrow().queue.clone());
        QueuePair::new(pd, config.completion_queues(&send, &recv))?
    };
    Ok((made, send, recv))
}

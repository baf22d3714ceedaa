//! Completion queues that several ends may share, queue pairs that complete there, and waits whose
//! status must agree with the completion.

use super::tally::Tally;
use gdsync::queue::{Status, WorkError, WorkKind};
use gdsync::{Completion, CompletionQueue, Device, ProtectionDomain, QueuePair, QueuePairConfig};
use gdsync_cli::failure::Failure;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A completion queue, and completions that one end polled and that belong to others.
pub(super) struct CompletionDemux {
    pub(super) queue: CompletionQueue,
    /// Number of the completion after the one taken last.
    taken: u32,
    /// By queue pair, receives apart.
    inboxes: BTreeMap<(u32, bool), VecDeque<Completion>>,
    /// By the number of the completion: the status of the wait, and the completion's.
    checks: BTreeMap<u32, (Status, Option<Result<(), WorkError>>)>,
}

/// Ends of one process look into the same hub.
pub(super) type SharedDemux = Rc<RefCell<CompletionDemux>>;

impl CompletionDemux {
    pub(super) fn new(queue: CompletionQueue) -> SharedDemux {
        Rc::new(RefCell::new(CompletionDemux {
            queue,
            taken: 0,
            inboxes: BTreeMap::new(),
            checks: BTreeMap::new(),
        }))
    }

    /// The next completion of a queue pair's receives, or of its sends.
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

    /// Compares the status of this wait with its completion, once that is taken.
    pub(super) fn expect(&mut self, index: u32, status: Status) {
        self.checks.insert(index, (status, None));
    }

    /// Waits that were not compared yet.
    pub(super) fn pending(&self) -> usize {
        self.checks.len()
    }

    /// Compares what is known of both.
    pub(super) fn compare(&mut self, tally: &mut Tally) {
        let taken = self.taken;
        self.checks.retain(|index, (status, outcome)| {
            let Some(told) = status.get() else { return true };
            // One that was passed over is from before a reset of its queue pair, and is not
            // returned.
            let is_past = taken.wrapping_sub(*index).wrapping_sub(1) <= i32::MAX as u32;
            let Some(outcome) = *outcome else { return !is_past };
            tally.checked += 1;
            if told != outcome {
                tally.wrong(|| format!("wait {index} says {told:?}, its completion {outcome:?}"));
            }
            false
        });
    }

    /// No more completions arrive: what is left was lost.
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

/// Where the completions of an end go.
#[derive(Clone)]
pub(super) enum Queues {
    /// Into two queues of its own, new ones with each queue pair.
    Own,
    /// Both into one of its own.
    Single,
    /// Into two that other ends use, too.
    Shared(SharedDemux, SharedDemux),
}

/// A queue pair, and where its sends and its receives complete.
pub(super) fn queue_pair(
    device: &Device,
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    queues: &Queues,
) -> Result<(QueuePair, SharedDemux, SharedDemux), Failure> {
    let own = || -> Result<(QueuePair, SharedDemux, SharedDemux), Failure> {
        let queue_pair = QueuePair::new(pd, config)?;
        let demuxes =
            (CompletionDemux::new(queue_pair.send_cq()), CompletionDemux::new(queue_pair.recv_cq()));
        Ok((queue_pair, demuxes.0, demuxes.1))
    };
    let (send, recv) = match queues {
        Queues::Own => return own(),
        Queues::Single => {
            let entries = 2 * (config.send_depth + config.recv_depth);
            let demux = CompletionDemux::new(CompletionQueue::new(device, entries)?);
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

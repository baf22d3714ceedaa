//! The common part of all kinds of requests.

use crate::memory::Timeline;
use crate::qp::complete::wait::{CHECKER, start_checker};
use crate::qp::{CardWord, CompletionQueueInner, QueuePairInner};
use crate::queue::send::{CardWait, WaitRequest};
use crate::queue::{Claim, Completion, WorkKind, WorkRequest, Writer};
use crate::stream::persistent::{Persistent, PersistentError, bytes_of};
use crate::util::poller::{Polled, Task};
use crate::verbs::{DcAddress, RemoteMemory, Slice};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A request of a list: a [`PersistentSend`](super::PersistentSend) or a [`PersistentRecv`](super::PersistentRecv).
pub trait Request: sealed::Request + fmt::Debug {}

impl<K: fmt::Debug> Request for Persistent<K> {}

impl<K: fmt::Debug> sealed::Request for Persistent<K> {
    fn core(&self) -> &sealed::Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut sealed::Core {
        &mut self.core
    }
}

pub(super) mod sealed {
    use super::*;

    pub trait Request {
        fn core(&self) -> &Core;

        fn core_mut(&mut self) -> &mut Core;
    }

    #[derive(Debug, Default)]
    pub(crate) struct Sending {
        pub(crate) remote: Option<RemoteMemory>,
        pub(crate) immediate: Option<u32>,
        pub(crate) target: Option<DcAddress>,
        /// For a send of its start's number: the bytes of the next one.
        pub(crate) count: Option<[u8; size_of::<u64>()]>,
    }

    /// The work that a start gives to the card.
    pub(crate) enum Work<'a> {
        Send(WorkRequest<'a>),
        Receive(&'a [Slice]),
    }

    /// A request without its kind.
    #[derive(Debug)]
    pub struct Core {
        pub(crate) queue_pair: Arc<QueuePairInner>,
        pub(crate) queue: Arc<CompletionQueueInner>,
        pub(crate) slices: Vec<Slice>,
        pub(crate) sending: Option<Sending>,
        /// True if starts may overlap, as their data is in their work requests.
        pub(crate) may_overlap: bool,
        pub(crate) starts: u64,
        /// The word that the peer increments, which the card waits for in front of each start.
        pub(crate) wait_word: Option<CardWord>,
        /// Starts that have not completed on the CPU, oldest first.
        pub(crate) active: VecDeque<Arc<Claim>>,
        /// The claim of the newest start that has completed, or one for the first start.
        pub(crate) used: Option<Arc<Claim>>,
        /// The first failure since the last [`Persistent::complete`], or else the newest completion.
        pub(crate) done: Option<Completion>,
        /// The timeline of the stream that waits for the newest start.
        pub(crate) awaited_on: Option<Arc<Timeline>>,
    }
}

impl sealed::Core {
    pub(super) fn new(
        queue_pair: Arc<QueuePairInner>,
        queue: Arc<CompletionQueueInner>,
        slices: Vec<Slice>,
        sending: Option<sealed::Sending>,
    ) -> Self {
        // Needed by a start, besides the queue. On an error, the start tries again and reports it.
        let later = |error| tracing::debug!(%error, "what a persistent request needs is left to its start");
        let used = start_checker().and_then(|()| Claim::new()).map_err(later).ok();
        let (active, done, awaited_on) = (VecDeque::new(), None, None);
        Self {
            queue_pair,
            queue,
            slices,
            sending,
            may_overlap: false,
            starts: 0,
            wait_word: None,
            active,
            used,
            done,
            awaited_on,
        }
    }

    pub(super) fn work(&self) -> sealed::Work<'_> {
        let Some(sending) = &self.sending else { return sealed::Work::Receive(&self.slices) };
        let request = match (sending.remote, &sending.count) {
            (None, _) => WorkRequest::send(&self.slices),
            (Some(remote), None) => WorkRequest::write(&self.slices, remote),
            (Some(remote), Some(bytes)) => WorkRequest::write_inline(bytes, remote),
        };
        let request = sending.target.iter().fold(request, WorkRequest::to_target);
        sealed::Work::Send(sending.immediate.into_iter().fold(request, WorkRequest::immediate))
    }

    pub(super) fn work_kind(&self) -> WorkKind {
        match &self.sending {
            None => WorkKind::Receive,
            Some(sealed::Sending { remote: Some(_), .. }) => WorkKind::RdmaWrite,
            Some(_) => WorkKind::Send,
        }
    }

    /// Returns the WAIT for the request's own word, in front of the next start.
    pub(super) fn wait_of_next(&self) -> Option<WaitRequest> {
        let word = self.wait_word.as_ref()?;
        let wait = CardWait::Ticket { lkey: word.lkey(), addr: word.address(), ticket: self.starts + 1 };
        Some(WaitRequest { wait, region: Some(word.region()) })
    }

    pub(super) fn check_start(&mut self, timeline: &Arc<Timeline>) -> Result<(), PersistentError> {
        let ordered = self.awaited_on.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, timeline));
        if !self.active.is_empty() && !ordered && !self.may_overlap {
            return Err(PersistentError::Active);
        }
        start_checker()?;
        if !self.active.is_empty() {
            self.progress();
        }
        Ok(())
    }

    /// Returns a claim for the next start.
    pub(super) fn claim(&mut self) -> Result<Arc<Claim>, PersistentError> {
        Ok(self.used.take().map_or_else(Claim::new, Claim::again)?)
    }

    pub(super) fn started(&mut self, claim: Arc<Claim>) {
        self.starts += 1;
        let counts = self.sending.iter_mut().flat_map(|sending| &mut sending.count);
        counts.for_each(|bytes| *bytes = bytes_of(self.starts + 1));
        self.active.push_back(claim);
        self.awaited_on = None;
    }

    pub(super) fn progress(&mut self) {
        progress(&self.queue, &self.queue_pair);
        self.take_done();
    }

    pub(super) fn take_done(&mut self) {
        while let Some(completion) = self.active.front().and_then(|claim| claim.completion()) {
            self.used = self.active.pop_front();
            if self.done.is_none_or(|done| done.status.is_ok()) {
                self.done = Some(completion);
            }
        }
    }
}

/// Takes completions of persistent requests out of a queue. Others stay for the program's polls.
pub(super) fn progress(queue: &CompletionQueueInner, queue_pair: &QueuePairInner) {
    // Before the flush, so that completed work does not count as flushed.
    queue.progress();
    if queue_pair.life.failure().is_some() {
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

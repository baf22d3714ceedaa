//! What requests of all kinds have in common.

use super::{Persistent, PersistentError};
use crate::memory::timeline::Timeline;
use crate::qp::checker::start_checker;
use crate::qp::{CardWord, CompletionQueueInner, QueuePairInner};
use crate::queue::send::{CardWait, Hold};
use crate::queue::{Claim, Completion, Status, WorkKind, WorkRequest};
use crate::verbs::Slice;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// A request of a list: a [`PersistentSend`](super::PersistentSend) or a
/// [`PersistentRecv`](super::PersistentRecv).
pub trait Request: sealed::Request + fmt::Debug {}

impl<K: sealed::Kind> Request for Persistent<K> {}

impl<K: sealed::Kind> sealed::Request for Persistent<K> {
    fn core(&mut self) -> &mut sealed::Core {
        &mut self.core
    }

    fn parts(&self) -> (&sealed::Core, sealed::Work<'_>, WorkKind) {
        (&self.core, self.kind.work(&self.core.slices), self.kind.work_kind())
    }

    fn counted(&mut self) {
        self.kind.counted(self.core.starts);
    }
}

pub(super) mod sealed {
    use super::*;

    pub trait Request {
        fn core(&mut self) -> &mut Core;

        /// The request, and the work of a start.
        fn parts(&self) -> (&Core, Work<'_>, WorkKind);

        /// The core has counted a start.
        fn counted(&mut self);
    }

    /// The kind of a request.
    pub trait Kind: fmt::Debug {
        fn work<'a>(&'a self, slices: &'a [Slice]) -> Work<'a>;

        fn work_kind(&self) -> WorkKind;

        /// It has been started that many times.
        fn counted(&mut self, _starts: u64) {}
    }

    /// What a start hands to the card.
    pub enum Work<'a> {
        Send(WorkRequest<'a>),
        Receive(&'a [Slice]),
    }

    /// A request but for its kind.
    #[derive(Debug)]
    pub struct Core {
        pub(crate) queue_pair: Arc<QueuePairInner>,
        /// Where the request completes.
        pub(crate) queue: Arc<CompletionQueueInner>,
        pub(crate) slices: Vec<Slice>,
        /// Starts may overlap: what they send is in their work requests.
        pub(crate) may_overlap: bool,
        /// How often it was started.
        pub(crate) starts: u64,
        /// The word that its peer counts up, which the card waits for in front of each start.
        pub(crate) behind: Option<CardWord>,
        /// Starts that have not completed on the CPU, oldest first.
        pub(crate) active: VecDeque<Arc<Claim>>,
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
    ) -> Self {
        // What a start needs besides the queue. Where that cannot be had now, the start tries again and
        // says why.
        if let Err(error) = start_checker().and_then(|()| Status::prepare()) {
            tracing::debug!(%error, "what a persistent request needs is left to its start");
        }
        let (active, done, awaited_on) = (VecDeque::new(), None, None);
        Self {
            queue_pair,
            queue,
            slices,
            may_overlap: false,
            starts: 0,
            behind: None,
            active,
            done,
            awaited_on,
        }
    }

    /// What the card waits for in front of the next start, by the request's own word.
    pub(super) fn hold_of_next(&self) -> Option<Hold> {
        let word = self.behind.as_ref()?;
        let wait = CardWait::Ticket { lkey: word.lkey(), addr: word.address(), ticket: self.starts + 1 };
        Some(Hold { wait, region: word.region() })
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

    pub(super) fn started(&mut self, claim: Arc<Claim>) {
        self.starts += 1;
        self.active.push_back(claim);
        self.awaited_on = None;
    }

    /// Looks at what has completed.
    pub(super) fn progress(&mut self) {
        super::progress::progress(&self.queue, &self.queue_pair);
        self.take_done();
    }

    /// Takes out the oldest starts that have completed.
    pub(super) fn take_done(&mut self) {
        while let Some(completion) = self.active.front().and_then(|claim| claim.completion()) {
            self.active.pop_front();
            if self.done.is_none_or(|done| done.status.is_ok()) {
                self.done = Some(completion);
            }
        }
    }
}

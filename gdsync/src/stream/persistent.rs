//! Persistent requests: prepared once, started many times on a stream.
//!
//! The shape is that of the MPI Forum's stream-triggered proposals: *init* remembers buffers and peer, *start* and *wait* are
//! enqueued on a stream, *complete* is the CPU's, *free* ends it. Started, waited for and started again on one stream, a request
//! needs no CPU between the iterations.
//!
//! Every start has a [`Status`] of its own, which its stream wait waits for and which a thread of the library writes.

use crate::batch::Batch;
use crate::memop::{Condition, MemOpStream, Word32};
use crate::memory::timeline::Timeline;
use crate::qp::cq::CompletionQueueInner;
use crate::qp::prepared::PreparedSend;
use crate::qp::{QueuePair, QueuePairInner};
use crate::queue::Status;
use crate::queue::claim::Claim;
use crate::queue::error::{QueueError, StateError};
use crate::queue::outcome::{Completion, WorkKind};
use crate::queue::request::{Rules, WorkRequest};
use crate::stream::{PostFailure, Stream};
use crate::util::pause::Pause;
use crate::util::poller::{self, Watched};
use crate::verbs::error::Error;
use crate::verbs::mr::{RemoteMemory, Slice};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Errors of persistent requests. Nothing was started, or is lost, by any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistentError {
    /// The last start has not completed, and no wait for it comes before this start on the stream.
    #[error(
        "the request is active: complete() it, or have the same stream wait for it before it is started again"
    )]
    Active,
    /// Nothing was started.
    #[error("the request is not active: start it first")]
    Inactive,
    /// The queue pair does not take it.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The stream does not take it.
    #[error(transparent)]
    Post(#[from] PostFailure),
    /// The library's own thread, or memory for the status, could not be had.
    #[error(transparent)]
    Resources(#[from] Error),
}

/// A persistent request is active and was not freed.
#[derive(Debug, thiserror::Error)]
#[error("the request is active: complete() it before it is freed, or drop it")]
pub struct StillActive<R: fmt::Debug> {
    /// The request.
    pub request: Box<R>,
}

/// What sends and receives have in common.
#[derive(Debug)]
struct Request {
    queue_pair: Arc<QueuePairInner>,
    slices: Vec<Slice>,
    /// Starts that have not completed on the CPU, oldest first.
    active: VecDeque<Arc<Claim>>,
    /// The newest that has, and the first that failed since the last time that it was told.
    done: Option<Completion>,
    /// The timeline of the stream that waits for the newest start.
    awaited_on: Option<Arc<Timeline>>,
}

impl Request {
    fn new(queue_pair: &QueuePair, slices: &[Slice], card_writes: bool) -> Result<Self, QueueError> {
        let queue_pair = queue_pair.inner.clone();
        slices.iter().try_for_each(|slice| queue_pair.check(slice, card_writes))?;
        let slices = slices.to_vec();
        Ok(Request { queue_pair, slices, active: VecDeque::new(), done: None, awaited_on: None })
    }

    fn check_start(&mut self, timeline: &Arc<Timeline>) -> Result<(), PersistentError> {
        let ordered = self.awaited_on.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, timeline));
        if !self.active.is_empty() && !ordered {
            return Err(PersistentError::Active);
        }
        poller::start()?;
        self.take_done();
        Ok(())
    }

    fn started(&mut self, claim: Arc<Claim>) {
        self.active.push_back(claim);
        self.awaited_on = None;
    }

    /// Takes out the oldest starts that have completed.
    fn take_done(&mut self) {
        while let Some(completion) = self.active.front().and_then(|claim| claim.completion()) {
            self.active.pop_front();
            if self.done.is_none_or(|done| done.status.is_ok()) {
                self.done = Some(completion);
            }
        }
    }

    fn status(&self) -> Option<Status> {
        self.active.back().map(|claim| claim.status().clone())
    }

    fn wait_on<B: MemOpStream>(
        &mut self,
        stream: &Stream<B>,
        queue: &Arc<CompletionQueueInner>,
    ) -> Result<(), PersistentError> {
        let claim = self.active.back().ok_or(PersistentError::Inactive)?.clone();
        let word = claim.status().word().clone();
        poller::watch(Box::new(Progress {
            queue: queue.clone(),
            queue_pair: self.queue_pair.clone(),
            claim,
        }));
        let batch = Batch::new().wait_value32(&word, Condition::And, Status::OK | Status::FAILED);
        stream.post(batch).map_err(|error| error.source)?;
        self.awaited_on = Some(stream.timeline.clone());
        Ok(())
    }

    fn complete(
        &mut self,
        queue: &CompletionQueueInner,
        timeout: Duration,
    ) -> Result<Option<Completion>, PersistentError> {
        if self.active.is_empty() && self.done.is_none() {
            return Err(PersistentError::Inactive);
        }
        let mut pause = Pause::new();
        loop {
            progress(queue, &self.queue_pair);
            self.take_done();
            if self.active.is_empty() {
                self.awaited_on = None;
                return Ok(self.done.take());
            }
            if pause.elapsed() >= timeout {
                return Ok(None);
            }
            pause.pause();
        }
    }

    fn is_active(&self) -> bool {
        !self.active.is_empty()
    }
}

/// Takes what has completed; completions that nobody has claimed stay for whoever polls.
fn progress(queue: &CompletionQueueInner, queue_pair: &QueuePairInner) {
    if queue_pair.failure().is_some() {
        queue_pair.flush_unposted();
    }
    queue.progress();
}

/// Completes a start for a stream.
struct Progress {
    queue: Arc<CompletionQueueInner>,
    queue_pair: Arc<QueuePairInner>,
    claim: Arc<Claim>,
}

impl Watched for Progress {
    fn look(&mut self) -> bool {
        progress(&self.queue, &self.queue_pair);
        self.claim.completion().is_some()
    }
}

/// A send or a write that is started again and again, with the same buffers.
///
/// Dropping it while it is active lets what was started go on, unobserved: its memory stays until the card is through with it.
#[derive(Debug)]
pub struct PersistentSend {
    request: Request,
    remote: Option<RemoteMemory>,
    immediate: Option<u32>,
}

/// A receive that is started again and again, into the same buffers.
///
/// It reaches the card when the stream reaches the start: earlier, a message could overwrite what the stream still reads. So
/// the remote side may come first, and needs receiver-not-ready retries. Dropping it is as with [`PersistentSend`].
#[derive(Debug)]
pub struct PersistentRecv {
    request: Request,
}

impl PersistentSend {
    /// Remembers a send of the slices, one after the other; their content is read at each start, in stream order.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain, or a limit of the queue pair.
    pub fn send(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        Self::new(queue_pair, slices, None)
    }

    /// Remembers an RDMA write of the slices.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn write(queue_pair: &QueuePair, slices: &[Slice], remote: RemoteMemory) -> Result<Self, QueueError> {
        Self::new(queue_pair, slices, Some(remote))
    }

    fn new(
        queue_pair: &QueuePair,
        slices: &[Slice],
        remote: Option<RemoteMemory>,
    ) -> Result<Self, QueueError> {
        let request = Request::new(queue_pair, slices, false)?;
        let this = PersistentSend { request, remote, immediate: None };
        this.work_request().most_units(queue_pair.inner.limits())?;
        Ok(this)
    }

    /// Adds immediate data, which the receiver finds in its completion.
    pub fn immediate(mut self, value: u32) -> Self {
        self.immediate = Some(value);
        self
    }

    fn work_request(&self) -> WorkRequest<'_> {
        let slices = &self.request.slices;
        let request = self
            .remote
            .map_or_else(|| WorkRequest::send(slices), |remote| WorkRequest::write(slices, remote));
        self.immediate.into_iter().fold(request, WorkRequest::immediate)
    }

    /// Starts it on a stream: when the stream comes there, the card is rung.
    ///
    /// # Errors
    /// [`PersistentError`]; active starts that the stream does not wait for before, a queue pair that has failed or is full, a
    /// stream that is full.
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        self.request.check_start(&stream.timeline)?;
        let claim = Claim::new()?;
        let send =
            PreparedSend::claimed(self.request.queue_pair.clone(), self.work_request(), claim.clone())?;
        // Where the stream refuses, the send goes with the error.
        stream.post_send(send).map_err(|error| error.source)?;
        self.request.started(claim);
        Ok(())
    }

    /// Has a stream wait until the newest start has completed, well or not: [`Self::status`] says which.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`], [`PersistentError::Post`].
    pub fn wait_on<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        let queue = self.request.queue_pair.send_cq().clone();
        self.request.wait_on(stream, &queue)
    }

    /// Waits on the CPU until every start has completed; `None` where that took longer than `timeout`. The request is inactive
    /// then. Of several starts, the first failure is told, or else the newest completion.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`].
    pub fn complete(&mut self, timeout: Duration) -> Result<Option<Completion>, PersistentError> {
        let queue = self.request.queue_pair.send_cq().clone();
        self.request.complete(&queue, timeout)
    }

    /// What becomes of the newest start; `None` where the request is inactive.
    pub fn status(&self) -> Option<Status> {
        self.request.status()
    }

    /// True from a start until the CPU has completed it.
    pub fn is_active(&self) -> bool {
        self.request.is_active()
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`StillActive`], with the request, where starts have not completed.
    pub fn free(mut self) -> Result<(), StillActive<Self>> {
        self.request.take_done();
        if self.is_active() { Err(StillActive { request: Box::new(self) }) } else { Ok(()) }
    }
}

impl PersistentRecv {
    /// Remembers a receive into the slices, one after the other.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain or not writable, or too many.
    pub fn new(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        queue_pair.inner.check_recv(slices)?;
        Ok(PersistentRecv { request: Request::new(queue_pair, slices, true)? })
    }

    /// Starts it on a stream: the receive is posted when the stream comes there; at once, where the stream is idle.
    ///
    /// # Errors
    /// As [`PersistentSend::start`].
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        self.request.check_start(&stream.timeline)?;
        let queue_pair = &self.request.queue_pair;
        if let Some(cause) = queue_pair.failure() {
            return Err(QueueError::State(StateError::Failed { qpn: queue_pair.number(), cause }).into());
        }
        let claim = Claim::new()?;
        if matches!(stream.backend.wait_idle(Duration::ZERO), Ok(true)) {
            queue_pair.post_recv(&self.request.slices, 0, Some(claim.clone()))?;
        } else {
            let reached = Status::new()?.word().clone();
            stream.post(Batch::new().write_value32(&reached, 1)).map_err(|error| error.source)?;
            poller::watch(Box::new(PostReceive {
                reached,
                timeline: stream.timeline.clone(),
                queue_pair: Starting::new(queue_pair),
                slices: self.request.slices.clone(),
                claim: claim.clone(),
            }));
        }
        self.request.started(claim);
        Ok(())
    }

    /// As [`PersistentSend::wait_on`]: what follows on the stream finds the message in the buffers, if the status is good.
    ///
    /// # Errors
    /// As [`PersistentSend::wait_on`].
    pub fn wait_on<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        let queue = self.request.queue_pair.recv_cq().clone();
        self.request.wait_on(stream, &queue)
    }

    /// As [`PersistentSend::complete`].
    ///
    /// # Errors
    /// As [`PersistentSend::complete`].
    pub fn complete(&mut self, timeout: Duration) -> Result<Option<Completion>, PersistentError> {
        let queue = self.request.queue_pair.recv_cq().clone();
        self.request.complete(&queue, timeout)
    }

    /// What becomes of the newest start; `None` where the request is inactive.
    pub fn status(&self) -> Option<Status> {
        self.request.status()
    }

    /// True from a start until the CPU has completed it.
    pub fn is_active(&self) -> bool {
        self.request.is_active()
    }

    /// Ends it.
    ///
    /// # Errors
    /// As [`PersistentSend::free`].
    pub fn free(mut self) -> Result<(), StillActive<Self>> {
        self.request.take_done();
        if self.is_active() { Err(StillActive { request: Box::new(self) }) } else { Ok(()) }
    }
}

/// A queue pair with a receive to come, which it is to be aborted for if it is dropped before: nobody else can end the wait for it.
struct Starting(Arc<QueuePairInner>);

impl Starting {
    fn new(queue_pair: &Arc<QueuePairInner>) -> Self {
        queue_pair.starts.fetch_add(1, Ordering::AcqRel);
        Starting(queue_pair.clone())
    }
}

impl Deref for Starting {
    type Target = QueuePairInner;

    fn deref(&self) -> &QueuePairInner {
        &self.0
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.starts.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Posts a receive when the stream has come to its start.
struct PostReceive {
    reached: Word32,
    timeline: Arc<Timeline>,
    queue_pair: Starting,
    slices: Vec<Slice>,
    claim: Arc<Claim>,
}

impl Watched for PostReceive {
    fn look(&mut self) -> bool {
        let (qpn, kind) = (self.queue_pair.number(), WorkKind::Receive);
        if self.queue_pair.failure().is_some() || self.timeline.is_dead() {
            self.claim.finish_flushed(qpn, kind);
            return true;
        }
        if self.reached.load() == 0 {
            return false;
        }
        match self.queue_pair.post_recv(&self.slices, 0, Some(self.claim.clone())) {
            Ok(()) => true,
            Err(error) if matches!(error, QueueError::Full(_)) => {
                progress(self.queue_pair.recv_cq(), &self.queue_pair);
                false
            }
            Err(QueueError::State(StateError::Failed { .. })) => {
                self.claim.finish_flushed(qpn, kind);
                true
            }
            Err(error) => {
                tracing::error!(%error, qpn, "a persistent receive cannot be posted");
                self.claim.finish_unposted(qpn, kind, 0);
                true
            }
        }
    }
}

//! Persistent requests: prepared once, started many times on a stream.
//!
//! The shape is that of the MPI Forum's stream-triggered proposals. *init* remembers buffers and
//! peer, *start* and *wait* are enqueued on a stream, *complete* runs on the CPU, *free* ends the
//! request. If one stream starts a request, waits for it and starts it again, the iterations need
//! no CPU between them.
//!
//! Requests are sends, writes and receives. Changes of memory windows are none: each bind makes another
//! key. A write goes through a window as long as that is bound.
//!
//! Every start has a [`Status`] of its own. A thread of the library writes it, and the stream's
//! wait waits for it.

use crate::batch::Batch;
use crate::memop::{Condition, MemOpStream, Word32};
use crate::memory::timeline::Timeline;
use crate::qp::checker::{CHECKER, start_checker};
use crate::qp::{CompletionQueueInner, PreparedSend, QueuePair, QueuePairInner};
use crate::queue::request::Rules;
use crate::queue::{Claim, Completion, QueueError, StateError, Status, WorkKind, WorkRequest};
use crate::stream::{PostFailure, Stream};
use crate::util::poller::{Polled, Task};
use crate::verbs::{DcAddress, Error, RemoteMemory, Slice};
use gdsync_sys::pause::Pause;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Errors of persistent requests. None of them starts or loses anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PersistentError {
    /// The last start has not completed, and the stream does not wait for it before this start.
    #[error(
        "the request is active: complete() it, or have the same stream wait for it before it is started again"
    )]
    Active,
    /// The request was not started.
    #[error("the request is not active: start it first")]
    Inactive,
    /// The queue pair refuses the request.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The stream refuses the operations.
    #[error(transparent)]
    Post(#[from] PostFailure),
    /// The library's thread could not be started, or there is no memory for the status.
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

/// A request that is started again and again, with the same buffers: a [`PersistentSend`] or a
/// [`PersistentRecv`].
///
/// If it is dropped while it is active, the started work goes on unobserved. Its memory stays
/// registered until the card has completed the work.
#[derive(Debug)]
pub struct Persistent<K> {
    kind: K,
    queue_pair: Arc<QueuePairInner>,
    /// Where the request completes.
    queue: Arc<CompletionQueueInner>,
    slices: Vec<Slice>,
    /// Starts that have not completed on the CPU, oldest first.
    active: VecDeque<Arc<Claim>>,
    /// The first failure since the last [`Self::complete`], or else the newest completion.
    done: Option<Completion>,
    /// The timeline of the stream that waits for the newest start.
    awaited_on: Option<Arc<Timeline>>,
}

/// A send or a write that is started again and again, with the same buffers.
pub type PersistentSend = Persistent<Outgoing>;

/// A receive that is started again and again, into the same buffers.
///
/// The receive is posted when the stream reaches the start: a message that arrived earlier could
/// overwrite what the stream still reads. So the remote side may send before the receive is posted,
/// and needs receiver-not-ready retries.
pub type PersistentRecv = Persistent<Incoming>;

/// The kind of a [`PersistentSend`].
#[derive(Debug)]
pub struct Outgoing {
    remote: Option<RemoteMemory>,
    immediate: Option<u32>,
    target: Option<DcAddress>,
}

/// The kind of a [`PersistentRecv`].
#[derive(Debug)]
pub struct Incoming(());

impl<K> Persistent<K> {
    fn with_kind(
        kind: K,
        queue_pair: &QueuePair,
        queue: &Arc<CompletionQueueInner>,
        slices: &[Slice],
        card_writes: bool,
    ) -> Result<Self, QueueError> {
        let queue_pair = queue_pair.inner.clone();
        slices.iter().try_for_each(|slice| queue_pair.check(slice, card_writes))?;
        let (queue, slices) = (queue.clone(), slices.to_vec());
        Ok(Persistent {
            kind,
            queue_pair,
            queue,
            slices,
            active: VecDeque::new(),
            done: None,
            awaited_on: None,
        })
    }

    fn check_start(&mut self, timeline: &Arc<Timeline>) -> Result<(), PersistentError> {
        let ordered = self.awaited_on.as_ref().is_some_and(|awaited| Arc::ptr_eq(awaited, timeline));
        if !self.active.is_empty() && !ordered {
            return Err(PersistentError::Active);
        }
        start_checker()?;
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

    /// Has a stream wait until the newest start has completed, well or not: [`Self::status`] says
    /// which. After a receive that completed well, later operations of the stream find the message
    /// in the buffers.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`], [`PersistentError::Post`].
    pub fn wait_on<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        let claim = self.active.back().ok_or(PersistentError::Inactive)?.clone();
        let word = claim.status.word().clone();
        let (queue, queue_pair) = (self.queue.clone(), self.queue_pair.clone());
        CHECKER.add(Arc::new(Progress { queue, queue_pair, claim }));
        let batch = Batch::new().wait_value32(&word, Condition::And, Status::OK | Status::FAILED);
        stream.post(batch).map_err(|error| error.source)?;
        self.awaited_on = Some(stream.timeline.clone());
        Ok(())
    }

    /// Waits on the CPU until every start has completed; then the request is inactive. `None` if
    /// that takes longer than `timeout`. Of several starts, it returns the first failure, or else
    /// the newest completion.
    ///
    /// # Errors
    /// [`PersistentError::Inactive`].
    pub fn complete(&mut self, timeout: Duration) -> Result<Option<Completion>, PersistentError> {
        if self.active.is_empty() && self.done.is_none() {
            return Err(PersistentError::Inactive);
        }
        let mut pause = Pause::new();
        loop {
            progress(&self.queue, &self.queue_pair);
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

    /// The outcome of the newest start; `None` if the request is inactive.
    pub fn status(&self) -> Option<Status> {
        self.active.back().map(|claim| claim.status.clone())
    }

    /// True from a start until the CPU has completed it.
    pub fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Ends the request.
    ///
    /// # Errors
    /// [`StillActive`], with the request, if starts have not completed.
    pub fn free(mut self) -> Result<(), StillActive<Self>>
    where
        K: fmt::Debug,
    {
        self.take_done();
        if self.is_active() { Err(StillActive { request: Box::new(self) }) } else { Ok(()) }
    }
}

impl PersistentSend {
    /// Remembers a send of the slices, one after the other. Each start sends what they hold when
    /// the stream reaches it.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain, or a limit of the queue pair.
    pub fn send(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        Self::to(queue_pair, slices, None)
    }

    /// Remembers an RDMA write of the slices.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn write(queue_pair: &QueuePair, slices: &[Slice], remote: RemoteMemory) -> Result<Self, QueueError> {
        Self::to(queue_pair, slices, Some(remote))
    }

    fn to(
        queue_pair: &QueuePair,
        slices: &[Slice],
        remote: Option<RemoteMemory>,
    ) -> Result<Self, QueueError> {
        let kind = Outgoing { remote, immediate: None, target: None };
        let this = Self::with_kind(kind, queue_pair, &queue_pair.inner.send_cq, slices, false)?;
        this.work_request().most_units(queue_pair.inner.limits())?;
        Ok(this)
    }

    /// Adds immediate data, which the receiver finds in its completion.
    pub fn immediate(mut self, value: u32) -> Self {
        self.kind.immediate = Some(value);
        self
    }

    /// Says which target it goes to, as requests of DC queue pairs need it. A start is refused without
    /// one there, and with one elsewhere.
    pub fn to_target(mut self, target: &DcAddress) -> Self {
        self.kind.target = Some(target.clone());
        self
    }

    fn work_request(&self) -> WorkRequest<'_> {
        let request = match self.kind.remote {
            None => WorkRequest::send(&self.slices),
            Some(remote) => WorkRequest::write(&self.slices, remote),
        };
        let request = self.kind.target.iter().fold(request, WorkRequest::to_target);
        self.kind.immediate.into_iter().fold(request, WorkRequest::immediate)
    }

    /// Starts the request on a stream, which rings the card when it reaches the start.
    ///
    /// # Errors
    /// [`PersistentError`]: starts are active that the stream does not wait for before this one,
    /// the queue pair has failed or is full, or the stream is full.
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        self.check_start(&stream.timeline)?;
        let claim = Claim::new()?;
        let send = PreparedSend::claimed(self.queue_pair.clone(), self.work_request(), claim.clone())?;
        // If the stream refuses the send, it is dropped with the error.
        stream.post_send(send).map_err(|error| error.source)?;
        self.started(claim);
        Ok(())
    }
}

impl PersistentRecv {
    /// Remembers a receive into the slices, one after the other.
    ///
    /// # Errors
    /// [`QueueError`]: a slice of another domain or not writable, or too many.
    pub fn new(queue_pair: &QueuePair, slices: &[Slice]) -> Result<Self, QueueError> {
        queue_pair.inner.recv_segments(slices)?;
        Self::with_kind(Incoming(()), queue_pair, &queue_pair.inner.recv_cq, slices, true)
    }

    /// Starts the request on a stream: the receive is posted when the stream reaches the start. If
    /// the stream is idle, that is now.
    ///
    /// # Errors
    /// As [`PersistentSend::start`].
    pub fn start<B: MemOpStream>(&mut self, stream: &Stream<B>) -> Result<(), PersistentError> {
        self.check_start(&stream.timeline)?;
        if let Some(cause) = self.queue_pair.failure() {
            let qpn = self.queue_pair.number;
            return Err(QueueError::State(StateError::Failed { qpn, cause }).into());
        }
        let claim = Claim::new()?;
        if matches!(stream.backend.wait_idle(Duration::ZERO), Ok(true)) {
            self.queue_pair.post_recv(&self.slices, 0, Some(claim.clone()))?;
        } else {
            let reached = Status::new()?.word().clone();
            stream.post(Batch::new().write_value32(&reached, 1)).map_err(|error| error.source)?;
            CHECKER.add(Arc::new(PostReceive {
                reached,
                timeline: stream.timeline.clone(),
                queue_pair: Starting::new(&self.queue_pair),
                slices: self.slices.clone(),
                claim: claim.clone(),
            }));
        }
        self.started(claim);
        Ok(())
    }
}

/// Takes completions of persistent requests out of a queue. Other completions stay for the
/// program's polls.
fn progress(queue: &CompletionQueueInner, queue_pair: &QueuePairInner) {
    if queue_pair.failure().is_some() {
        queue_pair.flush_unposted();
    }
    queue.progress();
}

/// Completes a start that a stream waits for.
struct Progress {
    queue: Arc<CompletionQueueInner>,
    queue_pair: Arc<QueuePairInner>,
    claim: Arc<Claim>,
}

impl Task for Progress {
    fn poll(&self) -> Polled {
        progress(&self.queue, &self.queue_pair);
        if self.claim.completion().is_some() { Polled::Done } else { Polled::Nothing }
    }
}

/// A queue pair with a receive to be posted, which counts as work in flight: if the queue pair is
/// dropped before, it is aborted, as the wait for the receive would not end otherwise.
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

/// Posts a receive when the stream has reached its start.
struct PostReceive {
    reached: Word32,
    timeline: Arc<Timeline>,
    queue_pair: Starting,
    slices: Vec<Slice>,
    claim: Arc<Claim>,
}

impl Task for PostReceive {
    fn poll(&self) -> Polled {
        let (qpn, kind) = (self.queue_pair.number, WorkKind::Receive);
        if self.queue_pair.failure().is_some() || self.timeline.is_dead() {
            self.claim.finish_flushed(qpn, kind);
            return Polled::Done;
        }
        if self.reached.load() == 0 {
            return Polled::Nothing;
        }
        match self.queue_pair.post_recv(&self.slices, 0, Some(self.claim.clone())) {
            Ok(()) => {}
            Err(QueueError::Full(_)) => {
                progress(&self.queue_pair.recv_cq, &self.queue_pair);
                return Polled::Nothing;
            }
            Err(QueueError::State(StateError::Failed { .. })) => self.claim.finish_flushed(qpn, kind),
            Err(error) => {
                tracing::error!(%error, qpn, "a persistent receive cannot be posted");
                self.claim.finish_unposted(qpn, kind, 0);
            }
        }
        Polled::Done
    }
}

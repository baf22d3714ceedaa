//! One queue pair of a team, and which of its requests have completed.

use crate::action::{Action, Fetches, fenced};
use crate::error::NotifyError;
use crate::life::Life;
use gdsync::qp::ResetError;
use gdsync::queue::{OrderError, StateError};
use gdsync::{ConnectOptions, Endpoint, PreparedSend, PreparedWait, QueueError, QueuePair, WorkRequest};
use gdsync_sys::pause::Pause;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Peer {
    rank: u32,
    pub(crate) queue_pair: QueuePair,
    life: Arc<Life>,
    is_cut: AtomicBool,
    progress: Mutex<Progress>,
}

/// Requests are numbered from 1, in the order of the queue, and complete in that order.
#[derive(Debug, Default)]
struct Progress {
    /// The newest request.
    given: u64,
    /// The newest request that is sure to complete: the CPU has posted it, signaled.
    certain: u64,
    /// The newest request that has completed.
    completed: u64,
    fetches: Fetches,
}

impl Peer {
    pub(crate) fn new(rank: u32, queue_pair: QueuePair, life: Arc<Life>) -> Self {
        Peer { rank, queue_pair, life, is_cut: AtomicBool::new(false), progress: Mutex::default() }
    }

    /// The error for one of the queue pair.
    fn of_queue(&self, error: QueueError) -> NotifyError {
        match error {
            QueueError::State(StateError::Failed { cause, .. }) => self.life.of_failure(self.rank, cause),
            source => NotifyError::Post { rank: self.rank, source },
        }
    }

    /// Ends the connection with a dead rank: nothing of it arrives any more, and what waits for it
    /// goes on.
    pub(crate) fn cut(&self) {
        if self.is_cut.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.queue_pair.abort() {
            tracing::error!(%error, rank = self.rank, "a connection with a dead rank could not be ended");
        }
    }

    /// Brings the connection with a dead rank back to where it was made, for another process. What
    /// streams were given of it has to pass, and its completions are taken; that may take up to
    /// `timeout`.
    pub(crate) fn reset(&self, timeout: Duration) -> Result<Endpoint, NotifyError> {
        let mut progress = self.progress.lock();
        let mut pause = Pause::new();
        loop {
            for queue in [self.queue_pair.send_cq(), self.queue_pair.recv_cq()] {
                while queue.poll().map_err(|error| self.of_queue(error.into()))?.is_some() {}
            }
            match self.queue_pair.reset() {
                Ok(()) => break,
                Err(ResetError::Blocked { .. }) if pause.elapsed() < timeout => pause.pause(),
                Err(source) => return Err(NotifyError::Reset { rank: self.rank, source }),
            }
        }
        *progress = Progress::default();
        self.is_cut.store(false, Ordering::Relaxed);
        Ok(self.queue_pair.endpoint()?)
    }

    pub(crate) fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), NotifyError> {
        Ok(self.queue_pair.connect(remote, options)?)
    }

    /// Locks the queue for one caller, so that requests that belong together follow each other.
    /// Each request waits for room in the queue for up to `timeout`.
    pub(crate) fn lock(&self, timeout: Duration) -> Posting<'_> {
        Posting { peer: self, progress: self.progress.lock(), timeout }
    }

    /// Takes completions. A failure of the queue pair is an error now and at every later call.
    fn poll(&self, progress: &mut Progress) -> Result<(), NotifyError> {
        let queue = self.queue_pair.send_cq();
        while let Some(completion) = queue.poll().map_err(|error| self.of_queue(error.into()))? {
            progress.completed = progress.completed.max(completion.wr_id);
        }
        self.queue_pair.failure().map_or(Ok(()), |cause| Err(self.life.of_failure(self.rank, cause)))
    }

    /// Waits of a stream for every request that no stream waits for yet.
    pub(crate) fn prepare_waits(&self) -> Result<Vec<PreparedWait>, NotifyError> {
        all_waits(&self.queue_pair, |error| self.of_queue(error))
    }

    /// Returns when every request given before has completed, so that its data have arrived at the
    /// other side.
    pub(crate) fn flush(&self, timeout: Duration) -> Result<(), NotifyError> {
        let mut pause = Pause::new();
        let until = self.progress.lock().given;
        loop {
            let mut progress = self.progress.lock();
            self.poll(&mut progress)?;
            if progress.completed >= until {
                return Ok(());
            }
            // A prepared send that was dropped never completes. A request behind it does.
            let mut in_the_way = None;
            if progress.certain < until {
                let number = progress.given + 1;
                let fence = progress.fetches.need_fence(None, progress.completed);
                match self.queue_pair.post_send(fenced(WorkRequest::nop(), fence).wr_id(number)) {
                    Ok(()) => (progress.given, progress.certain) = (number, number),
                    Err(QueueError::State(StateError::Failed { cause, .. })) => {
                        return Err(self.life.of_failure(self.rank, cause));
                    }
                    // The stream has not reached its sends, or the program holds a prepared one.
                    Err(error) => in_the_way = Some(error),
                }
            }
            drop(progress);
            if pause.elapsed() >= timeout {
                return Err(match in_the_way {
                    Some(error) => self.of_queue(error),
                    None => NotifyError::TimedOut { what: "flushing a queue", timeout },
                });
            }
            pause.pause();
        }
    }
}

/// Waits of a stream for every request of a queue pair that no stream waits for yet.
pub(crate) fn all_waits(
    queue_pair: &QueuePair,
    refused: impl Fn(QueueError) -> NotifyError,
) -> Result<Vec<PreparedWait>, NotifyError> {
    let (queue, mut waits) = (queue_pair.send_cq(), Vec::new());
    loop {
        match queue.prepare_wait() {
            Ok(wait) => waits.push(wait),
            Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => return Ok(waits),
            Err(error) => return Err(refused(error)),
        }
    }
}

/// A locked queue, which takes requests one after the other.
pub(crate) struct Posting<'a> {
    peer: &'a Peer,
    progress: MutexGuard<'a, Progress>,
    timeout: Duration,
}

impl Posting<'_> {
    /// Posts a request whose completion says that those before it have completed, too.
    pub(crate) fn post(&mut self, action: &Action) -> Result<(), NotifyError> {
        self.give(action, true, QueuePair::post_send, |_| Ok(()))?;
        self.progress.certain = self.progress.given;
        Ok(())
    }

    /// Posts a request that a later one completes.
    pub(crate) fn post_unsignaled(&mut self, action: &Action) -> Result<(), NotifyError> {
        self.give(action, false, QueuePair::post_send, |_| Ok(()))
    }

    /// Prepares a request for a stream. Refused while any rank is dead and not dropped: a stream
    /// does not see that its waits are released, and would write what it has not received.
    pub(crate) fn prepare(&mut self, action: &Action, signaled: bool) -> Result<PreparedSend, NotifyError> {
        self.peer.life.check(self.peer.rank)?;
        self.peer.life.check_all()?;
        self.give(action, signaled, QueuePair::prepare, Life::check_all)
    }

    /// Gives the next request to the queue pair, and waits for room while the queue is full, as long
    /// as `may_wait` says so.
    fn give<T>(
        &mut self,
        action: &Action,
        signaled: bool,
        act: impl for<'b> Fn(&QueuePair, WorkRequest<'b>) -> Result<T, QueueError>,
        may_wait: impl Fn(&Life) -> Result<(), NotifyError>,
    ) -> Result<T, NotifyError> {
        let Posting { peer, timeout, .. } = *self;
        let mut pause = Pause::new();
        let number = self.progress.given + 1;
        loop {
            let Progress { fetches, completed, .. } = &*self.progress;
            let request = fenced(action.request(), fetches.need_fence(Some(action), *completed));
            let request = if signaled { request } else { request.unsignaled() };
            match act(&peer.queue_pair, request.wr_id(number)) {
                Ok(done) => {
                    self.progress.given = number;
                    self.progress.fetches.note(action, number);
                    return Ok(done);
                }
                Err(QueueError::Full(_)) if pause.elapsed() < timeout => {
                    may_wait(&peer.life)?;
                    let before = self.progress.completed;
                    peer.poll(&mut self.progress)?;
                    if self.progress.completed == before {
                        pause.pause();
                    }
                }
                Err(QueueError::Full(_)) => {
                    return Err(NotifyError::TimedOut { what: "waiting for room in a queue", timeout });
                }
                Err(error) => return Err(peer.of_queue(error)),
            }
        }
    }
}

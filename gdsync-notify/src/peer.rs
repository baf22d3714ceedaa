//! One queue pair of a team, and which of its requests have completed.

use crate::error::NotifyError;
use gdsync::queue::{OrderError, StateError};
use gdsync::{PreparedSend, PreparedWait, QueueError, QueuePair, WorkRequest};
use gdsync_sys::pause::Pause;
use parking_lot::{Mutex, MutexGuard};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Peer {
    rank: u32,
    pub(crate) queue_pair: QueuePair,
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
}

impl Peer {
    pub(crate) fn new(rank: u32, queue_pair: QueuePair) -> Self {
        Peer { rank, queue_pair, progress: Mutex::default() }
    }

    /// Locks the queue for one caller, so that requests that belong together follow each other.
    /// Each request waits for room in the queue for up to `timeout`.
    pub(crate) fn lock(&self, timeout: Duration) -> Posting<'_> {
        Posting { peer: self, progress: self.progress.lock(), timeout }
    }

    /// Takes completions. A failure of the queue pair is an error now and at every later call.
    fn poll(&self, progress: &mut Progress) -> Result<(), NotifyError> {
        let queue = self.queue_pair.send_cq();
        while let Some(completion) =
            queue.poll().map_err(|error| NotifyError::of_queue(self.rank, error.into()))?
        {
            progress.completed = progress.completed.max(completion.wr_id);
        }
        self.queue_pair.failure().map_or(Ok(()), |cause| Err(NotifyError::of_cause(self.rank, cause)))
    }

    /// Waits of a stream for every request that no stream waits for yet.
    pub(crate) fn prepare_waits(&self) -> Result<Vec<PreparedWait>, NotifyError> {
        let (queue, mut waits) = (self.queue_pair.send_cq(), Vec::new());
        loop {
            match queue.prepare_wait() {
                Ok(wait) => waits.push(wait),
                Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => return Ok(waits),
                Err(error) => return Err(NotifyError::of_queue(self.rank, error)),
            }
        }
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
                match self.queue_pair.post_send(WorkRequest::nop().wr_id(number)) {
                    Ok(()) => (progress.given, progress.certain) = (number, number),
                    Err(QueueError::State(StateError::Failed { cause, .. })) => {
                        return Err(NotifyError::of_cause(self.rank, cause));
                    }
                    // The stream has not reached its sends, or the program holds a prepared one.
                    Err(error) => in_the_way = Some(error),
                }
            }
            drop(progress);
            if pause.elapsed() >= timeout {
                return Err(match in_the_way {
                    Some(error) => NotifyError::of_queue(self.rank, error),
                    None => NotifyError::TimedOut { what: "flushing a queue", timeout },
                });
            }
            pause.pause();
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
    pub(crate) fn post(&mut self, request: WorkRequest<'_>) -> Result<(), NotifyError> {
        self.give(request, QueuePair::post_send)?;
        self.progress.certain = self.progress.given;
        Ok(())
    }

    /// Posts a request that a later one completes.
    pub(crate) fn post_unsignaled(&mut self, request: WorkRequest<'_>) -> Result<(), NotifyError> {
        self.give(request.unsignaled(), QueuePair::post_send)
    }

    /// Prepares a request for a stream.
    pub(crate) fn prepare(&mut self, request: WorkRequest<'_>) -> Result<PreparedSend, NotifyError> {
        self.give(request, QueuePair::prepare)
    }

    /// Gives the next request to the queue pair, and waits for room while the queue is full.
    fn give<'a, T>(
        &mut self,
        request: WorkRequest<'a>,
        act: impl Fn(&QueuePair, WorkRequest<'a>) -> Result<T, QueueError>,
    ) -> Result<T, NotifyError> {
        let Posting { peer, timeout, .. } = *self;
        let mut pause = Pause::new();
        let number = self.progress.given + 1;
        let request = request.wr_id(number);
        loop {
            match act(&peer.queue_pair, request.clone()) {
                Ok(done) => {
                    self.progress.given = number;
                    return Ok(done);
                }
                Err(QueueError::Full(_)) if pause.elapsed() < timeout => {
                    let before = self.progress.completed;
                    peer.poll(&mut self.progress)?;
                    if self.progress.completed == before {
                        pause.pause();
                    }
                }
                Err(QueueError::Full(_)) => {
                    return Err(NotifyError::TimedOut { what: "waiting for room in a queue", timeout });
                }
                Err(error) => return Err(NotifyError::of_queue(peer.rank, error)),
            }
        }
    }
}

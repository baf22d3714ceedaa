//! One queue pair of a team, and what of its work has completed.

use super::NotifyError;
use crate::qp::QueuePair;
use crate::qp::prepared::PreparedSend;
use crate::qp::wait::PreparedWait;
use crate::queue::error::{OrderError, QueueError, StateError};
use crate::queue::request::WorkRequest;
use crate::util::pause::Pause;
use parking_lot::Mutex;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Peer {
    rank: u32,
    queue_pair: QueuePair,
    progress: Mutex<Progress>,
}

/// Requests are numbered from 1 on, in the order of the queue, and complete in that order.
#[derive(Debug, Default)]
struct Progress {
    /// The newest one.
    given: u64,
    /// The newest one that completes whatever the program does: the CPU has posted it, signaled.
    certain: u64,
    /// The newest one that has completed.
    completed: u64,
}

impl Peer {
    pub(super) fn new(rank: u32, queue_pair: QueuePair) -> Self {
        Peer { rank, queue_pair, progress: Mutex::default() }
    }

    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Takes what has completed. The first failure is the queue pair's, and stays.
    fn poll(&self, progress: &mut Progress) -> Result<(), NotifyError> {
        let queue = self.queue_pair.send_cq();
        while let Some(completion) =
            queue.poll().map_err(|error| NotifyError::of_queue(self.rank, error.into()))?
        {
            progress.completed = progress.completed.max(completion.wr_id);
        }
        self.check()
    }

    /// What has failed stays so, whatever completes after it.
    fn check(&self) -> Result<(), NotifyError> {
        self.queue_pair.failure().map_or(Ok(()), |cause| Err(NotifyError::of_cause(self.rank, cause)))
    }

    /// Does something to the queue, and waits for room while there is none. Nobody else does meanwhile, so that requests that belong
    /// together stay together.
    fn with_room<T>(
        &self,
        progress: &mut Progress,
        timeout: Duration,
        mut act: impl FnMut(&QueuePair) -> Result<T, QueueError>,
    ) -> Result<T, NotifyError> {
        let mut pause = Pause::new();
        loop {
            match act(&self.queue_pair) {
                Ok(done) => return Ok(done),
                Err(error) if matches!(error, QueueError::Full(_)) && pause.elapsed() < timeout => {
                    let before = progress.completed;
                    self.poll(progress)?;
                    if progress.completed == before {
                        pause.pause();
                    }
                }
                Err(error) if matches!(error, QueueError::Full(_)) => {
                    return Err(NotifyError::TimedOut { what: "waiting for room in a queue", timeout });
                }
                Err(error) => return Err(NotifyError::of_queue(self.rank, error)),
            }
        }
    }

    /// Posts requests, one after the other. The last one completes for all of them.
    pub(super) fn post(&self, requests: &[WorkRequest<'_>], timeout: Duration) -> Result<(), NotifyError> {
        let mut progress = self.progress.lock();
        let last = requests.len().saturating_sub(1);
        for (i, request) in requests.iter().enumerate() {
            let number = progress.given + 1;
            let mut request = request.clone().wr_id(number);
            if i < last {
                request = request.unsignaled();
            }
            self.with_room(&mut progress, timeout, |queue_pair| queue_pair.post_send(request.clone()))?;
            progress.given = number;
            if i == last {
                progress.certain = number;
            }
        }
        Ok(())
    }

    /// Prepares requests for a stream, one after the other. The last one completes for all of them.
    pub(super) fn prepare<const N: usize>(
        &self,
        requests: [WorkRequest<'_>; N],
        timeout: Duration,
    ) -> Result<[PreparedSend; N], NotifyError> {
        let mut progress = self.progress.lock();
        let mut prepared = Vec::with_capacity(N);
        for (i, request) in requests.into_iter().enumerate() {
            let number = progress.given + 1;
            let mut request = request.wr_id(number);
            if i + 1 < N {
                request = request.unsignaled();
            }
            let send =
                self.with_room(&mut progress, timeout, |queue_pair| queue_pair.prepare(request.clone()))?;
            progress.given = number;
            prepared.push(send);
        }
        // Of as many as there are requests.
        prepared.try_into().map_err(|_| NotifyError::TimedOut { what: "preparing", timeout })
    }

    /// Waits, for a stream, for everything that nobody waits for yet.
    pub(super) fn prepare_waits(&self) -> Result<Vec<PreparedWait>, NotifyError> {
        let (queue, mut waits) = (self.queue_pair.send_cq(), Vec::new());
        loop {
            match queue.prepare_wait() {
                Ok(wait) => waits.push(wait),
                Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => return Ok(waits),
                Err(error) => return Err(NotifyError::of_queue(self.rank, error)),
            }
        }
    }

    /// Returns when everything given before has completed: it has arrived at the other side.
    pub(super) fn flush(&self, timeout: Duration) -> Result<(), NotifyError> {
        let mut pause = Pause::new();
        let until = self.progress.lock().given;
        loop {
            let mut progress = self.progress.lock();
            self.poll(&mut progress)?;
            if progress.completed >= until {
                return Ok(());
            }
            // What was prepared may have been dropped, and never completes. A request behind it does.
            let mut in_the_way = None;
            if progress.certain < until {
                let number = progress.given + 1;
                match self.queue_pair.post_send(WorkRequest::nop().wr_id(number)) {
                    Ok(()) => (progress.given, progress.certain) = (number, number),
                    Err(QueueError::State(StateError::Failed { cause, .. })) => {
                        return Err(NotifyError::of_cause(self.rank, cause));
                    }
                    // A stream has still to come to what it was given, or the program still holds it.
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

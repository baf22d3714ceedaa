//! Completion queues for tasks of tokio.

use crate::qp::complete::channel::{ArmFor, CqEvents};
use crate::qp::complete::{CompletionQueue, WaitError};
use crate::queue::Completion;
use crate::verbs::Error;
use gdsync_sys::contain::contain;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// A completion queue whose completions tokio tasks await.
///
/// It registers a descriptor of the queue's channel with the runtime in which it is made, and is used there. Any
/// number of these, and of threads in [`CompletionQueue::wait`], may share a channel or a queue: each completion is
/// returned once.
///
/// ```
/// use gdsync::qp::{AsyncCompletionQueue, CompletionChannel};
/// use gdsync::{CompletionQueue, CompletionQueueConfig, Device, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(async {
/// let device = Device::software()?;
/// let pd = ProtectionDomain::new(&device)?;
/// let channel = CompletionChannel::new(&device)?;
/// let queue = CompletionQueue::new(&device, CompletionQueueConfig::from(64).channel(&channel))?;
/// let queue_pair = QueuePair::new(&pd, QueuePairConfig::default().completion_queues(&queue, &queue))?;
/// queue_pair.connect(&queue_pair.endpoint()?, Default::default())?; // to itself
/// let mut completions = AsyncCompletionQueue::new(&queue)?;
/// queue_pair.post_send(WorkRequest::nop().wr_id(5))?;
/// assert_eq!(completions.next().await?.wr_id, 5);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncCompletionQueue {
    queue: CompletionQueue,
    /// A duplicate of the channel's: a runtime takes a descriptor once, and several queues share a channel.
    fd: AsyncFd<OwnedFd>,
}

impl AsyncCompletionQueue {
    /// Registers the queue's channel with the runtime of the calling task.
    ///
    /// # Errors
    /// [`StateError::NoChannel`](crate::queue::StateError::NoChannel); [`Error::Verbs`] if the process has no file
    /// descriptor left; [`WaitError::Runtime`] outside of a tokio runtime, and in one without I/O (`enable_io`).
    pub fn new(queue: &CompletionQueue) -> Result<Self, WaitError> {
        let no_runtime = |reason| WaitError::Runtime { reason };
        Handle::try_current().map_err(|error| no_runtime(error.to_string()))?;
        let (events, _) = queue.inner.events()?;
        let fd = events.channel.fd().try_clone_to_owned().map_err(failed("dup"))?;
        // Tokio panics if its runtime has no I/O, and has no call that asks whether it has.
        //
        // SAFETY: an open descriptor that the `AsyncFd` owns, and that nothing closes or replaces before.
        let fd = contain(|| unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) })
            .map_err(no_runtime)?
            .map_err(|refused| failed("epoll_ctl")(refused.into()))?;
        Ok(AsyncCompletionQueue { queue: queue.clone(), fd })
    }

    /// Takes the next completion, and waits until there is one.
    ///
    /// Dropping the future before it is ready takes no completion. Completions of persistent requests go to these.
    ///
    /// # Errors
    /// As [`CompletionQueue::wait`].
    pub async fn next(&mut self) -> Result<Completion, WaitError> {
        loop {
            let (events, seen) = self.queue.inner.events()?;
            if let Some(completion) = self.queue.poll()? {
                return Ok(completion);
            }
            self.queue.arm(ArmFor::Next)?;
            if let Some(completion) = self.queue.poll()? {
                return Ok(completion);
            }
            poll_fn(|task| events.poll_sleep(seen, &self.fd, task)).await?;
        }
    }

    /// Returns the queue.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl CqEvents {
    /// Does [`CqEvents::sleep`] for a task.
    fn poll_sleep(
        &self,
        seen: u32,
        fd: &AsyncFd<OwnedFd>,
        task: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let mut turn = self.channel.turn.lock();
        loop {
            if self.count() != seen {
                return Poll::Ready(Ok(()));
            }
            if !turn.is_taken
                && let Poll::Ready(readable) = fd.poll_read_ready(task)
            {
                let mut readable = readable.map_err(failed("epoll_wait"))?;
                let read = self.channel.read_all();
                // There is nothing more: the next event makes it ready again.
                readable.clear_ready();
                self.channel.pass(&mut turn);
                read?;
                continue;
            }
            // A reading thread, or another task, may take the event.
            if !turn.tasks.iter().any(|known| known.will_wake(task.waker())) {
                turn.tasks.push(task.waker().clone());
            }
            return Poll::Pending;
        }
    }
}

fn failed(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Verbs { call, detail: "completion channel".to_owned(), source }
}
